"""Checks of what users pass in: numbers, words, flags and arrays, and how a wrong value is shown in a message."""

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

from capax.core.errors import InputError
from capax.runtime.terminal import printable

LARGEST = 2**31 - 1
"""Whole numbers go up to this: rows and steps are counted in 32 bits."""
MAX_ARRAY_BYTES = 64 * 2**30
"""Bytes that one array may have."""


def sparse_problem(matrix: Any) -> str | None:
    """What is wrong with the indices of a SciPy sparse array; None if all lie within its shape.

    SciPy computes with them unchecked, beyond the ends of its arrays.
    """
    try:
        if matrix.format in ("csr", "csc", "bsr"):
            matrix.check_format(full_check=True)
            starts = matrix.indptr
            if not (starts[1:] >= starts[:-1]).all():  # SciPy takes differences, which overflow
                return "its indptr falls"
        elif matrix.format == "coo":
            for axis, (places, size) in enumerate(zip(matrix.coords, matrix.shape, strict=True)):
                if len(places) != len(matrix.data):
                    return f"axis {axis} has {len(places)} indices for {len(matrix.data)} entries"
                if len(places) and (places.min() < 0 or places.max() >= size):
                    return f"its indices of axis {axis} are not all from 0 to {size - 1}"
        else:
            return sparse_problem(matrix.tocoo())
    except Exception as error:  # an array that was put together by hand may lack anything
        return error_text(error)
    return None


def short_repr(value: Any, max_chars: int = 60) -> str:
    """The `repr` of a value on one line, cut off after `max_chars` characters."""
    try:
        text = repr(value)
    except Exception:  # a user's object, or a whole number of more digits than Python prints
        text = f"a value of type {type(value).__name__}"
    return one_line(text, max_chars)


def error_text(error: BaseException) -> str:
    """The name of an exception and, in brackets, its message on one line."""
    try:
        text = one_line(str(error), 160).rstrip(" .")
    except Exception:
        text = ""
    return f"{type(error).__name__} ({text})" if text else type(error).__name__


def failure_text(error: BaseException) -> str:
    """The way in which user code failed: "raised ValueError (wrong)", "called sys.exit(0)"."""
    if isinstance(error, SystemExit):
        return f"called sys.exit({'' if error.code is None else short_repr(error.code)})"
    return f"raised {error_text(error)}"


def one_line(text: str, max_chars: int) -> str:
    """The text without line breaks and control characters, cut off after `max_chars` characters."""
    text = printable(" ".join(text[: 4 * max_chars].split()))
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"


def is_number(value: Any) -> bool:
    """Whether a value is a whole or floating number of Python or numpy. Flags and lengths of time are not numbers."""
    kinds = int | float | np.integer | np.floating
    return isinstance(value, kinds) and not isinstance(value, bool | np.timedelta64)


def whole(name: str, value: Any, least: int = 1, most: int = LARGEST) -> int:
    """The value as an int, if it is a whole number from `least` to `most`; 3.0 is one."""
    exact = None
    if is_number(value):
        with suppress(OverflowError, ValueError):  # infinite, or NaN
            exact = int(value)
    if exact is not None and exact == value and least <= exact <= most:
        return exact
    wanted = f"from {least} to {most}" if exact is not None and exact > most else f">= {least}"
    raise InputError(f"{name} is {short_repr(value)}: give a whole number {wanted}.")


def number(name: str, value: Any, wanted: str, fits: Callable[[float], bool]) -> float:
    """The value as a float, if it is a number that fits; `wanted` says in words which numbers fit."""
    if is_number(value):
        try:
            plain = float(value)
        except OverflowError:  # a whole number beyond what a float holds
            plain = math.inf if value > 0 else -math.inf
        if fits(plain):
            return plain
    raise InputError(f"{name} is {short_repr(value)}: give {wanted}.")


def between(low: float, high: float) -> Callable[[str, Any], float]:
    """The check of a number from `low` to `high`."""
    return partial(number, wanted=f"a number from {low:g} to {high:g}", fits=lambda x: low <= x <= high)


def flag(name: str, value: Any) -> bool:
    """The value as a bool, if it is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise InputError(f"{name} is {short_repr(value)}: give True or False.")
    return bool(value)


def word(name: str, value: Any, choices: Sequence[str]) -> str:
    """The value, if it is one of the choices."""
    if not isinstance(value, str) or value not in choices:
        listed = f"{', '.join(choices[:-1])} or {choices[-1]}"
        raise InputError(f"{name} is {short_repr(value)}: choose {listed}.")
    return str(value)


def nearest(name: str, choices: Iterable[str]) -> list[str]:
    """Up to three choices that a misspelt name may stand for, best first; capital letters do not matter."""
    lower = {choice.lower(): choice for choice in choices}
    return [lower[key] for key in difflib.get_close_matches(name[:100].lower(), lower, n=3, cutoff=0.5)]


def numbers(value: Any) -> Array:
    """A float64 copy of a number, or of an array or nested list of numbers; TypeError or ValueError for anything else.

    Words, dates, objects and complex numbers are refused, although numpy would make floats of some of them. Masked
    entries become NaN.
    """
    if isinstance(value, int | Fraction | Decimal):
        try:
            return np.array(float(value))
        except OverflowError:
            return np.array(np.inf)
    array = np.asarray(value.filled(np.nan) if isinstance(value, np.ma.MaskedArray) else value)
    if array.dtype.kind not in "biuf" and array.dtype.isbuiltin != 2:  # 2: bfloat16 and its like
        raise TypeError(f"{array.dtype} is not a type of numbers")
    with np.errstate(all="ignore"):  # what float64 cannot hold is infinite
        return np.array(array, np.float64)


def check_size(sizes: Mapping[str, Any], *names: str, each: int = 4) -> None:
    """Refuse sizes whose product, an array of `each` bytes per entry, would not fit into any memory."""
    needed = each * math.prod(int(sizes[name]) for name in names)
    if needed > MAX_ARRAY_BYTES:
        product = " × ".join(f"{name} {sizes[name]}" for name in names)
        raise InputError(
            f"{product} is an array of {needed / 2**30:.3g} GiB: give smaller ones, of "
            f"{MAX_ARRAY_BYTES // 2**30} GiB at most."
        )
