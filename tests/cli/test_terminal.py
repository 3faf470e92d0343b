"""No control character reaches a terminal: not from run folders, not from names of files, not from what environments raise."""

from __future__ import annotations

import ast
import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.registration import EnvSpec
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from support.fuzz_strategies import cases

import capax
from capax.cli.main import main
from capax.core.errors import STOPS, Damaged
from capax.runs.progress import ProgressLine
from capax.runs.run import Run
from capax.runtime import terminal

TITLE = "\x1b]0;evil\x07"
"""Sets the title of a terminal."""
EVIL = f"{TITLE}a\r\nb\x9b2J\x7f\x08\u202etxt\u2066\u2028\ud800"
"""Also a line break, C1 controls, changes of direction, a line separator and half of a character."""
NAME = f"{TITLE}x\r\ny\x9b2J\u202e"
"""The same for names of files."""
FAKE = Path(__file__).parent / "no such run"


def is_clean(text: str) -> bool:
    """Whether a text has nothing but line breaks and characters that can be printed."""
    return all(character.isprintable() or character == "\n" for character in text)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two random episodes."""
    out = tmp_path_factory.mktemp("run") / "run"
    capax.train("capax/Integrator-v0", method="random", steps=100, out=out)
    return out


@pytest.fixture
def shown(capfd: pytest.CaptureFixture[str]) -> Any:
    """Runs a command and returns all that it prints, which must be clean."""

    def run(*arguments: str | Path) -> str:
        capfd.readouterr()
        with suppress(SystemExit):
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        assert is_clean(out) and is_clean(err) and "Traceback" not in err, (arguments, out, err)
        return out + err

    return run


def commands(folder: Path) -> Iterator[tuple[str | Path, ...]]:
    """Every command that reads a run folder."""
    yield "report", folder
    yield "report", folder, "--json"
    yield "report", folder, "--out", folder / f"{NAME}.png"
    yield "evaluate", folder, "--episodes", "1"
    yield "evaluate", folder, "--episodes", "1", "--json"
    yield "resume", folder
    yield "resume", folder, "--steps", "50"
    yield "train", "capax/Integrator-v0", "--method", "random", "--steps", "150", "--resume", "--out", folder


def hostile_tables(table: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A JSON object with each of its fields changed in turn, and with a name that is not its own."""
    for name in table:
        yield table | {name: EVIL}
        yield table | {name: {EVIL: EVIL}}
    yield table | {EVIL: 1}
    yield {EVIL: table}


def hostile_text(table: dict[str, Any]) -> str:
    """One line of JSON; the text itself holds no control characters, as JSON wants it."""
    return json.dumps(table) + "\n"


def test_a_folder_and_files_with_hostile_names(trained, tmp_path, monkeypatch, shown):
    monkeypatch.chdir(tmp_path)
    folder = Path(NAME)
    shutil.copytree(trained, folder)
    (folder / NAME).write_text("")
    (folder / "checkpoints" / f"episode-{NAME}.safetensors").write_text("")
    assert r"\x1b]0;evil\x07" in shown("report", folder)
    for command in commands(folder):
        shown(*command)
    assert len(shown("report", folder).splitlines()) == 2  # the heading, and one row


def test_every_field_of_a_hostile_config(trained, tmp_path, shown):
    config = json.loads((trained / "config.json").read_text())
    for number, table in enumerate(hostile_tables(config)):
        folder = shutil.copytree(trained, tmp_path / f"{number}")
        (folder / "config.json").write_text(hostile_text(table))
        for command in (("report", folder), ("evaluate", folder), ("resume", folder))[: 3 if number % 4 == 0 else 1]:
            shown(*command)
        assert is_clean(str(Run(folder)))


def test_every_field_of_hostile_rows(trained, tmp_path, shown):
    rows = [json.loads(line) for line in (trained / "episodes.jsonl").read_text().splitlines()]
    for number, row in enumerate(hostile_tables(rows[-1])):
        folder = shutil.copytree(trained, tmp_path / f"{number}")
        (folder / "episodes.jsonl").write_text(hostile_text(rows[0]) + hostile_text(row))
        shown("report", folder)
        if number % 8 == 0:
            shown("resume", folder)
        assert is_clean(str(Run(folder)))


def test_all_commands_on_a_hostile_task(trained, tmp_path, shown):
    for name, value in (("task", f"module{EVIL}:Env-v0"), ("method", EVIL)):
        folder = shutil.copytree(trained, tmp_path / str(len(list(tmp_path.iterdir()))))
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(hostile_text(config | {name: value}))
        for command in commands(folder):
            shown(*command)


@pytest.mark.parametrize("process", ["1", "1e999", '"x"', "null", "[" * 9999])
def test_the_name_of_who_holds_the_lock(trained, tmp_path, shown, process):
    folder = shutil.copytree(trained, tmp_path / "run")
    with (folder / ".lock").open("w") as file:
        file.write(f'{{"process": {process}, "host": {json.dumps(EVIL)}}}')
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        text = shown("resume", folder)
    assert "is in use by" in text and (process != "1" or r"\x1b]0;evil\x07" in text)


