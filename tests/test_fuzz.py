"""Is everything that a user or an environment can do wrong answered in one sentence, and never in a traceback?"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import fields
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from oddities import Refused, Wanting, anything, arrays, cases, errors, floats, mostly, refusal, scalars, whole

from capax.agents.pets import PetsSettings
from capax.checks import numbers
from capax.conformal import Conformal
from capax.envs.adapt import Step, Task, make
from capax.errors import EnvironmentFailed, InputError
from capax.flags import LEVELS
from capax.initial import NEEDED, initial_episode
from capax.kappa import PI, Adam, Feedback, Fixed
from capax.models.ensemble import EnsembleSettings
from capax.planning.ccem import CEM
from capax.presets import settings_for
from capax.tabular import (
    CMDP,
    CountModel,
    evaluate,
    gridworld,
    neighbour_prior,
    penalised,
    pooled_prior,
    self_loop_prior,
    solve,
    uniform_prior,
    values,
)
from capax.types import Episode

# Settings.

DEFAULT = PetsSettings()
PARTS = (DEFAULT, DEFAULT.ensemble, DEFAULT.cem)
KNOWN = [f.name for part in PARTS for f in fields(part) if f.name not in ("ensemble", "cem")]
near = st.tuples(st.sampled_from(KNOWN), st.integers(0, 12), st.text("aesx_ ", max_size=1)).map(
    lambda at: at[0][: at[1]] + at[2] + at[0][at[1] + 1 :]
)
names = mostly(st.sampled_from(KNOWN), st.one_of(near, near, st.text(max_size=8), st.integers(), st.none()))


def value_for(name: Any) -> Any:
    """Around the default of a setting, or anything at all."""
    like = next((getattr(part, name) for part in PARTS if hasattr(part, str(name))), None)
    if isinstance(like, bool):
        return mostly(st.booleans(), anything)
    if isinstance(like, int):
        return mostly(st.integers(1, 3 * like) | st.sampled_from([like, 2 * like, float(like), 10**6, 10**9]), anything)
    if isinstance(like, float):
        return mostly(st.floats(0.0, 2.0 * like + 0.1) | st.sampled_from([like, 1, 1e9]), anything)
    return mostly(st.sampled_from(["mean", "best", "auto", "bfloat16"]), anything)


@st.composite
def changes_of(draw: Any, names: Any) -> dict[Any, Any]:
    """Some settings with new values."""
    return {name: draw(value_for(name)) for name in draw(st.lists(names, max_size=3))}


def well_typed(settings: Any, default: Any) -> None:
    for field in fields(settings):
        value, like = getattr(settings, field.name), getattr(default, field.name)
        assert type(value) is type(like)
        if isinstance(value, float):
            assert np.isfinite(value)


def possible(settings: PetsSettings) -> None:
    """Types, and sizes that go together."""
    for made, default in zip((settings, settings.ensemble, settings.cem), PARTS, strict=True):
        well_typed(made, default)
    cem, ensemble = settings.cem, settings.ensemble
    assert 1 <= cem.elites <= min(cem.sizes) <= cem.population and len(cem.sizes) == cem.iterations
    assert ensemble.particles % ensemble.members == 0 and ensemble.least_updates <= ensemble.most_updates
    assert settings.buffer >= max(ensemble.batch, settings.start_steps, settings.fit_every)
    assert 4 * cem.population * ensemble.particles * cem.horizon <= 2**36
    hash(settings)  # compiled functions are kept by it


@cases(700)
@given(st.sampled_from(["paper", "fast"]), changes_of(names))
def test_settings(preset, changes):
    made = refusal(lambda: settings_for(preset, changes))
    if not isinstance(made, Refused):
        possible(made)
        for name, value in changes.items():  # a flag is no number, and nothing is rounded
            kept = next(getattr(part, name) for part in (made, made.ensemble, made.cem) if hasattr(part, name))
            assert kept == value and isinstance(kept, bool) is isinstance(value, bool | np.bool_)


@cases(150)
@given(
    mostly(st.sampled_from(["paper", "fast"]), st.sampled_from(["Paper", ""]) | anything), mostly(st.none(), anything)
)
def test_presets_and_what_is_no_mapping(preset, changes):
    made = refusal(lambda: settings_for(preset, changes))
    if not isinstance(made, Refused):
        possible(made)
        assert preset in ("paper", "fast") and changes in (None, {})


@cases(150)
@given(st.data(), st.sampled_from([EnsembleSettings, CEM, PetsSettings]))
def test_parts_of_the_settings(data, kind):
    changes = data.draw(changes_of(st.sampled_from([f.name for f in fields(kind)])))
    made = refusal(lambda: kind(**changes))
    if not isinstance(made, Refused):
        well_typed(made, kind())


def leaves(value: Any) -> Any:
    """What nested lists, tuples and arrays of objects hold."""
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
    except (TypeError, ValueError, KeyError, UserWarning):  # KeyError: Mute, UserWarning: what is masked in a list
        return
    assert array.dtype == np.float64
    for leaf in leaves(value):
        kind = np.asarray(leaf).dtype.kind
        assert kind in "biuf" or isinstance(leaf, int | Fraction | Decimal), leaf


# CMDPs.


@st.composite
def cmdps(draw: Any) -> dict[str, Any]:
    """What makes a CMDP, as it should be or with something spoilt."""
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    S, A = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    P = rng.dirichlet(np.full(S, draw(st.sampled_from([0.05, 1.0]))), size=(S, A))
    parts: dict[str, Any] = {
        "P": P / P.sum(-1, keepdims=True),
        "r": rng.normal(size=(S, A)) * draw(st.sampled_from([0.0, 1.0, 1e-12, 1e290])),
        "c": rng.random((S, A)) * draw(st.sampled_from([0.0, 1.0, 1.0, 1e-290, 1e20])),
        "mu0": rng.dirichlet(np.ones(S)),
        "gamma": draw(st.sampled_from([0.0, 0.5, 0.99, 0.999999])),
    }
    if draw(st.booleans()):
        parts["P"] = draw(st.sampled_from([sp.csr_array, sp.coo_array, sp.csc_matrix]))(parts["P"].reshape(S * A, S))
    for name in draw(st.lists(st.sampled_from(list(parts)), max_size=1)):
        how = draw(st.sampled_from(["other", "entry", "shape", "scale", "type"]))
        if how == "other" or name == "gamma" or sp.issparse(parts[name]):
            close = st.sampled_from([1.0, 1.0 - 1e-9, 1.0 - 1e-15, -1e-9]) | floats
            parts[name] = draw(close if name == "gamma" and draw(st.booleans()) else anything)
        elif how == "entry":
            with np.errstate(all="ignore"):
                parts[name].flat[draw(st.integers(0, parts[name].size - 1))] = draw(floats)
        elif how == "shape":
            parts[name] = draw(
                st.sampled_from([parts[name].T, parts[name][None], parts[name].ravel(), parts[name][:0]])
            )
        elif how == "scale":
            parts[name] = parts[name] * draw(st.sampled_from([2.0, -1.0, 1 + 5e-10, 1 + 1e-8]))
        else:
            with np.errstate(all="ignore"):
                parts[name] = parts[name].astype(draw(st.sampled_from(["f4", "i4", "O", "U9", "?"])))
    return parts


def distributions(rows: Any) -> None:
    assert np.isfinite(rows).all() and (rows >= 0.0).all() and np.allclose(rows.sum(-1), 1.0, rtol=0.0, atol=1e-8)


@cases(350)
@given(
    cmdps(),
    mostly(st.floats(-0.2, 1.2), floats | anything),
    mostly(st.sampled_from(["auto", "auto", "highs"]), anything),
)
def test_cmdps_are_solved_or_refused(parts, limit, method):
    cmdp = refusal(lambda: CMDP(**parts))
    solution = cmdp if isinstance(cmdp, Refused) else refusal(lambda: solve(cmdp, limit, method))
    if isinstance(solution, Refused):
        return
    distributions(solution.policy)
    unit, slack = np.abs(cmdp.c).max() or 1.0, 1e-9 / (1.0 - cmdp.gamma)  # rows are right to 1e-9
    limit = 1e308 if isinstance(limit, int) and limit > 1e308 else float(limit)
    assert abs(solution.occupancy.sum() - 1.0) <= 1e-9 + 2.0 * slack and solution.multiplier >= 0.0
    assert np.isfinite([solution.reward, solution.cost]).all()
    if solution.status == "optimal":
        assert solution.cost <= limit + (1e-7 + 2.0 * slack) * unit
    again = evaluate(cmdp, solution.policy)
    assert (again.reward, again.cost) == (solution.reward, solution.cost)
    warm = solve(cmdp, limit, warm=solution)
    assert warm.status == solution.status or abs(solution.cost - limit) <= (1e-7 + 2.0 * slack) * unit


@cases(200)
@given(st.integers(0, 99), st.data())
def test_policies_signals_and_penalties(seed, data):
    rng = np.random.default_rng(seed)
    S, A = 2, 3
    cmdp = CMDP(rng.dirichlet(np.ones(S), size=(S, A)), rng.random((S, A)), rng.random((S, A)), np.eye(S)[0], 0.9)
    table = st.lists(st.lists(floats, min_size=A, max_size=A), min_size=S, max_size=S)
    good = st.sampled_from([[0, 2], np.full((S, A), 1 / 3), [[0, 1, 0], [1, 0, 0]]])
    policy = data.draw(mostly(good, st.lists(st.integers(-1, 3), min_size=2, max_size=2) | table | arrays() | anything))
    paid = refusal(lambda: evaluate(cmdp, policy))
    if not isinstance(paid, Refused):
        assert np.isfinite(paid[:2]).all() and paid.occupancy.sum() == pytest.approx(1.0, abs=1e-6)
    u = data.draw(mostly(table, arrays() | anything))
    for made in (refusal(lambda: values(cmdp, [0, 1], u)), refusal(lambda: penalised(cmdp, u).c)):
        assert isinstance(made, Refused) or np.isfinite(made).all()
    other = data.draw(anything)
    for call in (lambda: evaluate(other, [0]), lambda: solve(other, 1.0), lambda: penalised(other, u)):
        assert isinstance(refusal(call), Refused)
    if other is not None:
        assert isinstance(refusal(lambda: solve(cmdp, 1.0, warm=other)), Refused)


# Counts, priors and worlds.


@cases(200)
@given(st.data())
def test_counts(data):
    S, A = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    thin = st.sampled_from(["f8", "i4", "c16", "?"]).map(lambda kind: sp.csr_array(np.ones((S * A, S)).astype(kind)))
    entries = st.lists(st.floats(0.0, 2.0) | floats, min_size=S * A * S, max_size=S * A * S)
    tables = entries.map(lambda x: np.reshape(x, (S, A, S)))
    empty = st.sampled_from([(0, A, 0), (S, 0, S), (0, 0, 0)]).map(np.zeros)
    prior = data.draw(mostly(st.just(np.ones((S, A, S))) | thin, tables | empty | arrays() | anything))
    actions = data.draw(mostly(st.just(A), st.none() | anything))
    model = refusal(lambda: CountModel.init(prior, actions))
    if isinstance(model, Refused):
        return
    at = mostly(st.just([0, 0]), st.lists(st.integers(-1, 2), max_size=2) | arrays() | anything)
    s, a, s_next = data.draw(st.tuples(at, at, at) | at.map(lambda x: (x, x, x)))
    fitted = refusal(lambda: model.fit(s, a, s_next))
    if not isinstance(fitted, Refused):
        model = fitted
        assert model.n.sum() == len(s)
    rows = model.P.toarray() if sp.issparse(model.P) else model.P
    distributions(rows)


@cases(200)
@given(
    mostly(st.integers(1, 4), whole | anything),
    mostly(st.integers(1, 4), whole | anything),
    mostly(st.floats(0.0, 3.0), floats | anything),
    mostly(st.sampled_from([np.zeros((2, 3), int), [[0, 1], [1, 1]], [[0], [2]]]), arrays() | anything),
)
def test_priors(states, actions, mass, cells):
    for call in (
        lambda: uniform_prior(states, actions, mass),
        lambda: self_loop_prior(states, actions, mass),
        lambda: neighbour_prior(cells, actions, mass),
        lambda: pooled_prior(CountModel.init(uniform_prior(2, 2)), cells),
    ):
        prior = refusal(call)
        if not isinstance(prior, Refused):
            assert np.isfinite(CountModel.init(prior, None if prior.ndim == 3 else actions).mass).all()


@cases(200)
@given(st.data())
def test_gridworlds(data):
    asked = data.draw(
        st.fixed_dictionaries(
            {},
            optional={
                "size": mostly(st.integers(1, 12), st.sampled_from([0, 10**5, 10**30, 2.0, 2.5]) | scalars),
                "slip": mostly(st.sampled_from(["any", "other", "torus"]), anything),
                "slip_probability": mostly(st.floats(0.0, 1.0), floats | anything),
                "gamma": mostly(st.floats(0.0, 0.99), floats | anything),
            },
        )
    )
    rng = data.draw(mostly(st.just(np.random.default_rng(0)), anything))
    world = refusal(lambda: gridworld(rng, **{"size": 2, **asked}))
    if not isinstance(world, Refused):
        assert isinstance(world.cmdp, CMDP) and len(world.successors) == world.size**2


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
def test_rules(data, kind, seen):
    least = {"kappa": 1.0} if kind is Fixed else {}
    asked = data.draw(
        st.dictionaries(st.sampled_from(RULES[kind]), mostly(st.floats(0.1, 0.9), some | anything), max_size=2)
    )
    rule = refusal(lambda: kind(**{**least, **asked}))
    if isinstance(rule, Refused):
        return
    state = rule.init()
    for feedback in seen:
        new = refusal(lambda feedback=feedback, state=state: rule.update(state, feedback))
        state = state if isinstance(new, Refused) else new
        state = rule.relax(state) or state
        state = rule.fitted(state, (0.5,) * len(LEVELS) if feedback.binary is True else ())
        assert type(state.kappa) is float and 0.0 <= state.kappa <= 1e30
        assert np.isfinite(np.float32(state.kappa))
        assert all(np.isfinite(part).all() for part in state)  # it is saved as plain numbers


# Environments.


class Broken:
    """Answers what it is given, one after the other; an exception is raised."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Box(-1.0, 3.0, (1,), np.float32)

    def __init__(self, first: Any, later: list[Any]) -> None:
        self.answers = [first, *later]

    def _answer(self) -> Any:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def reset(self, *, seed: int) -> Any:
        return self._answer()

    def step(self, action: Any) -> Any:
        return self._answer()

    def close(self) -> None:
        raise RuntimeError


