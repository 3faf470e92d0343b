"""The tasks have the costs, limits, pictures and known optima that they state."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from scipy.optimize import minimize

from capax.core.errors import InputError
from capax.envs import integrator, pendulum
from capax.envs.catalogue import TaskRow, tasks
from capax.envs.integrator import Integrator, optimum
from capax.envs.pendulum import PendulumSpeed, best_return

SMALL = ["capax/Integrator-v0", "capax/PendulumSpeed-v0"]
ROBOTS = ["HalfCheetah", "Hopper", "Walker2d", "Swimmer", "Ant"]


def walk(env: Any, seed: int, count: int = 20) -> tuple[np.ndarray, ...]:
    """Observations, rewards and costs of random actions."""
    rng = np.random.default_rng(seed)
    obs, _ = env.reset(seed=seed)
    rows = [(obs, 0.0, 0.0)]
    for action in rng.uniform(-1.0, 1.0, (count, *env.action_space.shape)).astype(np.float32):
        obs, reward, _, _, info = env.step(action)
        rows.append((obs, reward, info["cost"]))
    return tuple(np.array(column) for column in zip(*rows, strict=True))


def registered(name: str) -> TaskRow:
    return next(row for row in tasks() if row.id == name)


# What is registered.


def test_tasks_are_the_environments_that_are_registered_with_a_limit():
    assert [row for row in tasks() if row.id.startswith("capax/")] == [
        ("capax/AntVelocity-v0", 103.115, True, 1000),
        ("capax/CarRacingSkid-v0", 0.0, False, 500),
        ("capax/Dot-v0", 0.0, False, 50),
        ("capax/HalfCheetahVelocity-v0", 152.0, True, 1000),
        ("capax/HopperVelocity-v0", 82.748, True, 1000),
        ("capax/Integrator-v0", 25.0, False, 50),
        ("capax/PendulumSpeed-v0", 800.0, False, 200),
        ("capax/SwimmerVelocity-v0", 24.516, True, 1000),
        ("capax/Walker2dVelocity-v0", 81.886, True, 1000),
    ]


def test_tasks_of_other_packages_are_listed(monkeypatch):
    monkeypatch.setitem(
        gym.registry, "mine/Own-v3", gym.envs.registration.EnvSpec("mine/Own-v3", "a:B", kwargs={"cost_limit": 3})
    )
    assert registered("mine/Own-v3") == ("mine/Own-v3", 3.0, None, None)
    assert "Pendulum-v1" not in {row.id for row in tasks()}


def test_import_leaves_mujoco_alone():
    code = "import sys, capax, capax.envs.catalogue; capax.envs.catalogue.tasks(); assert 'mujoco' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@pytest.mark.parametrize("name", [*SMALL, *(f"capax/{robot}Velocity-v0" for robot in ROBOTS)])
def test_limit_and_convention_reach_the_environment(name):
    if "Velocity" in name:
        pytest.importorskip("mujoco")
    env = gym.make(name).unwrapped
    assert (env.cost_limit, env.discounted) == registered(name)[1:3]
    changed = gym.make(name, cost_limit=7.0, discounted=None).unwrapped
    assert (changed.cost_limit, changed.discounted) == (7.0, None)


@pytest.mark.parametrize("mode", [None, "rgb_array"])
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.filterwarnings("ignore:.*infinity")  # the positions on the line are unbounded
def test_gymnasium_accepts_the_environment(name, mode):
    check_env(gym.make(name, render_mode=mode).unwrapped)


@pytest.mark.parametrize("name", SMALL)
def test_seed_decides_the_episode(name):
    one, same, other = (walk(gym.make(name), seed) for seed in (0, 0, 1))
    for column, repeated in zip(one, same, strict=True):
        np.testing.assert_array_equal(column, repeated)
    assert (one[0][0] != other[0][0]).any()


@pytest.mark.parametrize("env", [Integrator, PendulumSpeed])
def test_unknown_render_mode_is_refused(env):
    with pytest.raises(InputError, match="render_mode is 'human': choose rgb_array"):
        env(render_mode="human")
    assert env().render() is None


# The robots.


@pytest.mark.parametrize("robot", ROBOTS)
def test_robot_is_gymnasiums_and_its_speed_is_the_cost(robot):
    pytest.importorskip("mujoco")
    options = {"include_cfrc_ext_in_observation": False} if robot == "Ant" else {}
    ours, theirs = gym.make(f"capax/{robot}Velocity-v0"), gym.make(f"{robot}-v5", **options)
    assert ours.observation_space == theirs.observation_space and ours.action_space == theirs.action_space
    assert ours.metadata["render_fps"] == theirs.metadata["render_fps"]
    np.testing.assert_array_equal(ours.reset(seed=3)[0], theirs.reset(seed=3)[0])
    rng = np.random.default_rng(0)
    for _ in range(20):
        action = rng.uniform(-1.0, 1.0, ours.action_space.shape).astype(np.float32)
        (obs, reward, *ends, info), (obs_, reward_, *ends_, info_) = ours.step(action), theirs.step(action)
        np.testing.assert_array_equal(obs, obs_)
        assert reward == reward_ and ends == ends_
        speed = np.sqrt(info_["x_velocity"] ** 2 + info_.get("y_velocity", 0.0) ** 2)
        assert info["cost"] == pytest.approx(speed, rel=1e-12) and info["cost"] > 0.0
        assert {key: info[key] for key in info_} == info_


def test_cheetah_earns_speed_less_effort_and_pays_for_speed_in_both_directions():
    # r = v − 0.1 ‖a‖²; the speed is the change of the position in .05 s, of either sign
    pytest.importorskip("mujoco")
    env = gym.make("capax/HalfCheetahVelocity-v0").unwrapped
    env.reset(seed=0)
    signs = set()
    for k in range(40):
        action = np.full(6, np.sin(k), np.float32)
        before = env.robot.data.qpos[0]
        _, reward, _, _, info = env.step(action)
        v = (env.robot.data.qpos[0] - before) / 0.05
        assert info["cost"] == pytest.approx(abs(v), rel=1e-9)
        assert reward == pytest.approx(v - 0.1 * float(np.sum(action.astype(float) ** 2)), abs=1e-6)
        signs.add(np.sign(v))
    assert signs == {-1.0, 1.0}


def test_ant_and_swimmer_pay_for_moving_sideways():
    pytest.importorskip("mujoco")
    for robot in ("Ant", "Swimmer"):
        env = gym.make(f"capax/{robot}Velocity-v0")
        env.reset(seed=0)
        *_, info = env.step(np.zeros(env.action_space.shape, np.float32))
        assert info["cost"] > abs(info["x_velocity"]) and info["cost"] > abs(info["y_velocity"])
    assert gym.make("capax/AntVelocity-v0").observation_space.shape == (27,)  # 15 − 2 positions and 14 speeds


def test_render_mode_reaches_the_robot():
    pytest.importorskip("mujoco")
    env = gym.make("capax/HopperVelocity-v0", render_mode="rgb_array").unwrapped
    assert env.render_mode == env.robot.render_mode == "rgb_array"
    env.robot.render = lambda: "picture"  # needs no OpenGL
    assert env.render() == "picture"
    env.close()


@pytest.mark.parametrize("missing", ["mujoco", "imageio"])
def test_missing_mujoco_is_named(missing, monkeypatch):
    for module in [name for name in sys.modules if name.startswith("gymnasium.envs.mujoco")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InputError, match=r"^HalfCheetah-v5 needs MuJoCo: run pip install 'gymnasium\[mujoco\]'\.$"):
        gym.make("capax/HalfCheetahVelocity-v0")


# The integrator.


def test_integrator_moves_by_its_action():
    env = Integrator()
    x = env.reset(seed=0)[0][0]
    assert abs(x) <= integrator.NOISE
    for push, move in ((0.5, 0.05), (-1.0, -0.1), (7.0, 0.1)):  # a push is at most 1
        obs, reward, terminated, truncated, info = env.step(np.array([push], np.float32))
        x += move
        assert obs == pytest.approx([x]) and reward == pytest.approx(x) and info["cost"] == pytest.approx(x * x)
        assert not terminated and not truncated
    assert gym.spec("capax/Integrator-v0").max_episode_steps == integrator.STEPS


@pytest.mark.parametrize("start", [-0.05, 0.0, 0.05])
@pytest.mark.parametrize("limit", [1.0, 25.0])
def test_optimum_is_that_of_a_convex_program(start, limit):
    # max Σ x_t subject to Σ x_t² ≤ d and |a_t| ≤ 1, over the 50 actions, by a general solver
    to_x = 0.1 * np.tril(np.ones((50, 50)))
    result = minimize(
        lambda a: -(start + to_x @ a).sum(),
        np.zeros(50),
        jac=lambda a: -to_x.sum(0),
        bounds=[(-1.0, 1.0)] * 50,
        constraints={
            "type": "ineq",
            "fun": lambda a: limit - ((start + to_x @ a) ** 2).sum(),
            "jac": lambda a: -2.0 * (start + to_x @ a) @ to_x,
        },
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-12},
    )
    assert result.success
    assert optimum(start, limit=limit).earned == pytest.approx(-result.fun, rel=1e-6)


def test_optimum_by_hand():
    # k = 7: the way costs .01 (1 + 4 + … + 49) = 1.4, so m² = (25 − 1.4)/43, and it earns .1 (1 + … + 7).
    best = optimum()
    assert best.level == pytest.approx(np.sqrt(23.6 / 43), rel=1e-12)
    assert best.earned == pytest.approx(2.8 + 43 * np.sqrt(23.6 / 43), rel=1e-12)
    # full speed to the end costs 429.25 = .01 Σ t²; a higher limit does not bind
    assert optimum(limit=429.25 + 1e-9) == (pytest.approx(127.5), np.inf)
    assert optimum(limit=429.24).earned < 127.5
    with pytest.raises(InputError, match="give a start that is low enough"):
        optimum(3.0)


def play(env: Any, seed: int, policy: Any) -> tuple[float, float]:
    """Return and cost of an episode."""
    obs, _ = env.reset(seed=seed)
    earned = paid = 0.0
    ended = False
    while not ended:
        obs, reward, terminated, truncated, info = env.step(np.array([policy(obs)], np.float32))
        earned, paid, ended = earned + reward, paid + info["cost"], terminated or truncated
    return earned, paid


@pytest.mark.parametrize("seed", [0, 1])
def test_optimum_is_reached_and_the_limit_binds(seed):
    env = gym.make("capax/Integrator-v0")
    best = optimum(float(env.reset(seed=seed)[0][0]))
    earned, paid = play(env, seed, lambda x: (best.level - x[0]) / 0.1)
    assert earned == pytest.approx(best.earned, rel=1e-5) and paid == pytest.approx(25.0, rel=1e-5)
    # a planner with a short horizon stays where 50 steps cost 25: within 5 % of the optimum and of the limit
    steady, cheap = play(env, seed, lambda x: (np.sqrt(0.5) - x[0]) / 0.1)
    assert 0.95 * best.earned < steady < best.earned and cheap < 25.0
    # the limit binds: full speed earns more and costs much more
    greedy, dear = play(env, seed, lambda x: 1.0)
    assert greedy > 3 * best.earned and dear > 15 * 25.0


# The pendulum.


def test_pendulum_obeys_its_equations():
    env = PendulumSpeed()
    env.reset(seed=0)
    env.theta, env.speed = 2.0, 0.3
    obs, reward, terminated, truncated, info = env.step(np.array([-0.5], np.float32))
    speed = 0.3 + (9.81 * np.sin(2.0) - 7.5) * 0.05
    theta = 2.0 + speed * 0.05
    np.testing.assert_allclose(obs, [np.cos(theta), np.sin(theta), speed], rtol=1e-12)
    assert reward == pytest.approx(speed) and (terminated, truncated) == (False, False)
    assert info["cost"] == pytest.approx(speed**2) and speed > 0.3


def test_turning_backwards_costs_as_much_and_earns_the_opposite():
    env = PendulumSpeed()
    env.reset(seed=0)
    env.theta, env.speed = 0.0, -2.5  # upright, where gravity has no effect
    _, reward, _, _, info = env.step(np.zeros(1, np.float32))
    assert (reward, info["cost"]) == (-2.5, 6.25)


def test_pendulum_starts_hanging_and_does_not_run_away():
    env = PendulumSpeed()
    starts = np.array([env.reset(seed=seed)[0] for seed in range(50)])
    assert (starts[:, 0] < -0.998).all() and (np.abs(starts[:, 2]) <= 0.05).all() and np.ptp(starts[:, 1]) > 0.05
    for _ in range(300):
        obs, *_ = env.step(np.ones(1, np.float32))
        assert env.observation_space.contains(obs)
    assert obs[2] == 8.0


def turn(speed: float) -> Any:
    """A policy that holds a speed: the motor balances gravity."""
    return lambda obs: ((speed - obs[2]) / pendulum.DELTA - pendulum.GRAVITY * obs[1]) / pendulum.TORQUE


@pytest.mark.parametrize("seed", [0, 1])
def test_bound_is_nearly_reached_within_the_limit_and_passed_without_it(seed):
    env = gym.make("capax/PendulumSpeed-v0")
    earned, paid = play(env, seed, turn(2.0))
    assert 0.98 * best_return() < earned <= best_return() and paid <= 800.0
    hasty, dear = play(env, seed, turn(pendulum.TOP_SPEED))
    assert hasty > 3 * best_return() and dear > 10 * 800.0


def test_no_policy_earns_more_than_its_cost_allows():
    # √(200·800) = 400; √(200·800/4) = 200; 200 steps at 8 rad/s are 1600
    assert (best_return(), best_return(limit=200.0), best_return(limit=1e9)) == (400.0, 200.0, 1600.0)
    rng = np.random.default_rng(0)
    env = gym.make("capax/PendulumSpeed-v0")
    for seed in range(5):
        earned, paid = play(env, seed, lambda obs: rng.uniform(-1.0, 1.0))
        assert earned <= best_return(limit=paid)


# Pictures.


def centre(picture: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    """Mean (x, y) of the pixels of a colour, from the centre of the picture, in units of half a side; y goes up."""
    rows, columns = np.nonzero((picture == colour).all(-1))
    return np.array([columns.mean() - 99.5, 99.5 - rows.mean()]) / 99.5


BLUE, RED = (40, 70, 200), (210, 50, 40)


def test_picture_shows_the_point_where_it_is():
    env = Integrator(render_mode="rgb_array")
    env.reset(seed=0)
    env.x = 1.0
    picture = env.render()
    assert picture.shape == (200, 200, 3) and picture.dtype == np.uint8
    np.testing.assert_allclose(centre(picture, BLUE), [0.5, 0.0], atol=0.01)  # the picture shows ±2
    assert (picture[5, 100] == picture[5, 130]).all() and (picture[5, 140] == 255).all()  # .707 is at pixel 134.7


@pytest.mark.parametrize(("theta", "place"), [(0.0, (0, 1)), (np.pi, (0, -1)), (np.pi / 2, (1, 0))])
def test_picture_shows_the_pendulum_where_it_is(theta, place):
    env = PendulumSpeed(render_mode="rgb_array")
    env.reset(seed=0)
    env.theta, env.speed = theta, 1.5
    picture = env.render()
    assert picture.shape == (200, 200, 3) and picture.dtype == np.uint8
    np.testing.assert_allclose(centre(picture, BLUE), np.array(place) / 1.4, atol=0.01)
    env.speed = -2.1
    np.testing.assert_allclose(centre(env.render(), RED), np.array(place) / 1.4, atol=0.01)
