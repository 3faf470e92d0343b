"""CarRacingSkid is Gymnasium's CarRacing with skids as the cost."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from support.racing import gymnasium_game, moving_parts, pilot, random_actions

from capax.core.errors import InputError
from capax.envs.racing import CarRacingSkid, skids


@pytest.fixture(scope="module")
def env() -> CarRacingSkid:
    return CarRacingSkid(render_mode="rgb_array")


# The game.


@pytest.mark.parametrize("seed", [0, 1])
def test_game_is_gymnasiums_to_the_last_bit(env, seed):
    game = gymnasium_game()
    env.reset(seed=seed)
    game.reset(seed=seed)
    assert env.game.track == game.track
    paid = 0.0
    for action in random_actions(seed, 75):
        _, reward, terminated, truncated, info = env.step(action)
        expected = [(*game.step(np.clip(action, [-1.0, 0.0, 0.0], 1.0)), skids(game.car.wheels)) for _ in range(2)]
        assert info["rewards"] == [one[1] for one in expected] and reward == expected[0][1] + expected[1][1]
        assert info["cost"] == max(one[-1] for one in expected) and info["frames"] == 2
        assert not (terminated or truncated or expected[0][2] or expected[1][2])
        assert moving_parts(env.game) == moving_parts(game)
        paid += info["cost"]
    assert 10 < paid < 75


def test_seed_decides_the_episode_whatever_was_played_before():
    def play(env: CarRacingSkid) -> tuple[list[np.ndarray], list[float], list[float]]:
        images, earned, paid = [env.reset(seed=7)[0]], [], []
        for action in random_actions(7, 60):
            obs, _, _, _, info = env.step(action)
            images.append(obs)
            earned += info["rewards"]
            paid.append(info["cost"])
        return images, earned, paid

    fresh, used = CarRacingSkid(), CarRacingSkid()
    for seed in (3, None):
        used.reset(seed=seed)
        for action in random_actions(3, 20):
            used.step(action)
    (images, earned, paid), (images_, earned_, paid_) = play(fresh), play(used)
    np.testing.assert_array_equal(images, images_)
    assert earned == earned_ and paid == paid_ and len(set(earned)) > 2 and 0.0 < sum(paid) < 60.0
    fresh.reset(seed=8)
    used.reset(seed=7)
    assert fresh.game.track != used.game.track


def test_gas_and_brake_below_zero_are_zero_and_others_are_unchanged(env):
    env.reset(seed=0)
    env.step(np.array([0.25, 0.0625, 0.125], np.float32))
    wheels = env.game.car.wheels
    assert [wheel.gas for wheel in wheels] == [0.0, 0.0, 0.0625, 0.0625]  # the rear wheels drive
    assert [wheel.brake for wheel in wheels] == 4 * [0.125]
    assert [wheel.steer for wheel in wheels] == [-0.25, -0.25, 0.0, 0.0]
    env.step(np.array([-7.0, -1.0, -0.5]))
    assert [wheel.gas for wheel in wheels] == [0.0] * 4 == [wheel.brake for wheel in wheels]
    assert [wheel.steer for wheel in wheels] == [1.0, 1.0, 0.0, 0.0]


# The cost.


def test_standing_is_free_and_full_gas_and_locked_wheels_skid(env):
    env.reset(seed=0)
    assert all(env.step(np.zeros(3, np.float32))[-1]["cost"] == 0.0 for _ in range(10))
    costs = [env.step(np.array([0.0, 1.0, 0.0], np.float32))[-1]["cost"] for _ in range(25)]
    assert costs[0] == 0.0 and max(costs) == 1.0  # gas rises by .1 a frame
    costs = [env.step(np.array([0.0, 0.0, 1.0], np.float32))[-1]["cost"] for _ in range(80)]
    assert costs[0] == 1.0 and costs[-1] == 0.0  # from speed to rest, where the marks are cleared
    assert math.hypot(*env.game.car.hull.linearVelocity) < 0.1


def test_limit_can_be_kept_at_a_good_return(env):
    # Σ .99^frame r beyond the 21.7 of the paper's CAP, with no skid
    env.reset(seed=0)
    infos = [env.step(pilot(env.game, 30.0))[-1] for _ in range(250)]
    rewards = [reward for info in infos for reward in info["rewards"]]
    assert len(rewards) == 500 and sum(info["cost"] for info in infos) == 0.0
    assert sum(0.99**k * reward for k, reward in enumerate(rewards)) > 30.0


class Script:
    """A game with scripted frames: the marks of a wheel, the reward and whether the game ends."""

    def __init__(self, *frames: tuple[Any, Any, float, bool]) -> None:
        self.frames = list(frames)
        self.car = SimpleNamespace(wheels=[SimpleNamespace(skid_start=None, skid_particle=None) for _ in range(4)])

    def step(self, action: np.ndarray) -> tuple[Any, ...]:
        wheel = self.car.wheels[2]
        wheel.skid_start, wheel.skid_particle, reward, ended = self.frames.pop(0)
        return None, reward, ended, False, {"lap_finished": False} if ended else {}


@pytest.mark.parametrize(
    ("frames", "rewards", "cost", "ended"),
    [
        ([(None, None, 1.0, False), (None, None, 2.5, False)], [1.0, 2.5], 0.0, False),
        ([((0.0, 0.0), None, 1.0, False), (None, None, 0.0, False)], [1.0, 0.0], 1.0, False),
        ([(None, None, 1.0, False), (None, object(), 0.0, False)], [1.0, 0.0], 1.0, False),
        ([((0.0, 0.0), object(), 1.0, False), ((0.0, 0.0), None, 0.0, False)], [1.0, 0.0], 1.0, False),
        ([(None, None, -100.0, True), ((0.0, 0.0), None, 9.0, False)], [-100.0], 0.0, True),
        ([(None, None, -0.1, False), (None, None, 7.0, True)], [-0.1, 7.0], 0.0, True),
    ],
)
def test_cost_is_the_greatest_and_reward_the_sum_until_the_end(monkeypatch, frames, rewards, cost, ended):
    env = CarRacingSkid()
    monkeypatch.setattr(env, "game", Script(*frames))
    monkeypatch.setattr(env, "_observation", lambda: "picture")
    obs, reward, terminated, truncated, info = env.step(np.zeros(3))
    assert (obs, reward, terminated, truncated) == ("picture", sum(rewards), ended, False)
    end = {"lap_finished": False} if ended else {}
    assert info == {"cost": cost, "rewards": rewards, "frames": len(rewards), **end}
    assert isinstance(info["cost"], float)


@pytest.mark.parametrize("repeat", [1, 3])
def test_actions_are_repeated_as_often_as_requested(repeat):
    env = CarRacingSkid(action_repeat=repeat)
    env.reset(seed=0)
    *_, info = env.step(np.zeros(3))
    assert info["frames"] == len(info["rewards"]) == repeat
    assert env.game.t == pytest.approx((1 + repeat) / 50)
    assert env.metadata["render_fps"] == 50 // repeat


def test_game_ends_off_the_field_and_after_a_lap(env):
    env.reset(seed=0)
    env.game.new_lap = True
    _, reward, terminated, truncated, info = env.step(np.zeros(3))
    assert (terminated, truncated, info["frames"], info["lap_finished"]) == (True, False, 1, True) and reward > -1.0
    env.reset(seed=0)
    for body in (env.game.car.hull, *env.game.car.wheels):
        body.position = (body.position[0] + 400.0, body.position[1])
    obs, reward, terminated, truncated, info = env.step(np.zeros(3))
    assert (reward, terminated, truncated, info["frames"]) == (-100.0, True, False, 1) and not info["lap_finished"]
    assert obs.shape == (64, 64, 3)


# What is registered and refused.


def test_registered_task():
    env = gym.make("capax/CarRacingSkid-v0")
    assert env.spec.max_episode_steps == 500
    gas_and_brake_from_0 = (-1.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    assert env.spec.kwargs == {
        "cost_limit": 0.0, "discounted": False, "action_repeat": 2, "violation_rate": 0.4,
        "random_actions": gas_and_brake_from_0,
    }  # fmt: skip
    assert env.observation_space == gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
    assert env.action_space == gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
    assert env.unwrapped.metadata["render_fps"] == 25
    changed = gym.make("capax/CarRacingSkid-v0", cost_limit=3.0, discounted=True).unwrapped
    assert (changed.cost_limit, changed.discounted) == (3.0, True)


def test_gymnasium_accepts_the_environment():
    check_env(gym.make("capax/CarRacingSkid-v0", render_mode="rgb_array").unwrapped)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"render_mode": "human"}, "render_mode is 'human': choose rgb_array or None."),
        ({"drawing": "slow"}, "drawing is 'slow': choose fast or plain."),
        ({"action_repeat": 0}, "action_repeat is 0: give a whole number >= 1."),
    ],
)
def test_unknown_settings_are_refused(options, message):
    with pytest.raises(InputError) as error:
        CarRacingSkid(**options)
    assert str(error.value) == message


@pytest.mark.parametrize("missing", ["Box2D", "pygame"])
def test_a_missing_package_is_named(missing, monkeypatch):
    for module in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(
        InputError, match=r"^CarRacing-v3 needs Box2D and pygame: run pip install 'gymnasium\[box2d\]'\.$"
    ):
        gym.make("capax/CarRacingSkid-v0")


def test_no_display_is_needed_and_nothing_is_printed():
    # warnings as errors crash the import of Box2D, unless they are held back
    code = (
        "import sys, numpy, gymnasium, capax.envs.catalogue\n"
        "capax.envs.catalogue.tasks()\n"
        "assert not {'Box2D', 'pygame'} & set(sys.modules)\n"
        "env = gymnasium.make('capax/CarRacingSkid-v0', render_mode='rgb_array')\n"
        "env.reset(seed=0)\n"
        "env.step(numpy.zeros(3, 'float32'))\n"
        "assert env.render().shape == (400, 600, 3)\n"
    )
    hidden = ("DISPLAY", "WAYLAND_DISPLAY", "PYGAME_HIDE_SUPPORT_PROMPT")
    environ = {name: value for name, value in os.environ.items() if name not in hidden} | {
        "SDL_VIDEODRIVER": "none such"
    }
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], env=environ, capture_output=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
