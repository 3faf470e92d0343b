"""Gridworlds are those of the paper, and Gymnasium accepts the environment."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import scipy.sparse as sp
from gymnasium.utils.env_checker import check_env

from capax.core.errors import InputError
from capax.envs.gridworld import Gridworld
from capax.tabular import evaluate, gridworld

UP, DOWN, LEFT, RIGHT = range(4)
CORNER, EDGE, INTERIOR = 0, 1, 4
"""Cells of a 3×3 grid: upper left, top middle, centre."""


def successor_probabilities(slip: str, cell: int, action: int, probability: float = 0.2) -> dict[int, float]:
    """The possible next cells of a 3×3 world and their probabilities."""
    P = gridworld(np.random.default_rng(0), size=3, slip=slip, slip_probability=probability).cmdp.P
    return {int(s): round(float(P[cell, action, s]), 12) for s in np.nonzero(P[cell, action])[0]}


# With `any`, the chosen direction has .85 and each other one .2/4 = .05. With `other`, they have .8 and .2/3.
THIRD_OF_SLIP = round(0.2 / 3, 12)


@pytest.mark.parametrize(("slip", "cell", "action", "expected"), [
    ("any", INTERIOR, UP, {1: 0.85, 7: 0.05, 3: 0.05, 5: 0.05}),
    ("any", INTERIOR, RIGHT, {1: 0.05, 7: 0.05, 3: 0.05, 5: 0.85}),
    ("any", CORNER, UP, {0: 0.9, 3: 0.05, 1: 0.05}),  # up and left lead into walls
    ("any", CORNER, DOWN, {0: 0.1, 3: 0.85, 1: 0.05}),
    ("any", EDGE, UP, {1: 0.85, 4: 0.05, 0: 0.05, 2: 0.05}),  # up leads into a wall
    ("any", EDGE, LEFT, {1: 0.05, 4: 0.05, 0: 0.85, 2: 0.05}),
    ("other", INTERIOR, DOWN, {1: THIRD_OF_SLIP, 7: 0.8, 3: THIRD_OF_SLIP, 5: THIRD_OF_SLIP}),
    ("other", CORNER, LEFT, {0: round(0.8 + 0.2 / 3, 12), 3: THIRD_OF_SLIP, 1: THIRD_OF_SLIP}),
    ("other", EDGE, RIGHT, {1: THIRD_OF_SLIP, 4: THIRD_OF_SLIP, 0: THIRD_OF_SLIP, 2: 0.8}),
    ("torus", INTERIOR, UP, {1: 0.85, 7: 0.05, 3: 0.05, 5: 0.05}),
    ("torus", CORNER, UP, {6: 0.85, 3: 0.05, 2: 0.05, 1: 0.05}),
    ("torus", EDGE, LEFT, {7: 0.05, 4: 0.05, 0: 0.85, 2: 0.05}),
])  # fmt: skip
def test_transitions_are_those_derived_by_hand(slip, cell, action, expected):
    assert successor_probabilities(slip, cell, action) == expected


@pytest.mark.parametrize("slip", ["any", "other", "torus"])
def test_without_slips_a_move_is_certain(slip):
    assert successor_probabilities(slip, INTERIOR, LEFT, probability=0.0) == {3: 1.0}


def test_successors_are_the_cells_that_moves_lead_to():
    world = gridworld(np.random.default_rng(0), size=3)
    np.testing.assert_array_equal(
        world.successors[[CORNER, EDGE, INTERIOR]], [[0, 3, 0, 1], [1, 4, 0, 2], [1, 7, 3, 5]]
    )


@pytest.mark.parametrize("slip", ["any", "other", "torus"])
def test_sparse_transitions_of_large_worlds_equal_dense_ones(slip, monkeypatch):
    sparse = gridworld(np.random.default_rng(0), size=17, slip=slip).cmdp
    # `capax.tabular.gridworld` as an attribute is the function, not the module
    monkeypatch.setattr(import_module("capax.tabular.gridworld"), "MAX_DENSE_STATES", 10**6)
    dense = gridworld(np.random.default_rng(0), size=17, slip=slip).cmdp
    assert sp.issparse(sparse.P) and not sp.issparse(dense.P)
    np.testing.assert_array_equal(sparse.P.toarray(), dense.rows)


def test_a_world_can_have_one_cell():
    np.testing.assert_allclose(gridworld(np.random.default_rng(0), size=1).cmdp.P, np.ones((1, 4, 1)), rtol=1e-15)


def test_generator_determines_the_world():
    one, same, other = (gridworld(np.random.default_rng(seed)).cmdp for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.r, same.r)
    np.testing.assert_array_equal(one.c, same.c)
    assert (one.r != other.r).all() and (one.c != other.c).all() and (one.r != one.c).all()


def test_slip_does_not_change_the_rewards():
    any_, torus = (gridworld(np.random.default_rng(0), slip=slip).cmdp for slip in ("any", "torus"))
    np.testing.assert_array_equal(any_.r, torus.r)


@pytest.mark.parametrize("signal", ["r", "c"])
def test_rewards_and_costs_are_beta_one_three(signal):
    # Beta(1, 3): mean 1/4 and variance 1·3/(4²·5) = 3/80, each within 4 standard errors.
    samples = np.concatenate([getattr(gridworld(np.random.default_rng(i)).cmdp, signal).ravel() for i in range(200)])
    n = samples.size
    assert n == 200 * 256
    assert abs(samples.mean() - 0.25) < 4 * np.sqrt(3 / 80 / n)
    # P(x ≤ t) = 1 − (1−t)³: the share below ½ is 7/8, with standard error √(7/64/n).
    assert abs((samples <= 0.5).mean() - 7 / 8) < 4 * np.sqrt(7 / 64 / n)
    variance_error = ((samples - 0.25) ** 2).std() / np.sqrt(n)
    assert abs(samples.var() - 3 / 80) < 4 * variance_error


def test_first_state_is_uniform_and_discount_is_the_papers():
    cmdp = gridworld(np.random.default_rng(0)).cmdp
    np.testing.assert_allclose(cmdp.mu0, 1 / 64, rtol=1e-15)
    assert (cmdp.gamma, cmdp.S, cmdp.A) == (0.99, 64, 4)


@pytest.mark.parametrize("bad", [{"size": 0}, {"slip": "ice"}, {"slip_probability": 1.1}, {"slip_probability": -0.1},
                                 {"slip_probability": float("nan")}, {"gamma": 1.0}, {"size": 2.5}, {"size": 10**5},
                                 {"size": "8"}, {"slip": ["any"]}, {"slip_probability": "0.2"}])  # fmt: skip
def test_bad_worlds_are_refused(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        gridworld(np.random.default_rng(0), **bad)


@pytest.mark.parametrize("rng", [0, None, np.random.RandomState(0)])
def test_other_objects_than_generators_are_refused(rng):
    with pytest.raises(InputError, match=r"^rng is .*: give numpy\.random\.default_rng\(seed\)"):
        gridworld(rng)


# The environment.


@pytest.mark.parametrize("mode", [None, "ansi", "rgb_array"])
def test_gymnasium_accepts_the_environment(mode):
    check_env(gym.make("capax/Gridworld-v0", render_mode=mode).unwrapped)


def test_registered_id_truncates_after_500_steps():
    env = gym.make("capax/Gridworld-v0")
    env.reset(seed=0)
    ends = [env.step(0)[2:4] for _ in range(500)]
    assert ends[-1] == (False, True) and set(ends[:-1]) == {(False, False)}


def test_arguments_reach_the_world():
    env = gym.make("capax/Gridworld-v0", world=3, size=4, slip="torus", gamma=0.5).unwrapped
    expected = gridworld(np.random.default_rng([0, 3]), size=4, slip="torus", gamma=0.5)
    np.testing.assert_array_equal(env.world.cmdp.P, expected.cmdp.P)
    np.testing.assert_array_equal(env.world.cmdp.c, expected.cmdp.c)
    assert env.observation_space.n == 16 and env.world.cmdp.gamma == 0.5


def test_environment_accepts_a_world():
    world = gridworld(np.random.default_rng(7), size=2)
    assert Gridworld(world).world is world


@pytest.mark.parametrize("bad", [{"size": 0}, {"slip": "ice"}, {"gamma": 2.0}, {"render_mode": "human"}])
def test_bad_arguments_are_refused(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        Gridworld(**bad)


@pytest.mark.parametrize("action", [4, -1])
def test_bad_actions_are_refused(action):
    env = Gridworld()
    env.reset(seed=0)
    with pytest.raises(InputError, match="action"):
        env.step(action)


def random_walk(env: Any, count: int, seed: int) -> tuple[np.ndarray, ...]:
    """States, actions, next states, rewards and costs of a random walk."""
    rng = np.random.default_rng(seed)
    state, _ = env.reset(seed=seed)
    rows = []
    for action in rng.integers(4, size=count):
        next_state, reward, _, _, info = env.step(action)
        rows.append((state, action, next_state, reward, info["cost"]))
        state = next_state
    return tuple(np.array(column) for column in zip(*rows, strict=True))


@pytest.mark.parametrize("signal", ["r", "c"])
def test_sampled_rewards_and_costs_have_the_means_of_the_world(signal):
    # Σ (draw − mean) over the T steps has the variance Σ p(1−p) for a fixed path. Four standard deviations are allowed.
    env = Gridworld(size=2)
    s, a, _, reward, cost = random_walk(env, 20_000, seed=0)
    samples, p = (reward, env.world.cmdp.r[s, a]) if signal == "r" else (cost, env.world.cmdp.c[s, a])
    assert set(np.unique(samples)) == {0.0, 1.0}
    assert abs((samples - p).sum()) < 4 * np.sqrt((p * (1 - p)).sum())
    # the means differ between pairs: the pair with the largest mean has more ones than the pair with the smallest
    best, worst = ((p == value) for value in (p.max(), p.min()))
    assert samples[best].mean() > samples[worst].mean()


def test_sampled_path_is_the_policys_occupancy():
    # With γ near 1, the occupancy of the uniform policy is nearly the share of visits. Its standard error is below .005.
    world = gridworld(np.random.default_rng(0), size=2, gamma=0.9999)
    s, *_ = random_walk(Gridworld(world), 20_000, seed=1)
    expected = evaluate(world.cmdp, np.full((4, 4), 0.25)).occupancy.sum(1)
    np.testing.assert_allclose(np.bincount(s) / 20_000, expected, atol=0.02)


def test_reset_with_a_seed_repeats_the_path():
    one, same, other = (random_walk(Gridworld(), 50, seed) for seed in (0, 0, 1))
    for column, repeated in zip(one, same, strict=True):
        np.testing.assert_array_equal(column, repeated)
    assert (one[0] != other[0]).any()


def test_text_shows_the_cell_of_the_agent():
    env = Gridworld(size=3, render_mode="ansi")
    state, _ = env.reset(seed=0)
    lines = env.render().split("\n")
    assert [len(line) for line in lines] == [3, 3, 3]
    assert "".join(lines).index("@") == state and "".join(lines).count("@") == 1


def test_picture_shows_the_cell_of_the_agent():
    env = Gridworld(size=3, render_mode="rgb_array")
    state, _ = env.reset(seed=0)
    picture = env.render()
    assert picture.shape == (72, 72, 3) and picture.dtype == np.uint8
    is_blue = (picture[12::24, 12::24, 2].astype(int) > picture[12::24, 12::24, 0]).ravel()  # the middle of each cell
    assert np.nonzero(is_blue)[0].tolist() == [state]
