"""Numbers as the pages write them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from capax.reporting.intervals import Interval


def number(value: float, digits: int = 0) -> str:
    """A number with separators, so many decimal places, and a proper minus sign."""
    text = f"{value:,.{digits}f}"
    return "−" + text[1:] if text.startswith("-") and text.strip("-0.,") else text.lstrip("-")


def places(*values: float) -> int:
    """Decimal places that suit the size of numbers."""
    largest = max(map(abs, values))
    return 0 if largest >= 100 else 1 if largest >= 10 else 2


def interval(value: Interval, digits: int | None = None) -> str:
    """A centre with its limits in brackets."""
    digits = places(*value) if digits is None else digits
    return f"{number(value.centre, digits)} [{number(value.low, digits)}, {number(value.high, digits)}]"


def percent(value: Interval, digits: int = 1) -> str:
    """A share with its limits, in percent."""
    low, high = (number(100.0 * x, digits) for x in (value.low, value.high))
    return f"{number(100.0 * value.centre, digits)} % [{low}, {high}]"


def listed(values: Iterable[float], digits: int = 0) -> str:
    """Numbers one after the other."""
    return ", ".join(number(value, digits) for value in values)


def seeds(numbers: Sequence[int]) -> str:
    """How many seeds, and which. One is called one."""
    count = "one seed" if len(numbers) == 1 else f"{len(numbers)} seeds"
    return f"{count} ({', '.join(map(str, numbers))})"


def table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    rows = [list(headings), ["---"] * len(headings), *map(list, lines)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows) + "\n"
