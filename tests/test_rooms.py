"""The rooms of the package, and the one direction in which they import each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import capax

PACKAGE = Path(capax.__file__).parent
ROOMS = (
    "runtime", "core", "kappa", "runs", "planning", "data", "tabular", "models", "envs", "agents", "training", "paper",
    "reporting", "cli",
)  # fmt: skip
"""Lowest first: a room imports only from rooms before it, and from itself."""
MAX_ROOMS = 15
AGENT_NAMES = {"agent", "actor", "starter"}


def modules() -> list[Path]:
    """Every file of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    """The modules of capax that a file imports anywhere in it, also within functions, for type checks and by name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == "capax")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            if node.module == "capax":  # `from capax import room` names a room, or a public name
                yield from (f"capax.{alias.name}" for alias in node.names)
            elif node.module is not None and node.module.startswith("capax."):
                yield node.module
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (
                text for text in map(constant, node.args) if text is not None and text.partition(".")[0] == "capax"
            )


def constant(node: ast.expr) -> str | None:
    """The text of a constant, or None."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def room_of(path: Path) -> str:
    """The room that a file lies in; empty for the package's own files."""
    return path.relative_to(PACKAGE).parts[0] if path.parent != PACKAGE else ""


def edges() -> set[tuple[str, str, Path]]:
    """Which room imports which, with the file that does."""
    return {
        (room_of(path), name.split(".")[1], path)
        for path in modules()
        for name in imported(path)
        if room_of(path) and "." in name
    }


def test_the_package_holds_rooms_and_nothing_else():
    entries = {path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    assert entries == {"__init__.py", "__main__.py", "py.typed", *ROOMS}
    assert len(ROOMS) <= MAX_ROOMS
    assert all((PACKAGE / room / "__init__.py").read_text().startswith('"""') for room in ROOMS)


def test_imports_go_one_way_through_the_rooms():
    upward = [
        f"{path.relative_to(PACKAGE.parent)} imports {theirs}"
        for mine, theirs, path in edges()
        if theirs not in ROOMS or ROOMS.index(theirs) > ROOMS.index(mine)
    ]
    assert not upward, "\n".join(sorted(upward))


def test_no_room_imports_the_whole_package():
    """`capax` imports the rooms on first use, so `capax.train` in a lower room would be an upward import."""
    whole = [path for path in modules() if room_of(path) and "capax" in set(imported(path))]
    assert not whole, whole


def test_no_modules_import_each_other_in_a_circle():
    graph = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): set(imported(path))
        for path in modules()
    }
    names = set(graph)
    # `from capax.room import module` imports the module
    for path in modules():
        own = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                graph[own] |= {f"{node.module}.{alias.name}" for alias in node.names} & names
    graph = {
        name: {other for other in others if other in names and other not in (name, "capax")}
        for name, others in graph.items()
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail, name))
        if name not in done:
            for other in graph[name]:
                visit(other, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_only_the_models_import_the_kernels():
    users = [path for path in modules() if any("kernels" in name for name in imported(path))]
    assert users
    assert all(path.is_relative_to(PACKAGE / "models") for path in users)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nobody_asks_an_agent_for_what_its_contract_does_not_declare(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            target = node.args[0]
            name = (
                target.id if isinstance(target, ast.Name) else target.attr if isinstance(target, ast.Attribute) else ""
            )
            assert name not in AGENT_NAMES, f"{path.name}:{node.lineno}"
        if isinstance(node, ast.Compare):  # type(x).__name__ == "..."
            parts = [node.left, *node.comparators]
            assert not any(isinstance(part, ast.Attribute) and part.attr == "__name__" for part in parts), node.lineno


QUESTION_WORDS = {"How", "What", "When", "Where", "Which", "Who", "Why"}


def test_every_module_states_what_it_does():
    for path in modules():
        text = ast.get_docstring(ast.parse(path.read_text()))
        assert text, path
        first = text.splitlines()[0]
        assert not first.rstrip().endswith("?"), f"{path} asks: {first}"
        assert first.split()[0] not in QUESTION_WORDS, f"{path} begins like a question: {first}"


VAGUE = {"told", "said", "seen", "made", "known", "given", "asked"}
"""Words that do not say what a thing holds."""


@pytest.mark.parametrize("folder", ["capax", "tests", "benchmarks", "examples"])
def test_names_say_what_they_hold(folder):
    paths = sorted((PACKAGE.parent / folder).rglob("*.py"))
    vague = [f"{path}" for path in paths if path.stem in VAGUE]
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.Attribute(attr=name, ctx=ast.Store()):
                    pass
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    pass
                case ast.alias(asname=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
                    pass
                case ast.ExceptHandler(name=name):
                    pass
                case _:
                    continue
            if name is not None and name.strip("_") in VAGUE:
                vague.append(f"{path}:{node.lineno} {name}")
    assert not vague, "\n".join(vague)


def test_files_stay_short():
    lengths = {path: len(path.read_text().splitlines()) for path in modules()}
    assert max(lengths.values()) <= 400, max(lengths, key=lengths.__getitem__)


def test_the_rooms_are_in_the_documented_order():
    text = (PACKAGE.parent / "CONTRIBUTING.md").read_text()
    places = [text.index(f"`{room}/`") for room in ROOMS]
    assert all(before < after for before, after in pairwise(places))
