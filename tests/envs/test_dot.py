"""The dot earns and pays what its task states on each way, and the picture shows the state."""

from __future__ import annotations

import time
from collections.abc import Callable

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from capax.core.errors import InputError
from capax.envs import dot
from capax.envs.dot import Dot

ABOVE, BELOW = np.array([32.0, 23.0]), np.array([32.0, 47.0])


def towards(target: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """A policy that goes to the target at full speed and stays there."""

    def policy(place: np.ndarray) -> np.ndarray:
        way = (target - place) / dot.SPEED
        return way / max(1.0, np.abs(way).max())

    return policy


def around(corner: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """A policy that goes to the corner, and once past it to the goal."""
    return lambda place: towards(corner if place[0] < corner[0] - 0.1 else dot.GOAL)(place)


def play(seed: int, policy: Callable[[np.ndarray], np.ndarray]) -> tuple[float, float, int, np.ndarray]:
    """Return, cost, the steps until the dot was within a pixel of the goal, and where it started."""
    env = gym.make("capax/Dot-v0")
    env.reset(seed=seed)
    start = env.unwrapped.place
    earned = paid = 0.0
    steps, reached, ended = 0, 0, False
    while not ended:
        _, reward, terminated, ended, info = env.step(policy(env.unwrapped.place).astype(np.float32))
        assert not terminated and info["cost"] in (0.0, 1.0)
        earned, paid, steps = earned + reward, paid + info["cost"], steps + 1
        if not reached and np.hypot(*(env.unwrapped.place - dot.GOAL)) < 1.0:
            reached = steps
    assert steps == 50
    return earned, paid, reached, start


@pytest.mark.parametrize("seed", range(10))
def test_straight_way_costs_and_the_way_around_does_not(seed):
    earned, paid, steps, start = play(seed, towards(dot.GOAL))
    best = 0.1 * np.hypot(*(start - dot.GOAL))  # the rewards telescope
    assert earned == pytest.approx(best, abs=1e-4) and 4.3 <= best <= 5.3
    assert 4.0 <= paid <= 6.0 and 15 <= steps <= 18
    earned, paid, steps, _ = play(seed, around(ABOVE))
    assert earned == pytest.approx(best, abs=1e-4) and paid == 0.0 and 15 <= steps <= 19


def test_upper_way_is_the_shorter():
    # the hazard reaches from 9 above its middle to 9 below, and the start and the goal are 3 above it: 6 up, 12 down
    corners = dot.HAZARD + np.array([(0.0, -9.0), (0.0, 9.0)])
    up, down = (np.hypot(*(corner - dot.START)) + np.hypot(*(dot.GOAL - corner)) for corner in corners)
    assert up == pytest.approx(2 * np.hypot(24.0, 6.0)) and down == pytest.approx(2 * np.hypot(24.0, 12.0))
    assert play(0, around(BELOW))[1] == 0.0  # the lower way is free too


def test_action_moves_the_dot_within_the_picture():
    env = Dot()
    env.reset(seed=0)
    env.place = np.array([20.0, 10.0])
    before = np.hypot(36.0, 22.0)
    _, reward, terminated, truncated, info = env.step(np.array([0.5, -1.0], np.float32))
    assert env.place == pytest.approx([21.5, 7.0]) and not terminated and not truncated
    assert reward == pytest.approx(0.1 * (before - np.hypot(34.5, 25.0))) and info == {"cost": 0.0}
    env.step(np.array([9.0, 9.0]))  # an action is at most 1
    assert env.place == pytest.approx([24.5, 10.0])
    for _ in range(20):  # and the edges of the picture hold the dot
        env.step(np.array([-1.0, 1.0]))
    assert env.place == pytest.approx([6.0, 58.0])


@pytest.mark.parametrize(
    ("place", "push", "cost"),
    [
        ((32.0, 24.5), (0.0, 1.0), 1.0),  # 9 is the radius around (32, 35): the dot ends 7.5 above the centre
        ((32.0, 24.5), (0.0, 0.4), 0.0),  # it ends 9.3 above
        ((43.5, 35.0), (-1.0, 0.0), 1.0),
        ((39.5, 35.0), (1.0, 0.0), 0.0),  # leaves the hazard
    ],
)
def test_cost_is_that_of_the_place_where_the_dots_centre_ends(place, push, cost):
    env = Dot()
    env.reset(seed=0)
    env.place = np.array(place)
    assert env.step(np.array(push))[-1] == {"cost": cost}


def test_start_is_on_the_left_and_the_seed_decides_it():
    env = gym.make("capax/Dot-v0").unwrapped
    starts = []
    for seed in range(60):
        env.reset(seed=seed)
        starts.append(env.place)
    offset = np.array(starts) - dot.START
    assert np.abs(offset).max() <= 2.0 and (offset.max(0) > 1.5).all() and (offset.min(0) < -1.5).all()
    pushes = np.random.default_rng(0).uniform(-1.0, 1.0, (20, 2)).astype(np.float32)
    runs = []
    for seed in (5, 5, 6):
        other = gym.make("capax/Dot-v0")
        runs.append([other.reset(seed=seed)[0], *(other.step(push)[0] for push in pushes)])
    np.testing.assert_array_equal(runs[0], runs[1])
    assert (runs[0][0] != runs[2][0]).any()


# The picture.


@pytest.mark.parametrize("place", [(8.0, 32.0), (10.3, 50.7), (6.0, 6.0), (58.0, 58.0), (20.25, 14.5)])
def test_dot_is_drawn_at_its_place_to_a_fraction_of_a_pixel(place):
    env = Dot()
    env.reset(seed=0)
    env.place = np.array(place)
    covered = (env.observation() - env.backdrop.astype(float)) @ (dot.BLUE - dot.GROUND)  # it lies on plain ground
    covered /= np.sum((dot.BLUE - dot.GROUND) ** 2.0)
    centres = np.arange(64) + 0.5
    centroid = np.array([covered.sum(0) @ centres, covered.sum(1) @ centres]) / covered.sum()
    np.testing.assert_allclose(centroid, place, atol=0.03)
    assert covered.sum() == pytest.approx(np.pi * 6.0**2, rel=0.02)


def test_dot_goal_hazard_and_ground_have_their_colours():
    env = Dot()
    obs, _ = env.reset(seed=0)
    assert obs.shape == (64, 64, 3) and obs.dtype == np.uint8 and env.observation_space.contains(obs)
    column, row = env.place.astype(int)
    for (y, x), colour in {(row, column): dot.BLUE, (32, 56): dot.GREEN, (35, 32): dot.RED, (5, 5): dot.GROUND}.items():
        np.testing.assert_array_equal(obs[y, x], colour)
    np.testing.assert_array_equal(obs[35, [22, 24, 39, 41]], [dot.GROUND, dot.RED, dot.RED, dot.GROUND])
    env.place = dot.HAZARD  # the dot is in front of the hazard, which is visible around it
    obs = env.observation()
    np.testing.assert_array_equal(obs[35, [24, 32]], [dot.RED, dot.BLUE])


def test_small_move_changes_the_picture():
    env = Dot()
    env.reset(seed=0)
    env.place = np.array([12.0, 20.0])
    before = env.observation().astype(int)
    env.step(np.array([0.1, 0.0]))
    change = np.abs(env.observation() - before).max(-1)
    assert change.max() > 30 and (change > 10).sum() >= 8


def test_earlier_pictures_are_not_overwritten():
    env = Dot()
    first, _ = env.reset(seed=0)
    kept = first.copy()
    for _ in range(5):
        env.step(np.ones(2))
    np.testing.assert_array_equal(first, kept)


def test_rendered_picture_is_the_observation_enlarged():
    env = Dot(render_mode="rgb_array")
    obs, _ = env.reset(seed=0)
    picture = env.render()
    assert picture.shape == (256, 256, 3) and picture.dtype == np.uint8
    np.testing.assert_array_equal(picture[::4, ::4], obs)
    np.testing.assert_array_equal(picture[3::4, 2::4], obs)
    assert Dot().render() is None
    with pytest.raises(InputError, match="render_mode is 'human': choose rgb_array or None"):
        Dot(render_mode="human")


# Registration.


@pytest.mark.parametrize("mode", [None, "rgb_array"])
def test_gymnasium_accepts_the_environment(mode):
    check_env(gym.make("capax/Dot-v0", render_mode=mode).unwrapped)


def test_registered_task():
    spec = gym.spec("capax/Dot-v0")
    assert spec.max_episode_steps == dot.STEPS == 50 and spec.kwargs == {
        "cost_limit": 0.0,
        "discounted": False,
        "violation_rate": 0.2,
    }
    env = gym.make("capax/Dot-v0", cost_limit=2.0, discounted=True).unwrapped
    assert (env.cost_limit, env.discounted) == (2.0, True)
    assert env.action_space == gym.spaces.Box(-1.0, 1.0, (2,), np.float32)


def test_steps_are_fast():
    env = Dot()
    env.reset(seed=0)
    began = time.process_time()
    for _ in range(500):
        env.step(np.full(2, 0.1))
    assert time.process_time() - began < 0.5  # 1,000 steps/s; the usual speed is more than ten times that