def test_arguments_of_commands(shown):
    for command in ("report", "resume", "evaluate", "train", "settings", EVIL[:-1]):
        shown(command, NAME)
        shown(command, "a", NAME, NAME)
        shown(command, f"--{NAME}", NAME)
    shown("train", "capax/Integrator-v0", "--set", NAME, "--out", FAKE)
    shown("train", "capax/Integrator-v0", "--set", f"{NAME}=1", "--out", FAKE)
    shown("train", "capax/Integrator-v0", "--logger", NAME, "--out", FAKE)
    shown("train", f"{NAME}:Env-v0", "--cost", f"{NAME}:x", "--initial-data", NAME, "--out", FAKE)
    shown("gridworld", "--out", NAME, "--worlds", "0")
    assert not FAKE.exists()


def test_what_an_environment_raises(workspace, shown):
    (workspace / "evil_env.py").write_text(
        f"""
import gymnasium as gym
import numpy as np
from capax.envs.integrator import Integrator

class Env(Integrator):
    def step(self, action):
        raise type({TITLE!r}, (ValueError,), {{}})({EVIL!r})

class Exits(Integrator):
    def step(self, action):
        raise SystemExit({EVIL!r})

for kind in (Env, Exits):
    gym.register(f"Evil{{kind.__name__}}-v0", entry_point=kind, max_episode_steps=5, kwargs={{"cost_limit": 1.0}})
"""
    )
    for name in ("Env", "Exits"):
        text = shown("train", f"evil_env:Evil{name}-v0", "--method", "random", "--steps", "20", "--out", name)
        assert r"\x1b]0;evil\x07" in text, text


def test_loggers_that_fail(tmp_path, capfd):
    def start(self: Any, *_: Any) -> None:
        raise ValueError(EVIL)

    logger = type(TITLE, (capax.Logger,), {"start": start, "log": start})()
    capax.train("capax/Integrator-v0", method="random", steps=50, out=tmp_path / "run", loggers=[logger])
    err = capfd.readouterr().err
    assert is_clean(err) and r"\x1b]0;evil\x07" in err


def test_warnings_of_python():
    with pytest.warns(RuntimeWarning) as caught:
        terminal.warn(EVIL, stacklevel=1)
    assert str(caught[0].message).isprintable() and caught[0].filename == __file__


def test_tasks_and_doctor(shown, monkeypatch):
    monkeypatch.setattr("capax.cli.doctor.checks", lambda folder: {"python": lambda: ("missing", EVIL, EVIL)})
    spec = EnvSpec.__new__(EnvSpec)
    vars(spec).update(id=EVIL, kwargs={"cost_limit": 1.0}, entry_point="x:Y", max_episode_steps=None)
    monkeypatch.setitem(gym.registry, EVIL, spec)
    for command in ("tasks", "doctor"):
        assert r"\x1b]0;evil\x07" in shown(command)
        shown(command, "--json")


class Terminal:
    """A stream that claims to be a terminal."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("lane", [None, EVIL])
def test_the_live_line(lane):
    stream = Terminal()
    task = EVIL.replace("\ud800", "")
    options: Any = dict(steps=10, limit=1.0, discounted=False, preset=task, lane=lane, stream=stream)
    with ProgressLine(task=task, **options) as line:
        line.warn(EVIL)
        line.episode({
            "episode": task, "steps": 5, "phase": "plan", "return": 1.0, "cost": 0.0, "limit": 1.0, "violation": False,
            "violations": 0, "planned_violations": 0, "kappa": None,
        })  # fmt: skip
    assert r"\x1b]0;evil\x07" in stream.text
    for character in "\x07\x9b\x7f\x08\u202e\u2066\u2028":
        assert character not in stream.text
    assert "\x1b]" not in stream.text


# The one place, and that it is the only one.


@cases(300)
@given(st.text() | st.text(st.characters(categories=["Cc", "Cf", "Cs", "Zl", "Zp", "Zs"])))
def test_any_text_is_one_line_that_can_be_printed(text):
    clean = terminal.printable(text)
    assert clean.isprintable() and terminal.printable(clean) == clean
    assert clean == text or not text.isprintable()
    assert is_clean(terminal.printable_lines(text)) and terminal.printable_lines(text).count("\n") == text.count("\n")


@pytest.mark.parametrize("kind", [*STOPS, Damaged])
def test_the_message_of_every_error_is_one_line(kind):
    assert str(kind(EVIL)).isprintable() and str(kind("a {b} [c]: κ.")) == "a {b} [c]: κ."


def test_nothing_else_prints():
    package = Path(capax.__file__).parent
    found = []
    for path in sorted(package.rglob("*.py")):
        if path == Path(terminal.__file__):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            imported = {alias.name for alias in node.names} if isinstance(node, ast.ImportFrom) else set()
            if called in ("print", "warnings.warn", "sys.stdout.write") or Console.__name__ in imported:
                found.append(f"{path.relative_to(package)}:{node.lineno}")
    assert found == []
