"""A folder that came from somebody else runs no code of it, and none that it names, unless the user has named the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.foreign_files import (
    ENVIRONMENT,
    change_config,
    commands,
    plant_libraries,
    plant_plugins,
    python,
    ran,
    record,
)

from capax.cli.main import main
from capax.runs.run import Run

RANDOM = "--method random --steps 4 --logger"


@pytest.fixture(scope="session")
def short_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one random episode in a task of capax."""
    out = tmp_path_factory.mktemp("short") / "run"
    main(["train", "capax/Integrator-v0", "--method", "random", "--steps", "50", "--logger", "--out", str(out)])
    return out


@pytest.fixture
def foreign(short_run: Path, tmp_path: Path) -> list[Path]:
    """Run folders of somebody else's in `runs` of the folder where the user works. They hold the code that they name."""
    runs = [shutil.copytree(short_run, tmp_path / "runs" / name) for name in "XYZ"]
    names = (
        {"task": "runs.X.evil:Line-v0"},
        {"task": "evil:Line-v0"},
        {"own_cost": True, "cost_function": "runs.Z.evil:half"},
    )
    for run, named in zip(runs, names, strict=True):
        change_config(run, steps=100, **named)
        (run / "evil.py").write_text(record(tmp_path, "evil") + ENVIRONMENT)
    return runs


def test_code_of_a_run_folder_is_not_run(foreign, tmp_path):
    lines = [f"{command} runs/{name}" for name in "XYZ" for command in ("resume", "evaluate")]
    within = ["cd runs/Y", "resume .", "evaluate ."]  # where the folder's own module is in the current folder
    memory = tmp_path / "memory.json"
    messages = commands(tmp_path, *lines, "report runs/X --out x.png", *within, memory=memory)
    assert not ran(tmp_path) and not memory.exists() and (tmp_path / "x.png").exists()
    assert messages.count("exit 2") == 8
    for allow in ("--env runs.X.evil:Line-v0 (env=", "--env evil:Line-v0 (env=", "--cost runs.Z.evil:half (cost="):
        assert messages.count(f"allow it with {allow} in Python)") == (4 if "--env evil" in allow else 2), messages


IN_PYTHON = """
import sys, warnings
import capax
from capax.core.errors import InputError
capax.load("runs/X")
capax.open_run("runs/X").config
capax.report("runs/X", "x.png")
for call in (capax.resume, capax.evaluate):
    try:
        call("runs/X")
    except InputError as error:
        print(error)
"""


@pytest.mark.usefixtures("foreign")
def test_code_of_a_run_folder_is_not_run_by_python(tmp_path):
    # here the current folder is on the path, as in a notebook
    done = python(tmp_path, "-c", IN_PYTHON, memory=tmp_path / "memory.json")
    assert done.returncode == 0 and not ran(tmp_path), done.stderr
    assert done.stdout.count("which you have never named") == 2 and done.stdout.count("(env= in Python)") == 2


@pytest.mark.parametrize("arguments", [
    ["train", "capax/HopperVelocity-v0", "--method", "random", "--steps", "2", "--logger"],
    ["gridworld", "--worlds", "2", "--iterations", "1", "--jobs", "2", "--methods", "oracle", "0"],
])  # fmt: skip
def test_nothing_that_lies_in_the_current_folder_is_run(tmp_path, arguments):
    folder = tmp_path / "work"
    folder.mkdir()
    plant_plugins(folder, tmp_path)
    plant_libraries(folder, tmp_path)
    done = python(folder, "-m", "capax", *arguments, memory=tmp_path / "memory.json")
    assert not ran(tmp_path), (ran(tmp_path), done.stderr)
    assert done.returncode == 0, done.stderr


def test_a_program_of_the_users_keeps_its_folder(tmp_path):
    (tmp_path / "capax_study").mkdir()
    (tmp_path / "capax_study" / "__init__.py").write_text("import capax, my_helper")
    (tmp_path / "capax_study" / "__main__.py").write_text("")
    (tmp_path / "my_helper.py").write_text("print('found')")
    assert python(tmp_path, "-m", "capax_study", memory=tmp_path / "memory.json").stdout == "found\n"


def test_the_users_own_folder_works_without_options(tmp_path):
    folder, memory = tmp_path / "mine", tmp_path / "memory.json"
    folder.mkdir()
    plant_plugins(folder, tmp_path)
    plant_libraries(folder, tmp_path)
    (folder / "my_env.py").write_text("import glfw, my_helper\n" + ENVIRONMENT)  # MuJoCo's window library
    (folder / "my_helper.py").write_text("")
    task = "my_env:Line-v0 --env-kwargs push=2.5 --cost my_env:half"
    begun = python(folder, "-m", "capax", "train", *task.split(), *RANDOM.split(), "--out", "run", memory=memory)
    assert begun.returncode == 0, begun.stderr
    continued = commands(folder, "resume run --steps 8 --logger", "evaluate run --episodes 1", memory=memory)
    assert "exit" not in continued, continued
    assert not ran(tmp_path)
    rows = Run(folder / "run").episodes
    assert [(row["return"], row["cost"]) for row in rows] == [(10.0, 2.0), (10.0, 2.0)]  # 4 steps of 2.5 and .5
    assert memory.stat().st_mode & 0o777 == 0o600


def test_a_module_of_the_same_name_elsewhere_is_refused_until_it_is_named(tmp_path):
    mine, other, memory = tmp_path / "mine", tmp_path / "other", tmp_path / "memory.json"
    for folder in (mine, other):
        folder.mkdir()
        (folder / "my_env.py").write_text(record(tmp_path, folder.name) + ENVIRONMENT)
    assert "exit" not in commands(mine, f"train my_env:Line-v0 {RANDOM} --out run", memory=memory)
    shutil.copytree(mine / "run", other / "run")
    refused = ["resume run --steps 8 --logger", "evaluate run"]
    allowed = ["evaluate run --episodes 1 --env my_env:Line-v0", "resume run --steps 8 --logger"]
    messages = commands(other, *refused, *allowed, memory=memory)
    assert messages.count("now in another file") == messages.count("exit") == 2, messages
    assert ran(tmp_path) == ["mine", "other"] and len(Run(other / "run").episodes) == 2
