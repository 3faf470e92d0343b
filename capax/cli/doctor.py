"""`capax doctor`: runs the checks of this machine and prints what they find."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from capax.cli.machine import Level, Verdict, checks
from capax.core.checks import one_line

MARKS = {"ok": "ok", "note": "", "missing": "--"}
MAX_LETTERS = 200
"""Longer descriptions are cut off."""


class Finding(NamedTuple):
    """The result of one check."""

    name: str
    level: Level
    """`missing`: capax needs it. `note`: good to know, and nothing more."""
    found: str
    """Result of the check, in a few words."""
    advice: str | None
    """Advice in one sentence; None if there is nothing to do."""


def examine(folder: Path) -> list[Finding]:
    """Check this machine, and `folder` as a place for runs."""
    return [_finding(name, check) for name, check in checks(folder).items()]


def as_json(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """The findings for JSON."""
    return [finding._asdict() for finding in findings]


def page(findings: Sequence[Finding], width: int = 100) -> str:
    """The findings as text of 40 to 100 columns: mark, name and description, and the advice below them."""
    width = min(max(width, 40), 100)
    name_width = max((len(finding.name) for finding in findings), default=0)
    margin = " " * (name_width + 6)
    lines = []
    for name, level, description, advice in findings:
        lines += _wrap(description, width, f"{MARKS[level]:4}{name:{name_width}}  ", margin)
        if advice is not None:
            lines += _wrap(advice, width, f"{margin}  ", f"{margin}  ")
    return "\n".join([*lines, "", *_wrap(_summary(findings), width, "", "")])


def _wrap(text: str, width: int, first: str, margin: str) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=margin, break_on_hyphens=False)


def _finding(name: str, check: Callable[[], Verdict]) -> Finding:
    """The finding of a check. A check that raises gives a finding too."""
    try:
        level, description, advice = check()
    except Exception as error:
        level, description = "missing", f"the check failed ({type(error).__name__}: {error})"
        advice = "Report it with the output of capax doctor --json."
    return Finding(name, level, one_line(description, MAX_LETTERS), advice)


def _summary(findings: Sequence[Finding]) -> str:
    levels = [finding.level for finding in findings]
    match levels.count("missing"):
        case 0:
            return f"Everything needed is here{'; lines without ok are worth a look' if 'note' in levels else ''}."
        case 1:
            return "1 thing is missing: see the line with --."
        case number:
            return f"{number} things are missing: see the lines with --."
