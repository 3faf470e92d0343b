"""Names of figures, and the functions that write them."""

from __future__ import annotations

from collections.abc import Callable

FIGURES: dict[str, Callable[..., str]] = {}
"""What writes each figure, by its name."""


def figure(function: Callable[..., str]) -> Callable[..., str]:
    """Give a function's figure the function's name, with hyphens."""
    FIGURES[function.__name__.replace("_", "-")] = function
    return function


def render(name: str) -> str:
    """The text of a figure: its name and the words that follow it."""
    word, *arguments = name.split()
    if word not in FIGURES:
        raise ValueError(f"there is no figure {word!r}: choose one of {', '.join(sorted(FIGURES))}")
    return FIGURES[word](*arguments)
