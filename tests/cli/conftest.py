"""Fixtures for the tests of the commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from capax.cli.main import main


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs `capax` with some arguments and returns the one line on stderr with which it refuses them."""

    def run(*arguments: str, code: int = 2) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([*arguments])
        out, err = capsys.readouterr()
        assert stop.value.code == code and out == "", err
        line = err.splitlines()[-1]
        assert line.startswith("capax: ") and line.endswith((".", "?")) and "Traceback" not in err
        if code == 2:
            assert err.count("\n") == 1
        return line.removeprefix("capax: ")

    return run


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder of the test; modules in it can be imported until the test ends."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name, module in [*sys.modules.items()]:
        if Path(getattr(module, "__file__", None) or "/").is_relative_to(tmp_path):
            del sys.modules[name]
