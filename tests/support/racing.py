"""Games and drivers for the tests of CarRacingSkid."""

from __future__ import annotations

import platform
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from capax.envs.racing import CarRacingSkid

if sys.platform == "linux" and platform.machine() != "x86_64" and find_spec("Box2D") is None:
    pytest.skip("there is no wheel of Box2D for this platform", allow_module_level=True)

SPEC = spec_from_file_location("driving", Path(__file__).parents[2] / "benchmarks" / "driving.py")
assert SPEC is not None and SPEC.loader is not None
driving = module_from_spec(SPEC)
SPEC.loader.exec_module(driving)
pilot = driving.pilot


def gymnasium_game() -> Any:
    """Gymnasium's own CarRacing. Our environment comes first: it can import Box2D where warnings are errors."""
    CarRacingSkid()
    return gym.make("CarRacing-v3", disable_env_checker=True).unwrapped


def random_actions(seed: int, count: int) -> np.ndarray:
    """Random actions `[count, 3]` in [-1, 1]. Each is held for six steps."""
    return np.random.default_rng(seed).uniform(-1.0, 1.0, (count // 6 + 1, 3)).repeat(6, 0)[:count].astype(np.float32)


def circle_action(k: int) -> np.ndarray:
    """The action of step k of a ride in circles, whose trails stay in sight."""
    return np.array([1.0, float(k <= 30), 0.0])


def moving_parts(game: Any) -> list[tuple[float, ...]]:
    """Positions and speeds of everything that moves."""
    bodies = [game.car.hull, *game.car.wheels]
    moving = [(*body.position, body.angle, *body.linearVelocity, body.angularVelocity) for body in bodies]
    return moving + [(wheel.omega, wheel.phase, wheel.gas, wheel.brake) for wheel in game.car.wheels]
