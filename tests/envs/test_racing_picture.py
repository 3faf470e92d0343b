"""The fast picture of CarRacingSkid is like Gymnasium's, and takes less time."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter
from support.racing import circle_action, gymnasium_game, pilot, random_actions

from capax.envs.racing import CarRacingSkid


@pytest.fixture(scope="module")
def env() -> CarRacingSkid:
    return CarRacingSkid(render_mode="rgb_array")


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


def scenes(game: Any, frame: np.ndarray) -> dict[str, bool]:
    """Which of the scenes that a comparison of pictures needs are present now."""
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
    likeness, differences, covered = [], [], {}

    def compare(obs: np.ndarray) -> None:
        frame = env.render()
        plain = env.reduced(frame)
        likeness.append(similarity(obs, plain))
        differences.append(np.abs(obs.astype(int) - plain))
        covered.update({name: now or covered.get(name, False) for name, now in scenes(env.game, frame).items()})

    for seed in range(3):
        compare(env.reset(seed=seed)[0])
        for k, action in enumerate(random_actions(seed, 90)):
            obs = env.step(action)[0]
            if k < 4 or k % 9 == 0:
                compare(obs)
    for count, drive in ((150, lambda k: pilot(env.game, 45.0)), (80, circle_action)):
        env.reset(seed=1)
        for k in range(count):
            obs = env.step(drive(k))[0]
            if k % 10 == 0:
                compare(obs)
    assert [name for name, present in covered.items() if not present] == []
    assert np.mean(likeness) > 0.998 and min(likeness) > 0.995
    field, dials = ([np.mean(one[part]) for one in differences] for part in (np.s_[:56], np.s_[56:]))
    assert max(field) < 3.0 and max(dials) < 2.0 and np.max(differences) < 48


def test_trails_are_where_the_plain_picture_has_them(env):
    env.reset(seed=0)
    for k in range(80):
        env.step(circle_action(k))

    def pictures() -> np.ndarray:
        return np.array([env.painter.picture(), env.reduced(env.render())], int)[:, :56]

    assert len(env.game.car.particles) > 3
    with_trails = pictures()
    env.game.car.particles.clear()
    fast, plain = with_trails - pictures()  # the trails darken the picture
    assert plain.min() < -20
    assert np.corrcoef(fast.ravel(), plain.ravel())[0, 1] > 0.95
    assert fast.sum() == pytest.approx(plain.sum(), rel=0.2)


def test_road_is_grey_in_stripes_and_plain_where_the_car_was(env):
    # tiles have 102, 104 or 107, and 102 once they were touched; averages may be 2 lower
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
    calls = []
    painter, game = env.painter, type(env.game)
    picture = painter.picture
    monkeypatch.setattr(painter, "picture", lambda: calls.append("fast") or picture())
    monkeypatch.setattr(game, "_render", lambda self, mode: calls.append(mode))
    env.reset(seed=0)
    for _ in range(5):
        env.step(np.zeros(3))
    assert calls == 6 * ["fast"]
    env.render()
    assert calls[6:] == ["rgb_array"]


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


def test_earlier_pictures_are_not_overwritten(env):
    first, _ = env.reset(seed=0)
    kept = first.copy()
    for action in random_actions(0, 30):
        env.step(action)
    np.testing.assert_array_equal(first, kept)


def test_rendered_frame_is_gymnasiums(env):
    env.reset(seed=2)
    game = gymnasium_game()
    game.reset(seed=2)
    frame = env.render()
    assert frame.shape == (400, 600, 3) and frame.dtype == np.uint8
    np.testing.assert_array_equal(frame, game._render("rgb_array"))
    assert CarRacingSkid().render() is None


def test_drawing_is_much_faster(env):
    env.reset(seed=0)
    for action in random_actions(0, 60):
        env.step(action)

    def shortest(draw: Any) -> float:
        times = []
        for _ in range(8):
            began = time.perf_counter()
            draw()
            times.append(time.perf_counter() - began)
        return min(times)

    assert shortest(env.painter.picture) < shortest(env._frame) / 4
