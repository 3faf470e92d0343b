"""Settings that check themselves. A field's annotation says which values are accepted, its docstring what they
mean; `capax settings` prints it.

Example:

@dataclass(frozen=True)
class Sizes:
    layers: Annotated[int, Whole(1, 1000)] = 4
    \"""Hidden layers.\"""

    def __post_init__(self) -> None:
        settle(self)
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, get_args, get_type_hints

from capax.core.checks import LARGEST, between, flag, number, whole, word


class Check(Protocol):
    """The values that a setting accepts."""

    @property
    def wanted(self) -> str:
        """The accepted values in words, as in "a whole number >= 1"."""

    def __call__(self, name: str, value: Any) -> Any:
        """The value as a plain number, flag or word; InputError if it is not accepted."""


@dataclass(frozen=True)
class Whole:
    """A whole number from `least` to `most`."""

    least: int = 1
    most: int = LARGEST

    @property
    def wanted(self) -> str:
        return f"a whole number >= {self.least}" + ("" if self.most == LARGEST else f", at most {self.most}")

    def __call__(self, name: str, value: Any) -> int:
        return whole(name, value, self.least, self.most)


@dataclass(frozen=True)
class Between:
    """A number from `low` to `high`."""

    low: float
    high: float

    @property
    def wanted(self) -> str:
        return f"a number from {self.low:g} to {self.high:g}"

    def __call__(self, name: str, value: Any) -> float:
        return between(self.low, self.high)(name, value)


@dataclass(frozen=True)
class Above:
    """A number above `low`, at most `most` (or below `most`, if that is excluded)."""

    low: float = 0.0
    most: float = 1e9
    exclude_most: bool = False

    @property
    def wanted(self) -> str:
        return f"a number above {self.low:g}, {'below' if self.exclude_most else 'at most'} {self.most:g}"

    def __call__(self, name: str, value: Any) -> float:
        def fits(x: float) -> bool:
            return self.low < x and (x < self.most if self.exclude_most else x <= self.most)

        return number(name, value, self.wanted, fits)


@dataclass(frozen=True)
class Share:
    """A number from 0 to below 1."""

    wanted: str = "a number >= 0 and below 1"

    def __call__(self, name: str, value: Any) -> float:
        return number(name, value, self.wanted, lambda x: 0.0 <= x < 1.0)


@dataclass(frozen=True)
class Flag:
    """True or False."""

    wanted: str = "True or False"

    def __call__(self, name: str, value: Any) -> bool:
        return flag(name, value)


class OneOf:
    """One of some words."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices

    @property
    def wanted(self) -> str:
        return f"{', '.join(self.choices[:-1])} or {self.choices[-1]}"

    def __call__(self, name: str, value: Any) -> str:
        return word(name, value, self.choices)


class SettingInfo(NamedTuple):
    """A setting as `capax settings` prints it."""

    name: str
    default: Any
    wanted: str
    """The accepted values, in words."""
    meaning: str
    """The docstring of the field."""


@cache
def checks_of(cls: Any) -> dict[str, Check]:
    """The check of each annotated field."""
    hints = get_type_hints(cls, include_extras=True)
    checks = {name: [part for part in get_args(hint)[1:] if callable(part)] for name, hint in hints.items()}
    return {name: parts[0] for name, parts in checks.items() if parts}


def settle(settings: Any) -> None:
    """Check every annotated field of a frozen dataclass and store plain values; to be called in `__post_init__`."""
    cls: Any = type(settings)
    for name, check in checks_of(cls).items():
        object.__setattr__(settings, name, check(name, getattr(settings, name)))


@cache
def meanings(cls: Any) -> dict[str, str]:
    """The docstring under each field, on one line."""
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, TypeError, SyntaxError):  # a class of the user's without a file, such as one typed into a shell
        return {}
    assert isinstance(tree, ast.ClassDef)
    texts: dict[str, str] = {}
    for field, text in pairwise(tree.body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(meaning))):
                texts[name] = " ".join(meaning.split())
    return texts


def values_of(settings: Any) -> dict[str, Any]:
    """The settings of a dataclass instance and of its nested dataclasses, by name.

    Unlike `describe`, it parses no source: Python 3.11 may fail where several threads, such as lanes, parse at once.
    """
    values: dict[str, Any] = {}
    for field in fields(settings):
        value = getattr(settings, field.name)
        values |= values_of(value) if is_dataclass(value) else {field.name: value}
    return values


def describe(settings: Any) -> Iterator[SettingInfo]:
    """Every setting of a dataclass instance and of its nested dataclasses; defaults are the values of the instance."""
    cls: Any = type(settings)
    checks, texts = checks_of(cls), meanings(cls)
    for field in fields(settings):
        value = getattr(settings, field.name)
        if is_dataclass(value):
            yield from describe(value)
        else:
            wanted = checks[field.name].wanted if field.name in checks else ""
            yield SettingInfo(field.name, value, wanted, texts.get(field.name, ""))
