"""Settings are checked before anything is computed, and a refusal says in one sentence what to change."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from capax.agents.pets import PetsSettings
from capax.agents.planet import PlanetSettings
from capax.core.checks import error_text, numbers, short_repr, whole
from capax.core.errors import InputError
from capax.models.ensemble import EnsembleSettings
from capax.planning.ccem import CEM
from capax.training.methods import METHODS, settings_of
from capax.training.presets import MAX_LISTED, changed

# A preset with changes.


def cap_settings(preset: Any = "paper", changes: Any = None) -> PetsSettings:
    """The settings of CAP for vectors."""
    return settings_of("cap", "vector", preset, changes)


def check_refused(*words: str, preset: Any = "paper", settings: Any = None) -> None:
    """Check that settings are refused, in these words."""
    with pytest.raises(InputError) as error:
        cap_settings(preset, settings)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_changes_reach_the_part_that_they_belong_to():
    settings = cap_settings(
        "fast", {"population": np.int64(80), "hidden": 1e2, "floor": 1, "exact": np.True_, "gamma": 0.5}
    )
    ensemble, cem = settings.ensemble, settings.cem
    assert (cem.population, ensemble.hidden, ensemble.floor) == (80, 100, 1.0)
    assert (ensemble.exact, settings.gamma) == (True, 0.5)
    types = [type(value) for value in (cem.population, ensemble.hidden, ensemble.floor, ensemble.exact)]
    assert types == [int, int, float, bool]


def test_the_preset_paper_is_the_defaults():
    assert cap_settings("paper") == cap_settings("paper", {}) == METHODS["cap"].settings["vector"] == PetsSettings()


@pytest.mark.parametrize("settings", [PetsSettings(), PlanetSettings()])
def test_a_name_belongs_to_one_part_alone(settings):
    parts = [part for part in vars(settings).values() if is_dataclass(part)]
    names = [field.name for part in (settings, *parts) for field in fields(part)]
    assert len(parts) == 2 and len(names) == len(set(names))


def test_a_misspelt_preset_is_answered_with_the_nearest():
    check_refused("there is no preset 'Paper': did you mean paper?", preset="Paper")


@pytest.mark.parametrize("preset", ["slow", [], {}, None, 3, np.zeros(2)])
def test_other_presets_are_refused(preset):
    check_refused("there is no preset ", ": choose paper, fast, published.", preset=preset)


@pytest.mark.parametrize("settings", [5, "population=3", [("population", 3)], {"population"}])
def test_what_is_no_mapping_is_refused(settings):
    check_refused("settings is ", ": give names with values, as in {'population': 200}.", settings=settings)


@pytest.mark.parametrize(("name", "meant"), [
    ("popuation", "population"), ("Population", "population"), ("learningrate", "learning_rate"), ("lr_updates", "least_upd"),
])  # fmt: skip
def test_an_unknown_name_is_answered_with_the_nearest(name, meant):
    check_refused(f"there is no setting {name!r}: did you mean ", meant, "?", settings={name: 3})


@pytest.mark.parametrize("name", ["zzz", "", 5, None, ("population",), "x" * 1000])
def test_a_name_that_is_near_to_nothing_is_answered_with_where_all_are(name):
    check_refused("there is no setting ", ": capax settings lists them.", settings={name: 3})


def test_a_method_with_few_settings_names_them():
    assert len(vars(CEM())) <= MAX_LISTED
    with pytest.raises(InputError, match=r"^there is no setting 'zzz': choose horizon, iterations, .*, execute\.$"):
        changed(CEM(), {"zzz": 1})


@pytest.mark.parametrize(("settings", "message"), [
    ({"buffer": 200}, "buffer is 200, less than batch, 256: give at least that many."),
    ({"buffer": 500}, "buffer is 500, less than start_steps, 1000: give at least that many."),
    ({"buffer": 1500, "fit_every": 2000}, "buffer is 1500, less than fit_every, 2000: give at least that many."),
    ({"start_steps": 1}, "start_steps is 1: give a whole number >= 2."),
    ({"gamma": 0.0}, "gamma is 0.0: give a number above 0, at most 0.999999."),
    ({"gamma": "0.9"}, "gamma is '0.9': give a number above 0, at most 0.999999."),
    ({"keep": 0.01}, "keep is 0.01 of 50 elites, which is none: give 0, or at least 0.02."),
    ({"elites": 501}, "elites is 501, more than the population of 500: give fewer."),
    ({"members": 7}, "particles is 20: give a multiple of the 7 members."),
    ({"population": 10**6, "horizon": 1000}, "population 1000000 × particles 20 × horizon 1000 is an array of 74.5 GiB"),
    ({"population": 10**5, "exact": True, "hidden": 2000},
     "population 100000 × particles 20 × hidden 2000 × members 5 is an array of 74.5 GiB"),
])  # fmt: skip
def test_sizes_that_contradict_each_other_are_refused(settings, message):
    check_refused(message, settings=settings)


def test_a_preset_may_keep_none_of_few_elites():
    assert cap_settings("fast", {"elites": 2}).cem.keep == 0.3
    assert cap_settings("paper", {"keep": 0.02}).cem.keep == 0.02


@pytest.mark.parametrize("parts", [{"ensemble": {}}, {"cem": None}, {"ensemble": CEM()}])
def test_parts_are_settings(parts):
    with pytest.raises(InputError, match=r"give EnsembleSettings\(\.\.\.\) and CEM\(\.\.\.\)\.$"):
        PetsSettings(**parts)


def test_settings_can_be_large():
    EnsembleSettings(members=1, hidden=10**6, layers=1, particles=1, batch=16)  # 2 million weights: no square of them
    cap_settings("paper", {"population": 20_000, "horizon": 100, "buffer": 10**8})


# How a value is read and shown.


@pytest.mark.parametrize("value", [3, 3.0, np.int8(3), np.float16(3), np.uint64(3), np.longdouble(3)])
def test_whole_numbers_of_any_kind_are_taken(value):
    assert whole("n", value) == 3 and type(whole("n", value)) is int


@pytest.mark.parametrize("value", [
    0, -1, 2.5, True, np.True_, "3", None, [3], np.array(3), np.nan, np.inf, 2**31, 1e300, 1j, np.timedelta64(3, "s"),
])  # fmt: skip
def test_what_is_no_whole_number_is_refused(value):
    with pytest.raises(InputError, match=r"^n is .*: give a whole number (>= 1|from 1 to 2147483647)\.$"):
        whole("n", value)


def test_values_are_shown_on_one_line():
    class Mute:
        def __repr__(self) -> str:
            raise KeyError

    assert short_repr("a\nb") == r"'a\nb'" and short_repr(np.zeros((2, 2))) == "array([[0., 0.], [0., 0.]])"
    assert short_repr(Mute()) == "a value of type Mute" and short_repr(10**5000) == "a value of type int"
    assert len(short_repr("a" * 1000)) == 60 and short_repr("a" * 1000)[-1] == "…"


def test_errors_are_shown_on_one_line():
    assert error_text(ValueError("it\n broke.")) == "ValueError (it broke)" and error_text(ValueError()) == "ValueError"
    assert re.fullmatch(r"KeyError \('x{158}…\)", error_text(KeyError("x" * 999)))


@pytest.mark.parametrize(("value", "expected"), [
    (3, 3.0), (True, 1.0), (Fraction(1, 4), 0.25), (Decimal("1.5"), 1.5), ([1, 2.5], [1.0, 2.5]), (np.float16(2), 2.0),
    (10**400, np.inf), (2**64, 2.0**64), (np.ma.masked_equal([1.0, 2.0], 2.0), [1.0, np.nan]),
])  # fmt: skip
def test_numbers_are_read(value, expected):
    array = numbers(value)
    assert array.dtype == np.float64
    np.testing.assert_array_equal(array, expected)


def test_numbers_are_a_copy():
    array = np.zeros(2)
    numbers(array)[0] = 1.0
    assert array[0] == 0.0


@pytest.mark.parametrize(
    "value", ["1", b"1", None, [None], 1j, np.array([1j]), {}, object(), np.datetime64(1, "s"), [[1], [1, 2]]]
)
def test_what_is_no_number_is_not_read(value):
    with pytest.raises((TypeError, ValueError)):
        numbers(value)
