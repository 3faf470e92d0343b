"""Finds the generated places of a text, and fills them.

    <!-- figure: NAME ARGUMENT … -->what is generated<!-- /figure -->

A place that begins with a line break holds a block, for example a table; any other holds words within a sentence.
`<!-- fixed: REASON -->` above a table says why its numbers come from no run.
"""

from __future__ import annotations

import re
from collections.abc import Callable

PLACE = re.compile(r"(?<!`)(<!-- figure: (?P<name>[^>]*?) -->)(?P<text>.*?)(<!-- /figure -->)", re.DOTALL)
FIXED = re.compile(r"<!-- fixed: .+? -->\s*$")
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
FIRST_NUMBER = re.compile(r"[−-]?(?:\d[\d,]*)?\.?\d+(?![\w.])")
MAX_WORDS = 3
"""A cell that begins with a number and has more words is a sentence."""
CODE = re.compile(r"`[^`]*`")
MIN_NUMBERS = 6
"""A table with fewer cells that begin with a number is a table of words."""


def fill(text: str, render: Callable[[str], str]) -> str:
    """The text with every place filled anew."""

    def replace(match: re.Match[str]) -> str:
        new = render(match["name"])
        if match["text"].startswith("\n"):
            new = f"\n\n{new.strip()}\n\n"
        return f"{match[1]}{new}{match[4]}"

    return PLACE.sub(replace, text)


def names(text: str) -> list[str]:
    """The names of a text's places."""
    return [match["name"] for match in PLACE.finditer(text)]


def raw_lines(text: str) -> list[str]:
    """Lines that begin with a place within a sentence: Markdown would show the whole line as it is written."""
    return [line for line in text.splitlines() if line.startswith("<!-- figure: ") and "<!-- /figure -->" in line]


def copied_tables(text: str) -> list[str]:
    """The first lines of tables of numbers that are neither generated nor marked as fixed."""
    spans = [match.span() for match in PLACE.finditer(text)]
    copied = []
    for match in TABLE.finditer(text):
        generated = any(start <= match.start() < end for start, end in spans)
        if not generated and not FIXED.search(text[: match.start()]) and number_cells(match[0]) >= MIN_NUMBERS:
            copied.append(match[0].splitlines()[0])
    return copied


def number_cells(table: str) -> int:
    """The number of cells that begin with a number."""
    cells = [cell.strip(" *") for line in table.splitlines()[2:] for cell in CODE.sub("", line).split("|")]
    return sum(bool(FIRST_NUMBER.match(cell)) and len(re.findall(r"[^\W\d]+", cell)) <= MAX_WORDS for cell in cells)
