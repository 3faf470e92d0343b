"""The recipes of CONTRIBUTING.md, followed: each code block is run, and each line is added to a copy of the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import pytest

import capax
from capax.training.methods import METHODS
from capax.training.presets import PRESETS

ROOT = Path(__file__).parents[1]
RECIPES = (ROOT / "CONTRIBUTING.md").read_text()
HEADINGS = re.findall(r"^### … (.*)$", RECIPES, re.MULTILINE)


def recipe(heading: str) -> str:
    """The text below a heading."""
    return RECIPES.partition(f"### … {heading}\n")[2].partition("\n### ")[0]


def code_of(heading: str) -> str:
    """The Python block of a recipe."""
    (block,) = re.findall(r"^```python\n(.*?)^```$", recipe(heading), re.MULTILINE | re.DOTALL)
    return block


def line_of(heading: str) -> str:
    """The line that a recipe adds to a table."""
    text = recipe(heading).replace(f"```python\n{code_of(heading)}```\n", "")
    (block,) = re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return block.strip()


@pytest.fixture
def clean_tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a recipe registers is gone after it, and its temporary folders lie in the test's own."""
    for table in (METHODS, PRESETS):
        monkeypatch.setattr(table, "_entries", dict(table))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    registered = dict(gym.registry)
    yield
    gym.registry.clear()
    gym.registry.update(registered)


def test_there_is_a_recipe_for_every_part():
    assert {"a method", "a rule for κ", "a task", "a logger", "a preset"} <= set(HEADINGS)


@pytest.mark.usefixtures("clean_tables")
@pytest.mark.parametrize("heading", HEADINGS)
def test_a_part_is_added_from_outside(heading, monkeypatch):
    module = ModuleType("recipe")
    monkeypatch.setitem(sys.modules, "recipe", module)
    exec(compile(code_of(heading), heading, "exec"), vars(module))
    run = capax.open_run(module.run)
    assert run.episodes
    assert run.episodes[-1]["steps"] >= run.config.steps


def definitions(heading: str) -> str:
    """A recipe's code up to the point where it is used."""
    return re.split(r"^(?:capax\.register|gym\.register|folder = )", code_of(heading), maxsplit=1, flags=re.MULTILINE)[
        0
    ]


def with_inner_imports(code: str) -> str:
    """Code that names the contracts by their modules, as a file of the package does."""
    code = code.replace("import capax\n", "from capax.core import contracts, types\n")
    code = re.sub(r"capax\.(Agent|PlanningRule|Logger)\b", r"contracts.\1", code)
    code = re.sub(r"capax\.(Feedback|Spec)\b", r"types.\1", code)
    return code.replace("ingredients: capax.Ingredients", "ingredients")


def insert(path: Path, table: str, line: str, imports: str) -> None:
    """Add a line to a table, and the import that it needs."""
    text = path.read_text()
    start = text.index(f"\n{table}")
    opening = text.index("{", start) + 1
    text = text[:opening] + f"\n        {line}" + text[opening:]
    path.write_text(
        text.replace("from __future__ import annotations\n", f"from __future__ import annotations\n{imports}\n", 1)
    )


def test_parts_are_added_inside_with_one_file_and_one_line_each(tmp_path):
    package = shutil.copytree(ROOT / "capax", tmp_path / "capax", ignore=shutil.ignore_patterns("__pycache__"))

    method = with_inner_imports(definitions("a method")).replace("def build(", "def build_search(")
    (package / "agents" / "random_search.py").write_text(method)
    insert(
        package / "training" / "methods.py",
        "METHODS",
        line_of("a method"),
        "from capax.agents.random_search import SearchSettings, build_search",
    )
    rule = with_inner_imports(definitions("a rule for κ")) + (
        "\n\nfrom dataclasses import dataclass\n\n\n@dataclass(frozen=True)\nclass Step(StepRule):\n    up: float = 0.5\n"
        "    down: float = 0.02\n\n\ndef default(kind, violation_rate):\n    return Step()\n"
    )
    (package / "kappa" / "step.py").write_text(rule)
    insert(package / "kappa" / "rules.py", "RULES", line_of("a rule for κ"), "from capax.kappa import step")
    (package / "runs" / "csv_logger.py").write_text(with_inner_imports(definitions("a logger")))
    insert(
        package / "runs" / "loggers.py", "LOGGERS", line_of("a logger"), "from capax.runs.csv_logger import CsvLogger"
    )
    insert(package / "training" / "presets.py", "PRESETS", line_of("a preset"), "")
    (package / "envs" / "heater.py").write_text(definitions("a task").replace("import capax\n", ""))
    registered = re.search(r"^gym\.register\(.*\)$", code_of("a task"), re.MULTILINE)
    assert registered is not None
    with (package / "envs" / "__init__.py").open("a") as file:
        file.write(registered[0].replace("entry_point=Heater", 'entry_point="capax.envs.heater:Heater"') + "\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"}

    def train(*arguments: str) -> Any:
        command = [sys.executable, "-m", "capax", "train", "example/Heater-v0", "--out", str(tmp_path / arguments[0])]
        done = subprocess.run([*command, *arguments[1:]], env=env, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return capax.open_run(tmp_path / arguments[0])

    searched = train(
        "searched", "--method", "random-search", "--steps", "200", "--set", "spread=0.5", "--logger", "csv"
    )
    assert searched.config.method == "random-search"
    assert searched.config.setting("spread", None) == 0.5
    assert len((searched.folder / "rows.csv").read_text().splitlines()) == 1 + len(searched.episodes)
    small = ("--set", "least_updates=2", "most_updates=2", "start_steps=40", "horizon=3", "up=0.25")
    ruled = train("ruled", "--kappa", "step", "--preset", "tiny", "--steps", "120", *small)
    assert (ruled.config.kappa, ruled.config.rule, ruled.config.preset) == ("step", {"up": 0.25}, "tiny")
    assert ruled.config.setting("population", None) == 20
    assert "rule_violations" in ruled.episodes[-1]
