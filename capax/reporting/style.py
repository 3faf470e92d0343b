"""Pictures that look the same everywhere, and in which a text of a run folder is only a text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import matplotlib

from capax.runtime.terminal import printable


@contextmanager
def own_style() -> Iterator[None]:
    """A context with Matplotlib's own settings. Those of a `matplotlibrc` may lie in the current folder, and may let LaTeX, which
    reads files, set the texts of a picture."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        yield


def plain(text: str) -> str:
    """The text, of which nothing is read as a formula. Matplotlib prints the characters that it cannot draw."""
    return printable(text).replace("$", r"\$")