pairs = st.lists(floats, min_size=2, max_size=2)
obs = mostly(st.sampled_from([np.zeros(2), [1, 2], np.ones(2, np.float32)]), pairs | arrays() | anything)
paid = mostly(st.floats(0.0, 9.0), floats | anything)
infos = mostly(st.fixed_dictionaries({"cost": paid}), st.just({}) | st.builds(Wanting) | anything)
flags = mostly(st.booleans(), anything)
others = st.one_of(st.lists(anything, max_size=7).map(tuple), anything, errors, errors)
resets = mostly(mostly(st.just((np.zeros(2), {})), st.tuples(obs, infos)), obs | others)
steps = mostly(
    st.tuples(obs, paid, flags, flags, infos) | st.tuples(obs, paid, paid, flags, flags, st.just({})), others
)


@st.composite
def costs(draw: Any) -> Any:
    """A cost function that returns or raises something, and may write into what it is shown."""
    reply, scribbles = draw(mostly(paid, anything | errors)), draw(st.booleans())

    def cost(*seen: Any) -> Any:
        if scribbles:
            seen[0][:], seen[2][:] = np.nan, np.nan
        if isinstance(reply, Exception):
            raise reply
        return reply

    return cost


def sound(step: Any) -> None:
    assert type(step) is Step and step.obs.shape == (2,) and step.obs.dtype == np.float64
    assert np.isfinite(step.obs).all() and np.isfinite([step.reward, step.cost]).all()
    assert [type(part) for part in step[1:5]] == [float, float, bool, bool] and isinstance(step.info, Mapping)


