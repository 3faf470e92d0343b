"""The one way to the terminal: whatever text comes from elsewhere, no control character in it gets there.

Names, paths and messages of environments and foreign run folders may hold escape sequences, which move the cursor or set the
terminal's title, line breaks, which forge lines, and changes of the writing direction. All are shown as Python writes them,
such as \\x1b. Nothing else in capax prints.
"""

from __future__ import annotations

import sys
import unicodedata
import warnings
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text


def printable(text: str) -> str:
    """The text as one line that any terminal can show."""
    return text if text.isprintable() else "".join(map(_shown, text))


def printable_lines(text: str) -> str:
    """The same for a text of several lines."""
    return "\n".join(map(printable, text.split("\n")))


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    if character == "\t" or unicodedata.category(character) == "Zs":  # white space
        return " "
    return repr(character)[1:-1]


def say(text: object, *, error: bool = False) -> None:
    """Print one line on standard output, or on standard error."""
    print(printable(str(text)), file=sys.stderr if error else sys.stdout, flush=True)


def say_lines(text: str, *, error: bool = False) -> None:
    """Print a text of several lines."""
    print(printable_lines(text), file=sys.stderr if error else sys.stdout, flush=True)


def warn(message: str, stacklevel: int) -> None:
    """Issue a warning of Python, for whoever called this `stacklevel` - 1 functions further up."""
    warnings.warn(printable(message), RuntimeWarning, stacklevel=stacklevel + 1)


def line(text: object) -> Text:
    """One line of text for a table or a console."""
    return Text(printable(str(text)))


class CleanConsole(Console):
    """rich's console, which adds its own colours to text that holds no control characters. It reads no markup."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable_lines(segment.text), segment.style)
