"""What may a careless user or a broken environment hand over? Strategies for the fuzz, and what a refusal looks like."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from capax.errors import EnvironmentFailed, InputError


def cases(number: int) -> Any:
    """So many examples, the same ones in every run of the suite."""
    return settings(
        max_examples=number,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )


def refusal(call: Callable[[], Any], kinds: Any = InputError) -> Any:
    """What the call returns, or the text of its refusal, which must be a sentence of ours; any other exception passes."""
    try:
        return call()
    except kinds as error:
        text = str(error)
        assert text and "\n" not in text and text[-1] in ".?" and len(text) <= 400, text
        return Refused(text)


def mostly(usual: Any, odd: Any) -> Any:
    """The usual, and one time in four the odd: `one_of` would give each of the many oddities as much weight."""
    return st.sampled_from([usual, usual, usual, odd]).flatmap(lambda kind: kind)


class Refused(str):
    """A sentence that says what to change."""


class Mute:
    """Can neither be printed, nor compared, nor turned into a number."""

    def fail(self, *args: Any, **kwargs: Any) -> Any:
        raise KeyError("mute\nin two lines")

    __repr__ = __eq__ = __float__ = __int__ = __bool__ = __array__ = __len__ = __iter__ = fail  # type: ignore[assignment]
    __hash__ = object.__hash__


class Loud(Exception):
    """Fails even when asked what is wrong."""

    def __str__(self) -> str:
        raise ZeroDivisionError


class Wanting(dict[str, Any]):
    """A mapping that has everything and gives nothing."""

    def __contains__(self, key: object) -> bool:
        return True

    def __getitem__(self, key: str) -> Any:
        raise OSError("not mounted")


DTYPES = [
    "bool",
    "int8",
    "uint64",
    "int64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "object",
    "U3",
    "M8[s]",
    "m8[s]",
]
floats = st.one_of(
    st.sampled_from([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 1e-320, 1e-9, 1e30, 1e39, 1e200, 1.7e308]),
    st.floats(allow_nan=True, allow_infinity=True),
)
whole = st.one_of(st.integers(-3, 70), st.sampled_from([2**31, 2**63, 2**64, -(2**70), 10**400]))


@st.composite
def arrays(draw: Any, most: int = 3) -> Any:
    """A small array of any shape and kind."""
    shape = draw(st.lists(st.integers(0, most), max_size=3).map(tuple))
    fill = draw(st.sampled_from([0, 1, 2, -1, 0.5, np.nan, np.inf]))
    dtype = draw(st.sampled_from(DTYPES))
    with np.errstate(all="ignore"):
        return np.full(shape, fill).astype("i8" if dtype[0] in "bium" or "8" in dtype else "f8").astype(dtype)


scalars = st.one_of(
    st.none(), st.booleans(), whole, floats, st.text(max_size=8), st.binary(max_size=3),
    st.sampled_from(["1", "1e3", "nan", "mean", "auto", "paper", "\n"]), st.builds(lambda: "a" * 5000),
    st.integers(-2, 9).map(np.int64), st.integers(0, 9).map(np.uint8), floats.map(np.float64),
    st.sampled_from([
        np.float32(0.5), np.float16(np.inf), np.longdouble("1e4000"), np.bool_(True), np.complex64(1), 1j, np.str_("best"),
        np.datetime64("2020-01-01"), np.timedelta64(3, "s"), np.ma.masked, Decimal("1.5"), Decimal("sNaN"), Fraction(1, 3),
        datetime.date(2020, 1, 1), range(3), len, object(), Ellipsis, int, slice(1, 2),
    ]),
    st.builds(Mute),
)  # fmt: skip
anything = mostly(
    scalars,
    st.one_of(
        arrays(),
        st.lists(scalars, max_size=3),
        st.lists(st.lists(floats, max_size=2), max_size=2),
        st.dictionaries(st.text(max_size=3), scalars, max_size=2),
        st.tuples(scalars, scalars),
    ),
)
errors = st.one_of(
    st.sampled_from([ValueError, TypeError, KeyError, RuntimeError, OSError, AttributeError, StopIteration, MemoryError]),
    st.just(RecursionError),
).flatmap(lambda kind: st.text(max_size=300).map(kind)) | st.one_of(
    st.builds(Loud), st.builds(AssertionError), st.builds(EOFError),
    st.builds(InputError, st.just("A sentence of its own.")), st.builds(EnvironmentFailed, st.just("Its own sentence.")),
)  # fmt: skip