@cases(600)
@given(resets, st.lists(steps, min_size=1, max_size=3), mostly(st.none(), costs()))
def test_environments(first, later, cost):
    task = Task(Broken(first, later), name="toy", cost=cost)
    seen = refusal(lambda: task.reset(0), EnvironmentFailed)
    if not isinstance(seen, Refused):
        assert seen.shape == (2,) and np.isfinite(seen).all()
        for _ in range(3):
            step = refusal(lambda: task.step([0.5]), EnvironmentFailed)
            if isinstance(step, Refused):
                break
            sound(step)
    task.close()


@cases(200)
@given(st.data())
def test_makers(data):
    made = data.draw(mostly(st.just(Broken(None, [])), anything | errors))

    def function() -> Any:
        if isinstance(made, Exception):
            raise made
        return made

    env = data.draw(mostly(st.just(function), scalars | st.sampled_from([":", "os:", ".x:y", "CartPole"])))
    steps, cost = mostly(st.just(5), anything), mostly(st.none(), anything)
    drawn = mostly(st.none(), st.just("rgb_array"))
    options = data.draw(st.fixed_dictionaries({"episode_steps": steps, "cost": cost, "render_mode": drawn}))
    task = refusal(lambda: make(env, **options), (InputError, EnvironmentFailed))
    assert isinstance(task, Refused) or (env is function and task.obs_dim == 2)


