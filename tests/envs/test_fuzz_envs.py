"""Whatever an environment or a data file does wrong is answered in one sentence, never with a traceback."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from support.fuzz_strategies import (
    Refused,
    UnreadableMapping,
    anything,
    arrays,
    cases,
    errors,
    floats,
    mostly,
    refusal,
    scalars,
)

from capax.core.errors import EnvironmentFailed, InputError
from capax.core.types import Episode
from capax.data.logged_data import NEEDED, initial_episode
from capax.envs.make import make
from capax.envs.task import GymTask, Step

# Environments.


class Broken:
    """An environment with these answers, one after the other. An answer that is an exception is raised."""

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
infos = mostly(st.fixed_dictionaries({"cost": paid}), st.just({}) | st.builds(UnreadableMapping) | anything)
flags = mostly(st.booleans(), anything)
others = st.one_of(st.lists(anything, max_size=7).map(tuple), anything, errors, errors)
resets = mostly(mostly(st.just((np.zeros(2), {})), st.tuples(obs, infos)), obs | others)
steps = mostly(
    st.tuples(obs, paid, flags, flags, infos) | st.tuples(obs, paid, paid, flags, flags, st.just({})), others
)


@st.composite
def costs(draw: Any) -> Any:
    """A cost function that returns or raises something, and may write into its arguments."""
    reply, scribbles = draw(mostly(paid, anything | errors)), draw(st.booleans())

    def cost(*transition: Any) -> Any:
        if scribbles:
            transition[0][:], transition[2][:] = np.nan, np.nan
        if isinstance(reply, Exception):
            raise reply
        return reply

    return cost


def check_step(step: Any) -> None:
    """A step has the right types and finite numbers."""
    assert type(step) is Step and step.obs.shape == (2,) and step.obs.dtype == np.float64
    assert np.isfinite(step.obs).all() and np.isfinite([step.reward, step.cost]).all()
    assert [type(part) for part in step[1:5]] == [float, float, bool, bool] and isinstance(step.info, Mapping)


@cases(600)
@given(resets, st.lists(steps, min_size=1, max_size=3), mostly(st.none(), costs()))
def test_broken_environments_are_refused_in_a_sentence(first, later, cost):
    task = GymTask(Broken(first, later), name="toy", cost=cost)
    first_obs = refusal(lambda: task.reset(0), EnvironmentFailed)
    if not isinstance(first_obs, Refused):
        assert first_obs.shape == (2,) and np.isfinite(first_obs).all()
        for _ in range(3):
            step = refusal(lambda: task.step([0.5]), EnvironmentFailed)
            if isinstance(step, Refused):
                break
            check_step(step)
    task.close()


@cases(200)
@given(st.data())
def test_functions_that_make_no_environment_are_refused_in_a_sentence(data):
    product = data.draw(mostly(st.just(Broken(None, [])), anything | errors))

    def function() -> Any:
        if isinstance(product, Exception):
            raise product
        return product

    env = data.draw(mostly(st.just(function), scalars | st.sampled_from([":", "os:", ".x:y", "CartPole"])))
    steps, cost = mostly(st.just(5), anything), mostly(st.none(), anything)
    modes = mostly(st.none(), st.just("rgb_array"))
    options = data.draw(st.fixed_dictionaries({"episode_steps": steps, "cost": cost, "render_mode": modes}))
    task = refusal(lambda: make(env, **options), (InputError, EnvironmentFailed))
    assert isinstance(task, Refused) or (env is function and task.obs_dim == 2)


@cases(150)
@given(st.data(), st.sampled_from(["action_space", "observation_space", "spec", "reset", "step"]))
def test_odd_spaces_and_specs_are_refused_in_a_sentence(data, part):
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
        first_obs = refusal(lambda: task.reset(0), EnvironmentFailed)
        if not isinstance(first_obs, Refused):
            refusal(lambda: task.step(np.zeros(task.action_dim)), EnvironmentFailed)


# Initial data.

TASK = GymTask(Broken(None, []), name="toy")
LOGGED = {name: np.ones((4, 2) if "obs" in name else 4) for name in NEEDED}


@cases(250)
@given(
    st.dictionaries(
        mostly(st.sampled_from([*NEEDED, "terminated"]), st.text(max_size=3) | st.integers()),
        mostly(st.lists(st.floats(-1.0, 3.0) | floats, min_size=4, max_size=4), arrays(max_size=4) | anything),
        max_size=2,
    ),
    st.lists(st.sampled_from(NEEDED), max_size=1),
)
def test_odd_initial_data_is_refused_in_a_sentence(changes, left_out):
    data = {name: value for name, value in {**LOGGED, **changes}.items() if name not in left_out}
    episode = refusal(lambda: initial_episode(data, TASK))
    if not isinstance(episode, Refused):
        assert isinstance(episode, Episode) and np.isfinite([episode.earned, episode.paid]).all()
        assert all(np.isfinite(np.float32(part)).all() for part in episode[:5]) and np.abs(episode.action).max() <= 1.0


@cases(100)
@given(anything)
def test_initial_data_that_is_not_a_mapping_is_refused(data):
    assert isinstance(refusal(lambda: initial_episode(data, TASK)), Refused)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory) -> tuple[Path, bytes]:
    raw = io.BytesIO()
    np.savez_compressed(raw, **LOGGED)
    return tmp_path_factory.mktemp("data") / "data.npz", raw.getvalue()


@cases(150)
@given(data=st.data())
def test_damaged_files_are_refused_in_a_sentence(damaged, data):
    path, raw = damaged
    changed = bytearray(raw)
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, len(raw) - 1), st.integers(0, 255)), max_size=4)):
        changed[at] = value
    path.write_bytes(changed[: data.draw(st.integers(0, len(raw)) | st.just(len(raw)))])
    episode = refusal(lambda: initial_episode(path, TASK))
    assert isinstance(episode, Refused | Episode)
