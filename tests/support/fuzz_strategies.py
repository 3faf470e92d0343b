"""Strategies for values from a careless user or a broken environment, and a check of their refusal."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import scipy.sparse as sp
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from capax.core.errors import EnvironmentFailed, InputError


def cases(number: int) -> Any:
    """This number of examples, the same ones in every run of the tests."""
    return settings(
        max_examples=number,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )


def refusal(call: Callable[[], Any], kinds: Any = InputError) -> Any:
    """The result of a call, or the text of its refusal, which must be one sentence. Any other exception passes."""
    try:
        return call()
    except kinds as error:
        text = str(error)
        assert text and "\n" not in text and text[-1] in ".?" and len(text) <= 400, text
        return Refused(text)


def mostly(usual: Any, odd: Any) -> Any:
    """The usual strategy, and one time in four the odd one: `one_of` would give each odd value as much weight."""
    return st.sampled_from([usual, usual, usual, odd]).flatmap(lambda kind: kind)


class Refused(str):
    """A sentence that says what to change."""


class Unusable:
    """An object that cannot be printed, compared or turned into a number."""

    def fail(self, *args: Any, **kwargs: Any) -> Any:
        raise KeyError("mute\nin two lines")

    __repr__ = __eq__ = __float__ = __int__ = __bool__ = __array__ = __len__ = __iter__ = fail  # type: ignore[assignment]
    __hash__ = object.__hash__


class Masked:
    """An object that hides what it is: even `isinstance` fails."""

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise OSError("no class")

    @__class__.setter
    def __class__(self, kind: Any) -> None: ...


class BrokenNumber(float):
    """A number with which nothing can be computed."""

    def fail(self, *args: Any) -> Any:
        raise ArithmeticError("broken")

    __abs__ = __float__ = __le__ = __lt__ = __gt__ = __ge__ = __add__ = __bool__ = __repr__ = fail  # type: ignore[assignment]


class BrokenTuple(tuple[Any, ...]):
    """A tuple of which one can see that it is one, and nothing more."""

    def __len__(self) -> int:
        raise IndexError("no length")

    def __getitem__(self, place: Any) -> Any:
        raise IndexError("no items")


class NoisyArray:
    """An array that warns whenever it is read."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        warnings.warn("this array is old", FutureWarning, stacklevel=1)
        return np.zeros(2)


class UnprintableError(Exception):
    """An error whose message cannot be printed."""

    def __str__(self) -> str:
        raise ZeroDivisionError


class UnreadableMapping(dict[str, Any]):
    """A mapping that seems to have every key, but cannot be read."""

    def __contains__(self, key: object) -> bool:
        return True

    def __getitem__(self, key: str) -> Any:
        raise OSError("not mounted")


class UnsearchableMapping(dict[str, Any]):
    """A mapping that cannot even be asked for its keys."""

    def fail(self, *args: Any) -> Any:
        raise LookupError("the index is gone")

    __contains__ = __iter__ = __getitem__ = get = keys = items = fail  # type: ignore[assignment]


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
def arrays(draw: Any, max_size: int = 3) -> Any:
    """A small array of any shape and type, with at most `max_size` rows along each axis."""
    shape = draw(st.lists(st.integers(0, max_size), max_size=3).map(tuple))
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
    st.builds(Unusable),
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
HOSTILE = [
    jnp.float32(0.5), jnp.bfloat16(2.0), jnp.zeros(2), jr.key(0), sp.csr_array(np.eye(2)), np.ma.masked_all(2),
    np.array([[1.0], [2.0]]), np.array([object(), 1], object), np.zeros(2, [("a", float)]), -(10**400), -0.0,
    Unusable(), Masked(), BrokenNumber(), BrokenTuple(), NoisyArray(), UnreadableMapping(), UnsearchableMapping(),
]  # fmt: skip
"""What no careless user has, but an environment may return: foreign arrays, and objects that break when they are looked at."""
hostile = st.integers(0, len(HOSTILE) - 1).map(lambda place: HOSTILE[place])
errors = st.one_of(
    st.sampled_from([ValueError, TypeError, KeyError, RuntimeError, OSError, AttributeError, StopIteration, MemoryError]),
    st.just(RecursionError),
).flatmap(lambda kind: st.text(max_size=300).map(kind)) | st.one_of(
    st.builds(UnprintableError), st.builds(AssertionError), st.builds(EOFError),
    st.builds(InputError, st.just("A sentence of its own.")), st.builds(EnvironmentFailed, st.just("Its own sentence.")),
)  # fmt: skip
