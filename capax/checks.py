"""Is what a user gave a number, a word or a flag of the wanted kind, and how is it shown where it is not?"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray as Array

from capax.errors import InputError

LARGEST = 2**31 - 1
"""Whole numbers go up to this: rows and steps are counted in 32 bits."""
ROOM = 64 * 2**30
"""Bytes that one array may have."""


def shown(value: Any, most: int = 60) -> str:
    """Its `repr` on one line, cut off where that is long."""
    try:
        text = repr(value)
    except Exception:  # an object of a user's, or a whole number of more digits than Python prints
        text = f"a value of type {type(value).__name__}"
    return one_line(text, most)


def said(error: BaseException) -> str:
    """The name of an exception and, in brackets and on one line, what it says."""
    try:
        text = one_line(str(error), 160).rstrip(" .")
    except Exception:
        text = ""
    return f"{type(error).__name__} ({text})" if text else type(error).__name__


def one_line(text: str, most: int) -> str:
    """Without line breaks, and cut off after `most` characters."""
    text = " ".join(text[: 4 * most].split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def is_number(value: Any) -> bool:
    """A whole or floating number of Python's or numpy's. A flag is none, nor is a length of time."""
    kinds = int | float | np.integer | np.floating
    return isinstance(value, kinds) and not isinstance(value, bool | np.timedelta64)


def whole(name: str, value: Any, least: int = 1, most: int = LARGEST) -> int:
    """A whole number from `least` to `most`; 3.0 is one."""
    exact = None
    if is_number(value):
        with suppress(OverflowError, ValueError):  # infinite, or NaN
            exact = int(value)
    if exact is not None and exact == value and least <= exact <= most:
        return exact
    wanted = f"from {least} to {most}" if exact is not None and exact > most else f">= {least}"
    raise InputError(f"{name} is {shown(value)}: give a whole number {wanted}.")


def number(name: str, value: Any, wanted: str, fits: Callable[[float], bool]) -> float:
    """A number that fits; `wanted` says in words which ones do."""
    if is_number(value):
        try:
            plain = float(value)
        except OverflowError:  # a whole number beyond what a float holds
            plain = math.inf if value > 0 else -math.inf
        if fits(plain):
            return plain
    raise InputError(f"{name} is {shown(value)}: give {wanted}.")


def between(low: float, high: float) -> Callable[[str, Any], float]:
    """The check of a number from `low` to `high`."""
    return partial(number, wanted=f"a number from {low:g} to {high:g}", fits=lambda x: low <= x <= high)


def above_0(most: float) -> Callable[[str, Any], float]:
    """The check of a number above 0 and at most `most`."""
    return partial(number, wanted=f"a number above 0, at most {most:g}", fits=lambda x: 0.0 < x <= most)


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise InputError(f"{name} is {shown(value)}: give True or False.")
    return bool(value)


def word(name: str, value: Any, choices: Sequence[str]) -> str:
    """One of the choices."""
    if not isinstance(value, str) or value not in choices:
        listed = f"{', '.join(choices[:-1])} or {choices[-1]}"
        raise InputError(f"{name} is {shown(value)}: choose {listed}.")
    return str(value)


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Up to three known names that a misspelt one may stand for, best first; capital letters do not matter."""
    lower = {key.lower(): key for key in known}
    return [lower[key] for key in difflib.get_close_matches(name[:100].lower(), lower, n=3, cutoff=0.5)]


def numbers(value: Any) -> Array:
    """A float64 copy of a number, or of an array or nested list of numbers; TypeError or ValueError where it is none.

    Words, dates, objects and complex numbers are none, although numpy would make floats of some of them; what is masked
    is NaN.
    """
    if isinstance(value, int | Fraction | Decimal):
        try:
            return np.array(float(value))
        except OverflowError:
            return np.array(np.inf)
    array = np.asarray(value.filled(np.nan) if isinstance(value, np.ma.MaskedArray) else value)
    if array.dtype.kind not in "biuf" and array.dtype.isbuiltin != 2:  # 2: bfloat16 and its like
        raise TypeError(f"{array.dtype} is no type of numbers")
    with np.errstate(all="ignore"):  # what float64 cannot hold is infinite
        return np.array(array, np.float64)


def room(sizes: Mapping[str, Any], *names: str, each: int = 4) -> None:
    """Refuse sizes whose product, an array of `each` bytes per entry, would not fit into any memory."""
    needed = each * math.prod(int(sizes[name]) for name in names)
    if needed > ROOM:
        product = " × ".join(f"{name} {sizes[name]}" for name in names)
        raise InputError(
            f"{product} is an array of {needed / 2**30:.3g} GiB: give smaller ones, of {ROOM // 2**30} GiB at most."
        )


def settle(settings: Any, check: Callable[[str, Any], Any], *names: str) -> None:
    """Check these fields of a frozen dataclass, and keep them as plain values; for its `__post_init__`."""
    for name in names:
        object.__setattr__(settings, name, check(name, getattr(settings, name)))
