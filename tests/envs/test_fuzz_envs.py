"""Whatever an environment or a data file does wrong is answered in one sentence, never with a traceback."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from support.fuzz_strategies import (
    HOSTILE,
    Refused,
    UnreadableMapping,
    UnsearchableMapping,
    arrays,
    cases,
    errors,
    floats,
    hostile,
    mostly,
    refusal,
    scalars,
)
from support.fuzz_strategies import anything as careless

from capax.core.errors import EnvironmentFailed, InputError
from capax.core.types import Episode
from capax.data.logged_data import NEEDED, initial_episode
from capax.envs.make import make
from capax.envs.task import GymTask, Step

anything = careless | hostile

# Environments.


class Broken:
    """An environment with these answers, one after the other. An answer that is an exception is raised.

    `meddle` may write into the action that it gets, or into what it returned before.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Box(-1.0, 3.0, (1,), np.float32)

    def __init__(self, first: Any, later: list[Any], meddle: str = "") -> None:
        self.answers, self.meddle, self.returned = [first, *later], meddle, None

    def _answer(self) -> Any:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        if self.meddle == "answer" and type(answer) is tuple:  # a copy: other tests get these arrays too
            answer = tuple(part.copy() if type(part) is np.ndarray else part for part in answer)
        self.returned = answer
        return answer

    def reset(self, *, seed: int) -> Any:
        return self._answer()

    def step(self, action: Any) -> Any:
        if self.meddle == "action":
            action[...] = np.nan
        for part in self.returned if self.meddle == "answer" and type(self.returned) is tuple else ():
            if isinstance(part, np.ndarray) and part.dtype == np.float64 and part.flags.writeable:
                part[...] = np.nan
        return self._answer()

    def close(self) -> None:
        raise RuntimeError


pairs = st.lists(floats, min_size=2, max_size=2)
obs = mostly(st.sampled_from([np.zeros(2), [1, 2], np.ones(2, np.float32)]), pairs | arrays() | anything)
paid = mostly(st.floats(0.0, 9.0), floats | anything)
infos = mostly(
    st.fixed_dictionaries({"cost": paid}),
    st.just({}) | st.builds(UnreadableMapping) | st.builds(UnsearchableMapping) | anything,
)
flags = mostly(st.booleans(), anything)
exits = st.sampled_from([SystemExit(0), SystemExit(), SystemExit("bye"), GeneratorExit(), asyncio.CancelledError()])
meddling = st.sampled_from(["", "", "action", "answer"])
others = st.one_of(st.lists(anything, max_size=7).map(tuple), anything, errors, errors, exits)
resets = mostly(mostly(st.just((np.zeros(2), {})), st.tuples(obs, infos)), obs | others)
steps = mostly(
    st.tuples(obs, paid, flags, flags, infos) | st.tuples(obs, paid, paid, flags, flags, st.just({})), others
)


@st.composite
def costs(draw: Any) -> Any:
    """A cost function that returns or raises something, and may write into all of its arguments."""
    reply, scribbles = draw(mostly(paid, anything | errors)), draw(st.booleans())

    def cost(*transition: Any) -> Any:
        if scribbles:
            for array in transition[:3]:
                if isinstance(array, np.ndarray) and array.dtype == np.float64:
                    array[...] = np.nan
            if isinstance(transition[3], dict):
                transition[3].clear()
        if isinstance(reply, Exception):
            raise reply
        return reply

    return cost


def check_step(step: Any, negative: bool = False) -> None:
    """A step has the right types and finite numbers, and a cost that is not negative unless it may be."""
    assert type(step) is Step and step.obs.shape == (2,) and step.obs.dtype == np.float64
    assert (
        np.isfinite(step.obs).all()
        and np.isfinite([step.reward, step.cost]).all()
        and (negative or not np.signbit(step.cost))
    )
    assert [type(part) for part in step[1:5]] == [float, float, bool, bool] and isinstance(step.info, Mapping)


@cases(600)
@given(resets, st.lists(steps, min_size=1, max_size=3), mostly(st.none(), costs()), st.booleans(), meddling)
def test_broken_environments_are_refused_in_a_sentence(first, later, cost, negative, meddle):
    sent: list[Any] = []

    def recording(obs: Any, action: Any, next_obs: Any, info: Any) -> Any:
        sent.append(np.array(action))
        return cost(obs, action, next_obs, info)

    own_cost = recording if cost is not None else None
    task = GymTask(Broken(first, later, meddle), name="toy", cost=own_cost, allow_negative_costs=negative)
    first_obs = refusal(lambda: task.reset(0), EnvironmentFailed)
    if not isinstance(first_obs, Refused):
        assert first_obs.shape == (2,) and np.isfinite(first_obs).all()
        for _ in range(3):
            counted: list[float] = []
            reply = task.env.answers[0]
            step = refusal(lambda: task.step([0.5], counted.append), EnvironmentFailed)  # noqa: B023  called at once
            assert all(action.tolist() == [2.0] for action in sent)  # three quarters of the way from -1 to 3
            if isinstance(step, Refused):
                if cost is None and not meddle and (paid := plain_cost(reply)) is not None:
                    assert counted == [paid]
                assert negative or all(paid >= 0.0 for paid in counted)
                break
            check_step(step, negative)
            assert counted == [step.cost]
    task.close()


def plain_cost(reply: Any) -> float | None:
    """The cost of a step, if it is a plain number >= 0 where costs belong, whatever else there is."""
    if type(reply) is not tuple or not reply:
        return None
    paid = (
        reply[2] if len(reply) == 6 else reply[-1].get("cost") if len(reply) > 1 and type(reply[-1]) is dict else None
    )
    return paid if type(paid) is float and paid >= 0.0 else None


