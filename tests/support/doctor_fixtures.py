"""Fixtures and checks for the tests of `capax doctor`: replaced answers, missing modules, verdicts."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

from capax.cli import machine
from capax.runtime import isolated


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset all variables that the checks look at."""
    for name in (*machine.DRAWING_VARIABLES, *machine.DEVICE_VARIABLES, "IMAGEIO_FFMPEG_EXE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Replaces the answers of isolated calls: by one value, or by a function of the call. An exception is raised."""

    def replace(answer: Any) -> None:
        def call(function: Any, *arguments: str, without: Any = ()) -> Any:
            value = answer(function, without) if callable(answer) else answer
            if isinstance(value, Exception):
                raise value
            return value

        monkeypatch.setattr(isolated, "call", call)

    return replace


def hide_modules(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """Make this process believe that these modules are not installed."""
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)


def advice_of(verdict: machine.Verdict, level: str) -> str:
    """The advice of a verdict, which must have this level and give advice in one sentence."""
    verdict_level, description, advice = verdict
    assert verdict_level == level and description and advice is not None
    assert re.fullmatch(r"[A-Z].*[^.]\.", advice)
    return advice


def description_of(verdict: machine.Verdict) -> str:
    """The description of a verdict, which must have the level "ok" and no advice."""
    level, description, advice = verdict
    assert level == "ok" and advice is None
    return description