@cases(150)
@given(st.data(), st.sampled_from(["action_space", "observation_space", "spec", "reset", "step"]))
def test_spaces(data, part):
    env = Broken((np.zeros(2), {}), [(np.zeros(2), 0.0, False, False, {"cost": 0.0})])
    other = st.sampled_from([
        spaces.Discrete(2), spaces.Box(-1.0, 1.0, (2, 1)), spaces.Box(-np.inf, np.inf, (1,)), spaces.Dict({}),
        spaces.Box(0, 5, (2,), np.int8), spaces.Box(0.0, 1.0, (0,)), spaces.Box(0.0, 0.0, (1,)), spaces.Text(3),
    ])  # fmt: skip
    specs = st.builds(lambda steps, kwargs: type("Spec", (), {"max_episode_steps": steps, "kwargs": kwargs})(),
                      anything, st.fixed_dictionaries({"cost_limit": anything, "discounted": anything}) | anything)  # fmt: skip
    setattr(env, part, data.draw(specs | anything if part == "spec" else other | anything))
    task = refusal(lambda: make(lambda: env), (InputError, EnvironmentFailed))
    if not isinstance(task, Refused):
        assert task.episode_steps is None or (type(task.episode_steps) is int and task.episode_steps >= 1)
        seen = refusal(lambda: task.reset(0), EnvironmentFailed)
        if not isinstance(seen, Refused):
            refusal(lambda: task.step(np.zeros(task.action_dim)), EnvironmentFailed)


