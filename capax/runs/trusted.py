"""The memory of all that this user has named: modules, cost functions, arguments of environments, files of logged data.

A run folder may come from somebody else, and what it names would be run or read as if the user had named it. So what a user
types or hands over is remembered in a file of the user's, outside of all run folders, and a folder may name only that. A module
is remembered with the files that its name led to: a folder cannot bring another module of that name.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from capax.core.errors import Damaged
from capax.runs.config import RunConfig
from capax.runtime import modules, terminal

try:
    import fcntl
except ImportError:  # Windows: two processes that write at once may forget what one of them wrote
    fcntl = None  # type: ignore[assignment]

VARIABLE = "CAPAX_TRUSTED"
"""Names another file."""
NAME = "trusted.json"
FORMAT = 1
Fact = tuple[str, ...]
"""A kind, what was named, and what it led to."""
LOCK_TIMEOUT_S = 5.0
"""Seconds to wait for another process that writes the file."""
_named_here: set[tuple[str, Fact]] = set()
"""The facts that were named in this process, with the value of the variable then. They need no file."""


def env_fact(task: str) -> Fact | None:
    """The module of `module:Id` and its files; None for an id without a module, or if there is no such module."""
    module = task.rpartition(":")[0]
    return _module_fact("env", module, module) if module else None


def cost_fact(function: str) -> Fact | None:
    """The function of `MODULE:FUNCTION` and the files of its module; None if there is no such module."""
    return _module_fact("cost", function, function.partition(":")[0])


def kwargs_fact(task: str, env_kwargs: Mapping[str, Any]) -> Fact | None:
    """The arguments of a task's constructor; None if there are none."""
    return ("env_kwargs", task, json.dumps(env_kwargs, sort_keys=True)) if env_kwargs else None


def data_fact(path: str) -> Fact:
    """A file of logged data."""
    return ("initial_data", os.path.realpath(path))


def facts_of(config: RunConfig) -> list[Fact]:
    """All that the configuration of a run names."""
    facts = [
        env_fact(config.task) if config.made_by == "id" else None,
        None if config.cost_function is None else cost_fact(config.cost_function),
        kwargs_fact(config.task, config.env_kwargs),
        data_fact(config.initial_data) if isinstance(config.initial_data, str) else None,
    ]
    return [fact for fact in facts if fact is not None]


def is_trusted(fact: Fact) -> bool:
    """Whether this user has named it."""
    return (_variable(), fact) in _named_here or fact in _remembered()


def was_another_file(fact: Fact) -> bool:
    """Whether this user has named a module or function of this name that led to other files."""
    return any(other[:2] == fact[:2] for other in _remembered())


def remember(facts: Iterable[Fact]) -> None:
    """Remember what the user has named. If that is not possible, a warning says so, and what follows from it."""
    new = {*facts}
    _named_here.update((_variable(), fact) for fact in new)
    with suppress(OSError, RuntimeError, Damaged):
        new -= _read(memory_file())
    if not new:
        return
    try:
        path = memory_file()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _held(path.parent):
            _add(path, new)
    except (OSError, RuntimeError, Damaged) as error:
        _warn(
            f"{', '.join(sorted(fact[1] for fact in new))} cannot be remembered ({_reason(error)}), so resume and evaluate will "
            f"ask for it again. Set {VARIABLE} to a file that can be written."
        )


def memory_file() -> Path:
    """The file that remembers: that of the variable `CAPAX_TRUSTED`, or one in the user's folder for the state of programs."""
    chosen = _variable()
    if chosen:
        if not os.path.isabs(chosen):
            raise Damaged(f"{VARIABLE}={chosen} is no absolute path")
        return Path(chosen).resolve()
    return (_state_home() / "capax" / NAME).resolve()


def _variable() -> str:
    return os.environ.get(VARIABLE, "")


def _state_home() -> Path:
    if sys.platform == "darwin":
        return Path("~/Library/Application Support").expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", "~/AppData/Local")).expanduser()
    folder = os.environ.get("XDG_STATE_HOME", "")
    return Path(folder) if os.path.isabs(folder) else Path("~/.local/state").expanduser()


def _module_fact(kind: str, name: str, module: str) -> Fact | None:
    located = modules.locate(module)
    return None if located is None else (kind, name, *located.files)


def _remembered() -> set[Fact]:
    """All that was remembered; nothing if the file cannot be used, with a warning that says why."""
    try:
        return _read(memory_file())
    except (OSError, RuntimeError, Damaged) as error:
        _warn(f"what you have named before is unknown ({_reason(error)}), so it has to be named again.")
        return set()


def _warn(message: str) -> None:
    terminal.warn(message, stacklevel=2)


def _reason(error: Exception) -> str:
    """Why the file cannot be used."""
    return str(error.strerror) if isinstance(error, OSError) and error.strerror else str(error)


def _read(path: Path) -> set[Fact]:
    """The facts of a file that nobody else can write."""
    try:
        with path.open("rb") as file:
            status, data = os.fstat(file.fileno()), file.read()
    except FileNotFoundError:
        return set()
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
        raise Damaged(f"others can write {path}")
    try:
        table = json.loads(data)
    except (ValueError, RecursionError):
        table = None
    facts = table.get("named") if isinstance(table, dict) and table.get("format") == FORMAT else None
    if not isinstance(facts, list) or not all(_is_fact(fact) for fact in facts):
        raise Damaged(f"{path} is damaged")
    return {tuple(fact) for fact in facts}


def _is_fact(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 1 and all(isinstance(part, str) for part in value)


def _add(path: Path, new: set[Fact]) -> None:
    """Add facts to the file, which appears whole or not at all, and is the user's alone. One that cannot be used is kept
    aside."""
    try:
        old = _read(path)
    except Damaged as error:
        aside = path.with_name(f"{path.name}.damaged")
        os.replace(path, aside)
        _warn(f"{error}, so it is {aside.name} now, and what you have named before has to be named again.")
        old = set()
    text = json.dumps({"format": FORMAT, "named": sorted(map(list, old | new))}, indent=1)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # readable by the user alone
    try:
        with open(handle, "w") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """A context in which no other process writes the file; where locks do not work, or another one hangs, without."""
    with (folder / f".{NAME}.lock").open("a") as file:
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while fcntl is not None and time.monotonic() < deadline:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.02)
            except OSError:
                break
        yield
