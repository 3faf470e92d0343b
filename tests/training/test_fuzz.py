"""Everything that a user can do wrong with settings and rules is answered in one sentence, never in a traceback."""

from __future__ import annotations

from dataclasses import fields
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.fuzz_strategies import Refused, anything, arrays, cases, floats, mostly, refusal, scalars, whole

from capax.agents.pets import PetsSettings
from capax.core.checks import numbers
from capax.core.types import Feedback
from capax.kappa.adam import Adam
from capax.kappa.binary import LEVELS
from capax.kappa.conformal import Conformal
from capax.kappa.fixed import Fixed
from capax.kappa.pi import PI
from capax.models.ensemble import EnsembleSettings
from capax.planning.ccem import CEM
from capax.training.methods import settings_of

# Settings.

DEFAULT = PetsSettings()
PARTS = (DEFAULT, DEFAULT.ensemble, DEFAULT.cem)
NAMES = [f.name for part in PARTS for f in fields(part) if f.name not in ("ensemble", "cem")]
misspelt = st.tuples(st.sampled_from(NAMES), st.integers(0, 12), st.text("aesx_ ", max_size=1)).map(
    lambda edit: edit[0][: edit[1]] + edit[2] + edit[0][edit[1] + 1 :]
)
names = mostly(st.sampled_from(NAMES), st.one_of(misspelt, misspelt, st.text(max_size=8), st.integers(), st.none()))


def value_for(name: Any) -> Any:
    """Around the default of a setting, or anything at all."""
    like = next((getattr(part, name) for part in PARTS if hasattr(part, str(name))), None)
    if isinstance(like, bool):
        return mostly(st.booleans(), anything)
    if isinstance(like, int):
        return mostly(st.integers(1, 3 * like) | st.sampled_from([like, 2 * like, float(like), 10**6, 10**9]), anything)
    if isinstance(like, float):
        return mostly(
            st.floats(min(0.0, 2.0 * like), 2.0 * abs(like) + 0.1) | st.sampled_from([like, 1, 1e9]), anything
        )
    return mostly(st.sampled_from(["mean", "best", "auto", "bfloat16"]), anything)


@st.composite
def changes_of(draw: Any, names: Any) -> dict[Any, Any]:
    """Some settings with new values."""
    return {name: draw(value_for(name)) for name in draw(st.lists(names, max_size=3))}


def check_types(settings: Any, default: Any) -> None:
    """Check that values have the types of the defaults, and are finite."""
    for field in fields(settings):
        value, like = getattr(settings, field.name), getattr(default, field.name)
        assert type(value) is type(like)
        if isinstance(value, float):
            assert np.isfinite(value)


def check_consistent(settings: PetsSettings) -> None:
    """Check the types, and that the sizes go together."""
    for part, default in zip((settings, settings.ensemble, settings.cem), PARTS, strict=True):
        check_types(part, default)
    cem, ensemble = settings.cem, settings.ensemble
    assert 1 <= cem.elites <= min(cem.sizes) <= cem.population and len(cem.sizes) == cem.iterations
    assert ensemble.particles % ensemble.members == 0 and ensemble.least_updates <= ensemble.most_updates
    assert settings.buffer >= max(ensemble.batch, settings.start_steps, settings.fit_every)
    assert 4 * cem.population * ensemble.particles * cem.horizon <= 2**36
    hash(settings)  # compiled functions are kept by it


@cases(700)
@given(st.sampled_from(["paper", "fast"]), changes_of(names))
def test_settings(preset, changes):
    settings = refusal(lambda: settings_of("cap", "vector", preset, changes))
    if not isinstance(settings, Refused):
        check_consistent(settings)
        for name, value in changes.items():  # a flag is no number, and nothing is rounded
            parts = settings, settings.ensemble, settings.cem
            kept = next(getattr(part, name) for part in parts if hasattr(part, name))
            assert kept == value and isinstance(kept, bool) is isinstance(value, bool | np.bool_)


@cases(150)
@given(
    mostly(st.sampled_from(["paper", "fast"]), st.sampled_from(["Paper", ""]) | anything), mostly(st.none(), anything)
)
def test_presets_and_what_is_no_mapping(preset, changes):
    settings = refusal(lambda: settings_of("cap", "vector", preset, changes))
    if not isinstance(settings, Refused):
        check_consistent(settings)
        assert preset in ("paper", "fast") and changes in (None, {})


@cases(150)
@given(st.data(), st.sampled_from([EnsembleSettings, CEM, PetsSettings]))
def test_parts_of_the_settings(data, kind):
    changes = data.draw(changes_of(st.sampled_from([f.name for f in fields(kind)])))
    settings = refusal(lambda: kind(**changes))
    if not isinstance(settings, Refused):
        check_types(settings, kind())


def leaves(value: Any) -> Any:
    """The items of nested lists, tuples and arrays of objects."""
    if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.dtype == object):
        for part in value if np.ndim(value) else [value.item()]:
            yield from leaves(part)
    else:
        yield value


@cases(300)
@given(mostly(st.lists(floats | whole, max_size=2) | arrays(), anything))
def test_numbers(value):
    try:
        array = numbers(value)
    except (TypeError, ValueError, KeyError, UserWarning):  # KeyError: Unusable, UserWarning: what is masked in a list
        return
    assert array.dtype == np.float64
    for leaf in leaves(value):
        kind = np.asarray(leaf).dtype.kind
        assert kind in "biuf" or isinstance(leaf, int | Fraction | Decimal), leaf


# κ.

RULES = {
    Fixed: ("kappa",),
    PI: ("alpha", "start", "smallest"),
    Adam: ("rate", "start", "beta1", "beta2", "epsilon"),
    Conformal: ("rate", "window", "gain"),
}
some = mostly(st.floats(0.0, 2.0) | st.integers(1, 20), floats)
feedbacks = st.builds(
    Feedback,
    paid=mostly(st.floats(0.0, 50.0), floats | floats.map(np.float64) | scalars),
    limit=mostly(st.just(25.0), floats),
    random=mostly(st.just(False), st.just(True)),
    residual=mostly(st.floats(-9.0, 9.0), st.none() | floats.map(np.float64)),
    unit=mostly(st.floats(0.0, 9.0), st.none() | floats.map(np.float64)),
    uncertainty=some,
    binary=st.booleans(),
)


@cases(500)
@given(st.data(), st.sampled_from(list(RULES)), st.lists(feedbacks, max_size=6))
def test_rules(data, kind, episodes):
    required = {"kappa": 1.0} if kind is Fixed else {}
    chosen = data.draw(
        st.dictionaries(st.sampled_from(RULES[kind]), mostly(st.floats(0.1, 0.9), some | anything), max_size=2)
    )
    rule = refusal(lambda: kind(**{**required, **chosen}))
    if isinstance(rule, Refused):
        return
    state = rule.init()
    for feedback in episodes:
        new = refusal(lambda feedback=feedback, state=state: rule.update(state, feedback))
        state = state if isinstance(new, Refused) else new
        state = rule.relax(state) or state
        state = rule.after_fit(state, (0.5,) * len(LEVELS) if feedback.binary is True else ())
        assert type(state.kappa) is float and 0.0 <= state.kappa <= 1e30
        assert np.isfinite(np.float32(state.kappa))
        assert all(np.isfinite(part).all() for part in state)  # it is saved as plain numbers
