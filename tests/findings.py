"""The machines that the tests of `capax doctor` share, and what is to be found on them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

from capax import apart, machine


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the variables that the checks look at is set."""
    for name in (*machine.DRAWING, *machine.HIDING, "IMAGEIO_FFMPEG_EXE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Sets what the processes answer: one value for all, or a function of what they are asked."""

    def choose(answer: Any) -> None:
        def ask(function: Any, *arguments: str, without: Any = ()) -> Any:
            said = answer(function, without) if callable(answer) else answer
            if isinstance(said, Exception):
                raise said
            return said

        monkeypatch.setattr(apart, "ask", ask)

    return choose


def absent(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """As if these modules were not installed, for this process."""
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)


def advised(verdict: machine.Verdict, level: str) -> str:
    """The advice of a verdict of this level, which is a sentence."""
    found_level, found, advice = verdict
    assert found_level == level and found and advice is not None
    assert re.fullmatch(r"[A-Z].*[^.]\.", advice)
    return advice


def fine(verdict: machine.Verdict) -> str:
    """What was found by a check that has nothing to advise."""
    level, found, advice = verdict
    assert level == "ok" and advice is None
    return found
