"""Settings check their values, keep plain ones, and describe themselves for `capax settings`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass, field, fields, is_dataclass, make_dataclass, replace
from typing import Annotated, Any

import numpy as np
import pytest

from capax.agents.pets import PetsSettings
from capax.agents.planet import PlanetSettings
from capax.agents.policy_gradient.settings import PolicyGradientSettings
from capax.core.errors import InputError
from capax.core.settings import (
    Above,
    Between,
    Check,
    Flag,
    OneOf,
    Share,
    Whole,
    checks_of,
    describe,
    meanings,
    settle,
    values_of,
)
from capax.kappa.damped import Damped
from capax.kappa.fixed import Fixed
from capax.kappa.rules import RULES
from capax.training.methods import settings_of
from capax.training.presets import setting_of

NAN, INF = math.nan, math.inf
HUGE = pytest.param(10**400, id="10^400")


# The checks.


@pytest.mark.parametrize(("check", "value", "plain"), [
    (Whole(), 1, 1), (Whole(), 3.0, 3), (Whole(), np.float32(4.0), 4), (Whole(), np.int64(5), 5), (Whole(0), -0.0, 0),
    (Whole(2, 5), 2, 2), (Whole(2, 5), 5, 5), (Whole(), 2**31 - 1, 2**31 - 1),
    (Between(-1.0, 1.0), -1, -1.0), (Between(-1.0, 1.0), np.float32(0.5), 0.5), (Between(0.0, INF), INF, INF),
    (Above(), 1e-300, 1e-300), (Above(), 1e9, 1e9), (Above(2.0, 3.0), np.int32(3), 3.0),
    (Above(0.0, 1.0, exclude_most=True), 0.999, 0.999),
    (Share(), 0, 0.0), (Share(), np.float64(0.999), 0.999),
    (Flag(), True, True), (Flag(), np.False_, False),
    (OneOf("mean", "best"), "best", "best"), (OneOf("mean", "best"), np.str_("mean"), "mean"),
])  # fmt: skip
def test_an_accepted_value_becomes_a_plain_one(check: Check, value: Any, plain: Any):
    result = check("size", value)
    assert result == plain and type(result) is type(plain)


@pytest.mark.parametrize("check", [Whole(), Between(0.0, 1.0), Above(), Share(), Flag(), OneOf("mean", "best")])
@pytest.mark.parametrize("value", [None, NAN, -INF, "1", [1], (1,), {}, 1j, np.zeros(2), np.timedelta64(1), object()])
def test_other_types_are_refused_with_the_accepted_values(check: Check, value: Any):
    with pytest.raises(InputError) as error:
        check("size", value)
    message = str(error.value)
    verb = "choose" if isinstance(check, OneOf) else "give"
    assert message.startswith("size is ") and message.endswith(f": {verb} {check.wanted}.") and "\n" not in message


@pytest.mark.parametrize(("check", "value", "message"), [
    (Whole(), 0, "size is 0: give a whole number >= 1."),
    (Whole(), 2.5, "size is 2.5: give a whole number >= 1."),
    (Whole(), True, "size is True: give a whole number >= 1."),
    (Whole(), 2**31, "size is 2147483648: give a whole number from 1 to 2147483647."),
    (Whole(2, 5), 1, "size is 1: give a whole number >= 2."),
    (Whole(2, 5), 6.0, "size is 6.0: give a whole number from 2 to 5."),
    (Between(-1.0, 1.0), 1.001, "size is 1.001: give a number from -1 to 1."),
    (Between(0.0, 1e9), -1e-9, "size is -1e-09: give a number from 0 to 1e+09."),
    (Between(0.0, 1.0), False, "size is False: give a number from 0 to 1."),
    (Above(), 0.0, "size is 0.0: give a number above 0, at most 1e+09."),
    (Above(), INF, "size is inf: give a number above 0, at most 1e+09."),
    (Above(0.0, 0.999999), 1, "size is 1: give a number above 0, at most 0.999999."),
    (Above(0.0, 1.0, exclude_most=True), 1.0, "size is 1.0: give a number above 0, below 1."),
    (Share(), 1.0, "size is 1.0: give a number >= 0 and below 1."),
    (Share(), -0.1, "size is -0.1: give a number >= 0 and below 1."),
    (Flag(), 1, "size is 1: give True or False."),
    (Flag(), "True", "size is 'True': give True or False."),
    (OneOf("mean", "best"), "BEST", "size is 'BEST': choose mean or best."),
    (OneOf("a", "b", "c"), "", "size is '': choose a, b or c."),
])  # fmt: skip
def test_a_value_out_of_range_is_refused_with_the_range(check: Check, value: Any, message: str):
    with pytest.raises(InputError) as error:
        check("size", value)
    assert str(error.value) == message


@pytest.mark.parametrize("check", [Whole(), Between(0.0, 1.0), Above(), Share()])
@pytest.mark.parametrize("value", [HUGE])
def test_a_number_beyond_any_float_is_refused_on_one_short_line(check: Check, value: int):
    with pytest.raises(InputError, match=r"^size is .*: give a .*\.$") as error:
        check("size", value)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(("check", "wanted"), [
    (Whole(), "a whole number >= 1"), (Whole(0, 9), "a whole number >= 0, at most 9"),
    (Between(0.0, 0.5), "a number from 0 to 0.5"), (Above(1.0, 2.0), "a number above 1, at most 2"),
    (Above(1.0, 2.0, exclude_most=True), "a number above 1, below 2"), (Share(), "a number >= 0 and below 1"),
    (Flag(), "True or False"), (OneOf("a", "b", "c"), "a, b or c"),
])  # fmt: skip
def test_a_check_names_its_range(check: Check, wanted: str):
    assert check.wanted == wanted


# Settings.


@dataclass(frozen=True)
class Inner:
    """Settings that are a part of others."""

    rate: Annotated[float, Above(0.0, 1.0)] = 0.1
    """How fast,
    on two lines."""

    def __post_init__(self) -> None:
        settle(self)


@dataclass(frozen=True)
class Outer:
    """Settings of all types, a part, and a field without a check."""

    inner: Inner = field(default_factory=Inner)
    size: Annotated[int, Whole()] = 2
    """How many."""
    share: Annotated[float, Share()] = 0.5
    fast: Annotated[bool, Flag()] = False
    """Whether."""
    plan: Annotated[str, OneOf("mean", "best")] = "mean"
    """Which."""
    note: Any = None
    """Anything."""

    def __post_init__(self) -> None:
        settle(self)


def test_values_are_those_that_describe_shows():
    for settings in (Outer(size=3), PetsSettings(), PlanetSettings(), PolicyGradientSettings()):
        assert list(values_of(settings).items()) == [(info.name, info.default) for info in describe(settings)]


def test_no_run_parses_source(monkeypatch):
    # Python 3.11 may fail in ast.parse where several threads call it at once, and lanes are threads
    monkeypatch.setattr("capax.core.settings.meanings", lambda cls: pytest.fail("source was parsed"))
    settings = settings_of("cap", "vector", "fast", {"horizon": 3})
    assert setting_of(settings, "horizon", 0) == 3 and setting_of(settings, "no such setting", 0) == 0


def test_settle_keeps_plain_values():
    note = [1, 2]
    outer = Outer(size=np.float64(3.0), share=np.float32(0.25), fast=np.True_, plan=np.str_("best"), note=note)
    values = [getattr(outer, name) for name in ("size", "share", "fast", "plan")]
    assert values == [3, 0.25, True, "best"]
    assert [type(value) for value in values] == [int, float, bool, str]
    assert outer.note is note  # a field without a check is not touched
    assert type(Outer(share=0).share) is float
    with pytest.raises(FrozenInstanceError):
        outer.size = 4  # type: ignore[misc]


def test_settle_checks_every_field_and_every_change():
    for changes, words in [
        ({"size": 0}, "size is 0: "), ({"share": 1.0}, "share is 1.0: "), ({"fast": 1}, "fast is 1: "),
        ({"plan": "worst"}, "plan is 'worst': "),
    ]:  # fmt: skip
        with pytest.raises(InputError) as error:
            Outer(**changes)
        assert str(error.value).startswith(words)
        with pytest.raises(InputError):
            replace(Outer(), **changes)


def test_only_annotated_fields_have_a_check():
    assert checks_of(Outer) == {
        "size": Whole(), "share": Share(), "fast": Flag(), "plan": checks_of(Outer)["plan"],
    }  # fmt: skip
    assert list(checks_of(Inner)) == ["rate"]


def test_describe_lists_every_setting_with_its_own_value():
    assert list(describe(Outer(inner=Inner(0.3), size=7))) == [
        ("rate", 0.3, "a number above 0, at most 1", "How fast, on two lines."),
        ("size", 7, "a whole number >= 1", "How many."),
        ("share", 0.5, "a number >= 0 and below 1", ""),
        ("fast", False, "True or False", "Whether."),
        ("plan", "mean", "mean or best", "Which."),
        ("note", None, "", "Anything."),
    ]


def test_a_class_without_source_has_no_meanings():
    typed = make_dataclass("Typed", [("size", Annotated[int, Whole()], 2)], frozen=True)
    assert meanings(typed) == {}
    assert list(describe(typed())) == [("size", 2, "a whole number >= 1", "")]


# The settings of capax.


def leaves(settings: Any) -> Iterator[tuple[str, Any]]:
    """Name and value of every field, those of nested dataclasses included."""
    for item in fields(settings):
        value = getattr(settings, item.name)
        yield from leaves(value) if is_dataclass(value) else [(item.name, value)]


SETTINGS = {
    "pets": PetsSettings(),
    "planet": PlanetSettings(),
    "policy gradient": PolicyGradientSettings(),
    "fixed": Fixed(0.1),
    "damped": Damped(),
    **{f"{name}, {kind}": rule(kind, 0.02) for name, rule in RULES.items() for kind in ("vector", "image", "finite")},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_has_a_meaning_a_range_and_a_default_within_it(name):
    settings = SETTINGS[name]
    infos = list(describe(settings))
    assert [(info.name, info.default) for info in infos] == list(leaves(settings)) and infos
    for info in infos:
        assert info.wanted and info.meaning.endswith("."), info
        assert "\n" not in info.meaning + info.wanted


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_hold_plain_values(name):
    for setting, value in leaves(SETTINGS[name]):
        assert type(value) in (int, float, bool, str), setting


@pytest.mark.parametrize("name", ["pets", "planet"])
def test_nested_settings_are_all_found(name):
    names = [info.name for info in describe(SETTINGS[name])]
    assert {"population", "horizon", "start_steps", "gamma", "batch"} <= set(names)
    assert len(set(names)) == len(names)  # `--set` names a setting without its part
