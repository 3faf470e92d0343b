"""Modules are located without running code, and imported from the current folder only after everything else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from capax.runtime import modules
from capax.runtime.modules import Located, current_folder_offered, import_named, locate, safe_children


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, which is not on the path. The path is as before when the test ends, and its modules are gone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in ("twice", "only_mine", "also_mine"):
        sys.modules.pop(name, None)


def write(path: Path, code: str = "raise AssertionError('this was run')") -> str:
    """Write a module, and the folders that it lies in. Returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code)
    return str(path)


def test_a_module_and_its_packages_are_located_without_running_them(folder):
    package, module = write(folder / "outer" / "__init__.py"), write(folder / "outer" / "inner" / "leaf.py")
    sys.path.append(str(folder))
    assert locate("outer.inner.leaf") == Located((package, "", module), here=False)
    assert locate("outer.inner") == Located((package, ""), here=False)
    assert not any(name.startswith("outer") for name in sys.modules)


@pytest.mark.parametrize(
    "name", ["", ".", "..outer", "outer.", "outer..leaf", "outer/leaf", "outer.nothing", "leaf", "outer.leaf.x"]
)
def test_what_is_no_module_is_not_located(folder, name):
    write(folder / "outer" / "leaf.py")
    sys.path.append(str(folder))
    assert locate(name) is None


def test_the_current_folder_is_searched_last_and_only_if_a_command_offers_it(folder):
    write(folder / "json.py")
    mine = write(folder / "only_mine.py")
    assert locate("only_mine") is None
    with current_folder_offered():
        assert locate("only_mine") == Located((mine,), here=True)
        assert locate("json") == Located((json.__file__,), here=False)
    assert locate("only_mine") is None and str(folder) not in sys.path


def test_the_file_behind_a_link_is_located(folder):
    real = write(folder / "elsewhere" / "real.py")
    (folder / "linked.py").symlink_to(real)
    sys.path.append(str(folder))
    assert locate("linked") == Located((real,), here=False)


def test_a_module_that_is_imported_already_has_the_file_that_it_was_imported_from(folder):
    first, second = write(folder / "one" / "twice.py", ""), write(folder / "two" / "twice.py", "")
    sys.path.append(str(folder / "one"))
    import_named("twice")
    sys.path.insert(0, str(folder / "two"))
    assert locate("twice") == Located((first,), here=False)
    del sys.modules["twice"]
    assert locate("twice") == Located((second,), here=False)


def test_the_current_folder_is_put_on_the_path_last_and_only_for_its_own_modules(folder, monkeypatch):
    paths = []
    monkeypatch.setattr(jax, "devices", lambda: paths.append([*sys.path]))  # here JAX looks for plugins
    write(folder / "only_mine.py", "import also_mine")
    write(folder / "also_mine.py", "")
    before = [*sys.path]
    with current_folder_offered():
        import_named("json")
        assert sys.path == before and not paths
        import_named("only_mine")
        assert sys.path == [*before, str(folder)] and paths == [before]


def test_a_folder_that_was_removed_is_not_offered(folder, monkeypatch):
    gone = folder / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with current_folder_offered():
        assert locate("only_mine") is None
        assert modules._offered is None
    monkeypatch.chdir(folder)


def test_children_do_not_look_into_the_current_folder_first(folder, monkeypatch):
    write(folder / "json.py", "print('run')")
    command = [sys.executable, "-c", "import json"]
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    with safe_children():
        assert subprocess.run(command, capture_output=True, text=True).stdout == ""
    assert "PYTHONSAFEPATH" not in os.environ
    assert subprocess.run(command, capture_output=True, text=True).stdout == "run\n"
    monkeypatch.setenv("PYTHONSAFEPATH", "yes")
    with safe_children():
        pass
    assert os.environ["PYTHONSAFEPATH"] == "yes"
