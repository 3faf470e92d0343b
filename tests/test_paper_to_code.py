"""`docs/paper_to_code.md` leads to files, functions and classes that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "paper_to_code.md").read_text()
ROWS = [line for line in TEXT.splitlines() if line.startswith("| ") and "`" in line]
FOLDERS = (ROOT / "capax", ROOT, ROOT / "capax/agents/policy_gradient")
"""What paths in the tables are relative to."""


@cache
def defined(path: Path) -> set[str]:
    """The functions, classes, constants and keys of a file, those within classes included."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Dict(keys=keys):  # keys of rows
                names |= {key.value for key in keys if isinstance(key, ast.Constant)}
    return names


@cache
def defined_anywhere() -> set[str]:
    """The names that are defined in the package."""
    return set().union(*map(defined, (ROOT / "capax").rglob("*.py")))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:40])
def test_what_a_row_names_exists(row):
    quoted = re.findall(r"`([^`]+)`", row)
    for path in (text for text in quoted if re.fullmatch(r"[\w/]+(\.py|/)", text)):
        assert any((folder / path).exists() for folder in FOLDERS), path
    for name in (text for text in quoted if re.fullmatch(r"[A-Za-z_][\w.]*", text)):
        if not name.endswith((".py", ".jsonl", ".json", ".log")):
            assert set(name.removeprefix("capax.").split(".")) <= defined_anywhere() | {"tabular"}, name


def test_a_name_that_is_followed_by_a_file_is_defined_there():
    pairs = re.findall(r"`([A-Za-z_]\w*(?:\.\w+)?)` \(`([\w/]+\.py)`\)", TEXT)
    assert len(pairs) > 40
    for name, path in pairs:
        (file,) = (folder / path for folder in FOLDERS if (folder / path).exists())
        assert set(name.split(".")) <= defined(file), f"{name} is not in {path}"