# Data to begin with.

TASK = Task(Broken(None, []), name="toy")
LOGGED = {name: np.ones((4, 2) if "obs" in name else 4) for name in NEEDED}


@cases(250)
@given(
    st.dictionaries(
        mostly(st.sampled_from([*NEEDED, "terminated"]), st.text(max_size=3) | st.integers()),
        mostly(st.lists(st.floats(-1.0, 3.0) | floats, min_size=4, max_size=4), arrays(most=4) | anything),
        max_size=2,
    ),
    st.lists(st.sampled_from(NEEDED), max_size=1),
)
def test_initial_data(changes, left_out):
    data = {name: value for name, value in {**LOGGED, **changes}.items() if name not in left_out}
    episode = refusal(lambda: initial_episode(data, TASK))
    if not isinstance(episode, Refused):
        assert isinstance(episode, Episode) and np.isfinite([episode.earned, episode.paid]).all()
        assert all(np.isfinite(np.float32(part)).all() for part in episode[:5]) and np.abs(episode.action).max() <= 1.0


@cases(100)
@given(anything)
def test_initial_data_that_is_no_mapping(data):
    assert isinstance(refusal(lambda: initial_episode(data, TASK)), Refused)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory) -> tuple[Path, bytes]:
    raw = io.BytesIO()
    np.savez_compressed(raw, **LOGGED)
    return tmp_path_factory.mktemp("data") / "data.npz", raw.getvalue()


@cases(150)
@given(data=st.data())
def test_damaged_files(damaged, data):
    path, raw = damaged
    changed = bytearray(raw)
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, len(raw) - 1), st.integers(0, 255)), max_size=4)):
        changed[at] = value
    path.write_bytes(changed[: data.draw(st.integers(0, len(raw)) | st.just(len(raw)))])
    episode = refusal(lambda: initial_episode(path, TASK))
    assert isinstance(episode, Refused | Episode)
