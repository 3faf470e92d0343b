"""Every file, function, command and equation that the map from the paper to the code names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import gymnasium as gym
import pytest

import capax.envs  # noqa: F401  # registers
from capax.cli.main import COMMANDS
from capax.kappa.rules import RULES

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "capax"
MAP = (ROOT / "docs" / "paper_to_code.md").read_text()
LINES = [line for line in MAP.splitlines() if line.startswith("| ") and "`" in line]
PROSE = [part for part in MAP.split("\n\n") if "`" in part and not part.startswith("| ")]
CODE = re.compile(r"`([^`]+)`")
WITH_FILE = re.compile(r"((?:`[^`]+`(?:, | and )?)+) \(`([^`]+\.py)`")
IDENTIFIERS = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
EQUATIONS = {1, 2, 3, 4, 5, 6, 7}
"""Numbered equations of the paper's text: the objective, its dual, the IPM, the simulation lemma, the conservative program,
the update of κ, the conservative objective. The appendix repeats some of them and names no other that is used here."""
ALGORITHMS = {1, 2}
"""CAP, and the constrained cross-entropy method of the appendix."""
FILES_OF_RUNS = {"episodes.jsonl", "interrupted.jsonl", "config.json"}


def path_of(name: str) -> Path | None:
    """The file or folder that a name means; None if there is none."""
    for folder in (PACKAGE, ROOT):
        if (folder / name).exists():
            return folder / name
    matches = [path for path in PACKAGE.rglob(Path(name).name) if path.as_posix().endswith(f"/{name}")]
    return matches[0] if len(matches) == 1 else None


@cache
def defined(path: Path) -> frozenset[str]:
    """Names that a file defines or assigns anywhere, methods, fields and keys included."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Dict(keys=keys):  # keys of rows
                names |= {key.value for key in keys if isinstance(key, ast.Constant)}
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.Attribute(attr=name):
                names.add(name)
    return frozenset(names)


def stands_in(name: str, path: Path) -> bool:
    """Whether a file defines every part of a dotted name."""
    return set(name.split(".")) <= defined(path)


def problem(span: str, place: Path | None) -> str | None:
    """What is wrong with a code span; `place` is the file that it is said to be in, or None."""
    if span.endswith((".py", "/")):
        return None if path_of(span) is not None else f"there is no {span}"
    if span.startswith("capax/"):
        return None if span in gym.registry else f"no environment is called {span}"
    if span.startswith("capax "):
        return None if span.split()[1] in COMMANDS else f"there is no command {span}"
    if span.startswith("--kappa "):
        return None if span.split()[1] in RULES else f"there is no rule {span}"
    if span.startswith("capax."):
        *module, name = span.split(".")
        return None if hasattr(import_module(".".join(module)), name) else f"{span} cannot be imported"
    if span in FILES_OF_RUNS:
        return None
    places = [place] if place is not None else [*PACKAGE.rglob("*.py")]
    unknown = [name for name in IDENTIFIERS.findall(span) if not any(stands_in(name, path) for path in places)]
    return f"{', '.join(unknown)} of {span} is not in {place or 'any file'}" if unknown else None


def problems(text: str) -> list[str]:
    """What is wrong with a line of the map. Names directly before a file in brackets must be in that file."""
    place_of: dict[str, Path | None] = {}
    for names, file in WITH_FILE.findall(text):
        place_of |= dict.fromkeys(CODE.findall(names), path_of(file))
    return [found for span in CODE.findall(text) if (found := problem(span, place_of.get(span)))]


@pytest.mark.parametrize("line", [*LINES, *PROSE])
def test_what_a_line_names_exists(line):
    assert problems(line) == []


def test_names_that_do_not_exist_are_found():
    assert problems("| x | `PI.update` (`kappa/pi.py`) | `tests/kappa/test_rules.py` |") == []
    assert problems("| x | `PI.updates` (`kappa/pi.py`) |")
    assert problems("| x | `PI.update` (`kappa/pie.py`) |")
    assert problems("| x | `capax nothing` |")
    assert problems("| x | `capax.tabular.nothing` |")
    assert problems("| x | `capax/Nothing-v0` |")


TEXTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "results").glob("*.md")])


def wrong_numbers(text: str) -> list[str]:
    """Equations and algorithms that the paper does not have."""
    equations = [
        number
        for part in re.findall(r"\bEqs?\. ?(\d+(?:(?:, | and )\d+)*)", text)
        for number in re.findall(r"\d+", part)
    ]
    algorithms = re.findall(r"\bAlgorithm (\d+)", text)
    wrong = [f"Eq. {number}" for number in equations if int(number) not in EQUATIONS]
    return wrong + [f"Algorithm {number}" for number in algorithms if int(number) not in ALGORITHMS]


def test_equations_and_algorithms_are_those_of_the_paper():
    assert wrong_numbers("Eq. 7, Eqs. 1, 2 and 5, Algorithm 2") == []
    assert wrong_numbers("Algorithm 1 with Eq. 7 and 8, Eq. 9, Algorithm 3") == ["Eq. 8", "Eq. 9", "Algorithm 3"]
    wrong = {path.relative_to(ROOT).as_posix(): wrong_numbers(path.read_text()) for path in TEXTS}
    assert {path: numbers for path, numbers in wrong.items() if numbers} == {}


def test_the_map_has_every_equation_and_algorithm():
    assert {int(number) for number in re.findall(r"\| Eq\. (\d)", MAP)} == EQUATIONS
    assert {int(number) for number in re.findall(r"\| Algorithm (\d)", MAP)} == ALGORITHMS