PLACES = [
    "all",
    "obs",
    "reward",
    "cost",
    "terminated",
    "truncated",
    "info",
    "info['cost']",
    "info['rewards']",
    "the function",
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("odd", range(len(HOSTILE)))
def test_an_object_that_breaks_when_it_is_looked_at_is_refused_in_a_sentence(odd, place):
    value = HOSTILE[odd]
    info = {
        "cost": value if place == "info['cost']" else 1.0,
        "rewards": value if place == "info['rewards']" else [0.0],
    }
    items = {"obs": np.zeros(2), "reward": 0.0, "terminated": False, "truncated": False, "info": info}
    if place == "cost":
        items = {"obs": items["obs"], "reward": 0.0, "cost": 1.0, "terminated": False, "truncated": False, "info": {}}
    step = value if place == "all" else tuple({**items, **({place: value} if place in items else {})}.values())
    cost = (lambda *transition: value) if place == "the function" else None
    task = GymTask(Broken((np.zeros(2), {}), [step]), name="toy", cost=cost)
    task.repeat = 2 if place == "info['rewards']" else 1
    task.reset(0)
    result = refusal(lambda: task.step([0.5]), EnvironmentFailed)
    if not isinstance(result, Refused):
        check_step(result)
    for reset in (value, (value, {}), (np.zeros(2), value)):
        refusal(lambda: GymTask(Broken(reset, [step]), name="toy").reset(0), EnvironmentFailed)  # noqa: B023  called at once


@cases(200)
@given(st.data())
def test_functions_that_make_no_environment_are_refused_in_a_sentence(data):
    product = data.draw(mostly(st.just(Broken(None, [])), anything | errors))

    def function() -> Any:
        if isinstance(product, Exception):
            raise product
        return product

    env = data.draw(mostly(st.just(function), scalars | st.sampled_from([":", "os:", ".x:y", "CartPole"])))
    steps, cost = mostly(st.just(5), careless), mostly(st.none(), careless)
    modes = mostly(st.none(), st.just("rgb_array"))
    options = data.draw(st.fixed_dictionaries({"episode_steps": steps, "cost": cost, "render_mode": modes}))
    task = refusal(lambda: make(env, **options), (InputError, EnvironmentFailed))
    assert isinstance(task, Refused) or (env is function and task.obs_dim == 2)


def lying_box(**parts: Any) -> Any:
    """A Box whose parts do not fit together, or are something else."""
    box = spaces.Box(-1.0, 1.0, (2,), np.float64)
    for name, value in parts.items():
        setattr(box, f"_{name}" if name == "shape" else name, value)
    return box


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")  # JAX and Python warn of forks
@pytest.mark.parametrize("ending", ["return", "raise", "exit"])
@pytest.mark.parametrize("part", ["reset", "step", "cost"])
def test_a_child_that_an_environment_forks_never_comes_back(part, ending, tmp_path):
    children = []

    def fork() -> None:
        children.append(os.fork())
        if not children[-1]:
            signal.alarm(120)  # whatever a lock of another thread does to it
            if ending == "raise":
                raise ValueError("\x1b[2J")
            if ending == "exit":
                raise SystemExit(0)

    class Forking(Broken):
        def reset(self, *, seed: int) -> Any:
            fork() if part == "reset" else None
            return super().reset(seed=seed)

        def step(self, action: Any) -> Any:
            fork() if part == "step" else None
            return super().step(action)

    parent, step = os.getpid(), (np.zeros(2), 0.0, False, False, {"cost": 1.0})
    cost = (lambda *transition: fork() or 1.0) if part == "cost" else None
    task = GymTask(Forking((np.zeros(2), {}), [step]), name="toy", cost=cost)
    try:
        task.reset(0)
        assert task.step([0.5]).cost == 1.0
    finally:
        if os.getpid() != parent:
            (tmp_path / "came back").touch()
            os._exit(1)
    for child in children:
        os.waitpid(child, 0)
    assert children and not (tmp_path / "came back").exists()


@cases(300)
@given(st.data(), st.sampled_from(["action_space", "observation_space", "spec", "reset", "step"]))
def test_odd_spaces_and_specs_are_refused_in_a_sentence(data, part):
    env = Broken((np.zeros(2), {}), [(np.zeros(2), 0.0, False, False, {"cost": 0.0})])
    other = st.sampled_from([
        spaces.Discrete(2), spaces.Box(-1.0, 1.0, (2, 1)), spaces.Box(-np.inf, np.inf, (1,)), spaces.Dict({}),
        spaces.Box(0, 5, (2,), np.int8), spaces.Box(0.0, 1.0, (0,)), spaces.Box(0.0, 0.0, (1,)), spaces.Text(3),
        spaces.Box(-1.0, 1.0, ()), spaces.Box(0, 255, (4, 4, 3), np.uint8), spaces.Box(-1e30, 1e30, (2,), np.float64),
        lying_box(shape=(2**61, 0)), lying_box(shape=(2**40,)), lying_box(shape=None), lying_box(low=np.full(2, np.nan)),
        lying_box(low=np.ones(2), high=-np.ones(2)), lying_box(high=None), lying_box(low=np.ones(3)), lying_box(dtype=None),
        lying_box(dtype=np.dtype(object)), lying_box(high=np.full(2, np.inf)), lying_box(shape=10**400),
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
@given(careless)
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
