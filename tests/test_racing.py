"""Is CarRacingSkid Gymnasium's CarRacing, with skids as the cost and the same picture drawn sooner?"""

from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
import time
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from scipy.ndimage import gaussian_filter

from capax.envs.racing import CarRacingSkid, skids
from capax.errors import InputError

if sys.platform == "linux" and platform.machine() != "x86_64" and find_spec("Box2D") is None:
    pytest.skip("Box2D has no wheels here, and is no dependency", allow_module_level=True)

SPEC = spec_from_file_location("driving", Path(__file__).parents[1] / "benchmarks" / "driving.py")
assert SPEC is not None and SPEC.loader is not None
driving = module_from_spec(SPEC)
SPEC.loader.exec_module(driving)
pilot = driving.pilot


@pytest.fixture(scope="module")
def env() -> CarRacingSkid:
    return CarRacingSkid(render_mode="rgb_array")


def theirs() -> Any:
    """Gymnasium's own; made after ours, which knows how to import Box2D where warnings are errors."""
    CarRacingSkid()
    return gym.make("CarRacing-v3", disable_env_checker=True).unwrapped


def wild(seed: int, count: int) -> np.ndarray:
    """Random actions `[count, 3]` in [-1, 1], each held for six steps."""
    return np.random.default_rng(seed).uniform(-1.0, 1.0, (count // 6 + 1, 3)).repeat(6, 0)[:count].astype(np.float32)


def spin(k: int) -> np.ndarray:
    """The action of step k: round in circles, so that the trails stay in sight."""
    return np.array([1.0, float(k <= 30), 0.0])


def state(game: Any) -> list[tuple[float, ...]]:
    """Everything that moves."""
    bodies = [game.car.hull, *game.car.wheels]
    moving = [(*body.position, body.angle, *body.linearVelocity, body.angularVelocity) for body in bodies]
    return moving + [(wheel.omega, wheel.phase, wheel.gas, wheel.brake) for wheel in game.car.wheels]


# The game.


@pytest.mark.parametrize("seed", [0, 1])
def test_game_is_gymnasiums_to_the_last_bit(env, seed):
    game = theirs()
    env.reset(seed=seed)
    game.reset(seed=seed)
    assert env.game.track == game.track
    paid = 0.0
    for action in wild(seed, 75):
        _, reward, terminated, truncated, info = env.step(action)
        expected = [(*game.step(np.clip(action, [-1.0, 0.0, 0.0], 1.0)), skids(game.car.wheels)) for _ in range(2)]
        assert info["rewards"] == [one[1] for one in expected] and reward == expected[0][1] + expected[1][1]
        assert info["cost"] == max(one[-1] for one in expected) and info["frames"] == 2
        assert not (terminated or truncated or expected[0][2] or expected[1][2])
        assert state(env.game) == state(game)
        paid += info["cost"]
    assert 10 < paid < 75


def test_seed_decides_the_episode_whatever_was_played_before():
    def played(env: CarRacingSkid) -> tuple[list[np.ndarray], list[float], list[float]]:
        seen, earned, paid = [env.reset(seed=7)[0]], [], []
        for action in wild(7, 60):
            obs, _, _, _, info = env.step(action)
            seen.append(obs)
            earned += info["rewards"]
            paid.append(info["cost"])
        return seen, earned, paid

    fresh, used = CarRacingSkid(), CarRacingSkid()
    for seed in (3, None):
        used.reset(seed=seed)
        for action in wild(3, 20):
            used.step(action)
    (seen, earned, paid), (seen_, earned_, paid_) = played(fresh), played(used)
    np.testing.assert_array_equal(seen, seen_)
    assert earned == earned_ and paid == paid_ and len(set(earned)) > 2 and 0.0 < sum(paid) < 60.0
    fresh.reset(seed=8)
    used.reset(seed=7)
    assert fresh.game.track != used.game.track


def test_gas_and_brake_below_zero_are_none_and_others_are_as_they_are(env):
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
    """A game that plays what is written: per frame, the marks of a wheel, the reward and whether it ends."""

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
def test_actions_are_repeated_as_often_as_wished(repeat):
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


# The picture.


def similarity(a: np.ndarray, b: np.ndarray) -> float:
    """Mean structural similarity of two pictures of bytes (Wang et al. 2004: Gaussian window of σ = 1.5)."""

    def mean(x: np.ndarray) -> np.ndarray:
        return gaussian_filter(x, (1.5, 1.5, 0.0), truncate=3.5)

    a, b = a.astype(float), b.astype(float)
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    mean_a, mean_b = mean(a), mean(b)
    var_a, var_b, both = mean(a * a) - mean_a**2, mean(b * b) - mean_b**2, mean(a * b) - mean_a * mean_b
    light = (2 * mean_a * mean_b + c1) / (mean_a**2 + mean_b**2 + c1)
    return float(np.mean(light * (2 * both + c2) / (var_a + var_b + c2)))


def test_similarity_tells_pictures_apart():
    rng = np.random.default_rng(0)
    picture = rng.integers(0, 256, (64, 64, 3)).astype(np.uint8)
    assert similarity(picture, picture) == pytest.approx(1.0)
    assert similarity(picture, np.roll(picture, 1, 0)) < 0.1
    # flat pictures: only the light counts, (2·100·110 + 6.5025)/(100² + 110² + 6.5025)
    flat = [np.full((64, 64, 3), value, np.uint8) for value in (100, 110)]
    assert similarity(*flat) == pytest.approx(22006.5025 / 22106.5025, rel=1e-9)


def sights(game: Any, frame: np.ndarray) -> dict[str, bool]:
    """Which of the things that a comparison of pictures should see are there now."""
    wheels, particles = game.car.wheels, game.car.particles
    red, white = (
        (np.abs(frame[:340].astype(int) - colour).max(-1) < 9).sum() for colour in ((255, 0, 0), (255, 255, 255))
    )
    return {
        "far above": game.t < 0.2,
        "edge of the field": (frame[:340] == 0).all(-1).mean() > 0.1,
        "road": all(wheel.tiles for wheel in wheels),
        "grass": not any(wheel.tiles for wheel in wheels),
        "skid": any(not particle.grass for particle in particles),
        "mud": any(particle.grass for particle in particles),
        "steering": abs(wheels[0].joint.angle) > 0.35,
        "spinning": abs(game.car.hull.angularVelocity) > 1.0,
        "visited": game.tile_visited_count > 10,
        "border": game.t > 1.0 and min(red, white) > 50,
    }


def test_fast_picture_is_the_plain_one(env):
    likeness, differences, seen = [], [], {}

    def compare(obs: np.ndarray) -> None:
        frame = env.render()
        plain = env.reduced(frame)
        likeness.append(similarity(obs, plain))
        differences.append(np.abs(obs.astype(int) - plain))
        seen.update({name: there or seen.get(name, False) for name, there in sights(env.game, frame).items()})

    for seed in range(3):
        compare(env.reset(seed=seed)[0])
        for k, action in enumerate(wild(seed, 90)):
            obs = env.step(action)[0]
            if k < 4 or k % 9 == 0:
                compare(obs)
    for count, drive in ((150, lambda k: pilot(env.game, 45.0)), (80, spin)):
        env.reset(seed=1)
        for k in range(count):
            obs = env.step(drive(k))[0]
            if k % 10 == 0:
                compare(obs)
    assert [name for name, there in seen.items() if not there] == []
    assert np.mean(likeness) > 0.998 and min(likeness) > 0.995
    field, dials = ([np.mean(one[part]) for one in differences] for part in (np.s_[:56], np.s_[56:]))
    assert max(field) < 3.0 and max(dials) < 2.0 and np.max(differences) < 48


def test_trails_are_where_the_plain_picture_has_them(env):
    env.reset(seed=0)
    for k in range(80):
        env.step(spin(k))

    def pictures() -> np.ndarray:
        return np.array([env.painter.picture(), env.reduced(env.render())], int)[:, :56]

    assert len(env.game.car.particles) > 3
    drawn = pictures()
    env.game.car.particles.clear()
    fast, plain = drawn - pictures()  # what the trails darken
    assert plain.min() < -20
    assert np.corrcoef(fast.ravel(), plain.ravel())[0, 1] > 0.95
    assert fast.sum() == pytest.approx(plain.sum(), rel=0.2)


def test_road_is_grey_in_stripes_and_plain_where_the_car_was(env):
    # tiles are of 102, 104 and 107, and of 102 once they were touched; averages may be 2 lower
    env.reset(seed=0)
    for _ in range(30):
        obs, *_ = env.step(np.zeros(3))
    road = obs[2:40, 32].astype(int)
    assert (road == road[:, :1]).all() and 99 <= road.min() <= 102 and 104 <= road.max() <= 107
    for _, colour in env.game.road_poly:
        if isinstance(colour, np.ndarray):
            colour[:] = 102  # as Gymnasium does
    road = env.step(np.zeros(3))[0][2:40, 32].astype(int)
    assert road.min() >= 99 and road.max() <= 102


def test_only_what_is_observed_is_drawn(env, monkeypatch):
    drawn = []
    painter, game = env.painter, type(env.game)
    picture = painter.picture
    monkeypatch.setattr(painter, "picture", lambda: drawn.append("fast") or picture())
    monkeypatch.setattr(game, "_render", lambda self, mode: drawn.append(mode))
    env.reset(seed=0)
    for _ in range(5):
        env.step(np.zeros(3))
    assert drawn == 6 * ["fast"]
    env.render()
    assert drawn[6:] == ["rgb_array"]


def test_plain_drawing_is_the_averaged_frame():
    env = CarRacingSkid(drawing="plain", render_mode="rgb_array")
    obs, _ = env.reset(seed=0)
    np.testing.assert_array_equal(obs, env.reduced(env.render()))
    obs = env.step(np.zeros(3))[0]
    np.testing.assert_array_equal(obs, env.reduced(env.render()))
    assert env.observation_space.contains(obs)


def test_averages_are_of_areas(env):
    rng = np.random.default_rng(0)
    frame = rng.integers(0, 256, (128, 192, 3)).astype(np.uint8)  # 2 × 3 pixels to one
    blocks = frame.reshape(64, 2, 64, 3, 3).mean((1, 3))
    assert np.abs(env.reduced(frame) - blocks).max() <= 0.5 + 1e-4
    # 96 columns to 64: the first takes all of the first and half of the second, and so 2/3 and 1/3 of them
    frame = np.zeros((64, 96, 3), np.uint8)
    frame[:, 1] = 240
    np.testing.assert_array_equal(env.reduced(frame)[5, :3, 0], [80, 80, 0])


def test_pictures_are_not_written_over(env):
    first, _ = env.reset(seed=0)
    kept = first.copy()
    for action in wild(0, 30):
        env.step(action)
    np.testing.assert_array_equal(first, kept)


def test_frame_for_films_is_gymnasiums(env):
    env.reset(seed=2)
    game = theirs()
    game.reset(seed=2)
    frame = env.render()
    assert frame.shape == (400, 600, 3) and frame.dtype == np.uint8
    np.testing.assert_array_equal(frame, game._render("rgb_array"))
    assert CarRacingSkid().render() is None


def test_drawing_is_much_faster(env):
    env.reset(seed=0)
    for action in wild(0, 60):
        env.step(action)

    def least(draw: Any) -> float:
        times = []
        for _ in range(8):
            began = time.perf_counter()
            draw()
            times.append(time.perf_counter() - began)
        return min(times)

    assert least(env.painter.picture) < least(env._frame) / 4


# What is registered and refused.


def test_registered_task():
    env = gym.make("capax/CarRacingSkid-v0")
    assert env.spec.max_episode_steps == 500
    assert env.spec.kwargs == {"cost_limit": 0.0, "discounted": False, "action_repeat": 2, "violation_rate": 0.4}
    assert env.observation_space == gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
    assert env.action_space == gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
    assert env.unwrapped.metadata["render_fps"] == 25
    given = gym.make("capax/CarRacingSkid-v0", cost_limit=3.0, discounted=True).unwrapped
    assert (given.cost_limit, given.discounted) == (3.0, True)


def test_gymnasium_accepts_the_environment():
    check_env(gym.make("capax/CarRacingSkid-v0", render_mode="rgb_array").unwrapped)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"render_mode": "human"}, "render_mode is 'human': choose rgb_array or None."),
        ({"drawing": "slow"}, "drawing is 'slow': choose fast or plain."),
        ({"action_repeat": 0}, "action_repeat is 0: give a whole number >= 1."),
    ],
)
def test_unknown_settings_are_refused(given, message):
    with pytest.raises(InputError) as error:
        CarRacingSkid(**given)
    assert str(error.value) == message


@pytest.mark.parametrize("missing", ["Box2D", "pygame"])
def test_what_is_missing_is_named(missing, monkeypatch):
    for module in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(
        InputError, match=r"^CarRacing-v3 needs Box2D and pygame: run pip install 'gymnasium\[box2d\]'\.$"
    ):
        gym.make("capax/CarRacingSkid-v0")


def test_no_display_is_needed_and_nothing_is_said():
    # warnings as errors crash the import of Box2D, unless they are held back
    code = (
        "import sys, numpy, gymnasium, capax.tasks\n"
        "capax.tasks.tasks()\n"
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
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], env=environ, capture_output=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
