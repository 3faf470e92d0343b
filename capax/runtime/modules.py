"""Modules by their names: found without running code, and imported from the current folder only after everything else.

A command may use modules of the current folder. But that folder may hold anything: a downloaded run, a file with the name of
a library, a plugin. So it is the last place on the path, it is there only if a module that the user trusts lies in it, and
whatever looks for plugins has looked before.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import NamedTuple

SAFE_PATH = "PYTHONSAFEPATH"
"""With this variable, a Python process that starts does not look for modules in the current folder."""
_offered: str | None = None
"""The folder that a command finds modules in, after all others."""


class Located(NamedTuple):
    """Where a module is."""

    files: tuple[str, ...]
    """The real path of its file, after those of the packages that it lies in. Empty for what has no file, such as a folder
    without code."""
    here: bool
    """It is in the current folder, which is not on the path."""


@contextmanager
def current_folder_offered() -> Iterator[None]:
    """A context in which modules of the current folder are found, after all others. The path is as it was."""
    global _offered
    before = _offered
    with suppress(FileNotFoundError):  # it was removed
        _offered = os.getcwd()
    try:
        yield
    finally:
        _offered = before


def locate(name: str) -> Located | None:
    """The files that `import name` would run, or None if there is no such module. Nothing is imported, no package either."""
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    importlib.invalidate_caches()
    files = _files(parts, _found_anywhere(parts[0]))
    if files is not None:
        return Located(files, here=False)
    files = None if _offered is None else _files(parts, PathFinder.find_spec(parts[0], [_offered]))
    return None if files is None else Located(files, here=True)


def import_named(name: str) -> ModuleType:
    """The module of a name. If it is in the current folder, that folder is on the path from now on, as the last one."""
    located = locate(name)
    if located is not None and located.here:
        _open_current_folder()
    return importlib.import_module(name)


@contextmanager
def safe_children() -> Iterator[None]:
    """A context in which Python processes that start do not look for modules in the current folder."""
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        os.environ.pop(SAFE_PATH, None)
        if before is not None:
            os.environ[SAFE_PATH] = before


def _open_current_folder() -> None:
    """Put the current folder on the path, after JAX has loaded its plugins and MuJoCo's window library was found."""
    import jax

    if _offered is None or _offered in sys.path:
        return
    jax.devices()
    if PathFinder.find_spec("glfw") is not None:
        with safe_children():  # it starts a process to look at its library
            importlib.import_module("glfw")
    sys.path.append(_offered)


def _found_anywhere(name: str) -> ModuleSpec | None:
    """Ask the finders of this process for a module that is in no package."""
    for finder in sys.meta_path:
        spec = finder.find_spec(name, None)
        if spec is not None:
            return spec
    return None


def _files(parts: Sequence[str], spec: ModuleSpec | None) -> tuple[str, ...] | None:
    """The files of a module and of its packages; `spec` is that of the outermost one."""
    files: list[str] = []
    places: list[str] = []
    for number, part in enumerate(parts):
        module = sys.modules.get(".".join(parts[: number + 1]))
        path: Iterable[str] | None
        if isinstance(module, ModuleType):
            file, path = vars(module).get("__file__"), vars(module).get("__path__")
        else:
            if number:
                spec = PathFinder.find_spec(part, places)  # the whole name would ask for the imported package
            if spec is None:
                return None
            file, path = spec.origin if spec.has_location else None, spec.submodule_search_locations
        if path is None and number + 1 < len(parts):
            return None
        files.append("" if file is None else os.path.realpath(file))
        places = [*(path or ())]
    return tuple(files)
