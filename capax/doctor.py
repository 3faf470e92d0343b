"""What does `capax doctor` say about this machine?"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from capax.machine import Level, Verdict, checks

MARKS = {"ok": "ok", "note": "", "missing": "--"}


class Finding(NamedTuple):
    """One thing that was looked at."""

    name: str
    level: Level
    """`missing` is needed; a `note` is only worth knowing."""
    found: str
    advice: str | None
    """What to do about it, in a sentence; None if nothing is to be done."""


def examine(folder: Path) -> list[Finding]:
    """Look at this machine, and at `folder` as a place for runs."""
    return [_finding(name, check) for name, check in checks(folder).items()]


def as_json(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """The findings as JSON has them."""
    return [finding._asdict() for finding in findings]


def page(findings: Sequence[Finding], width: int = 100) -> str:
    """The findings as text of 40 to 100 columns: a mark, the name, what was found, and below it the advice."""
    width = min(max(width, 40), 100)
    wide = max((len(finding.name) for finding in findings), default=0)
    margin = " " * (wide + 6)
    lines = []
    for name, level, found, advice in findings:
        lines += _wrap(found, width, f"{MARKS[level]:4}{name:{wide}}  ", margin)
        if advice is not None:
            lines += _wrap(advice, width, f"{margin}  ", f"{margin}  ")
    return "\n".join([*lines, "", *_wrap(_summary(findings), width, "", "")])


def _wrap(text: str, width: int, first: str, margin: str) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=margin, break_on_hyphens=False)


def _finding(name: str, check: Callable[[], Verdict]) -> Finding:
    """What a check finds; that it failed is a finding too."""
    try:
        level, found, advice = check()
    except Exception as error:
        level, found = "missing", f"this could not be looked at ({type(error).__name__}: {error})"
        advice = "Report it with what capax doctor --json prints."
    plain = "".join(letter for letter in " ".join(found.split()) if letter.isprintable())
    return Finding(name, level, plain if len(plain) <= 200 else f"{plain[:199]}…", advice)


def _summary(findings: Sequence[Finding]) -> str:
    levels = [finding.level for finding in findings]
    match levels.count("missing"):
        case 0:
            return f"Everything needed is here{'; lines without ok are worth a look' if 'note' in levels else ''}."
        case 1:
            return "1 thing is missing: see the line with --."
        case several:
            return f"{several} things are missing: see the lines with --."
