"""Gymnasium's CarRacing, seen at 64×64, where a skidding wheel is the cost: how fast can one drive without a skid?"""

from __future__ import annotations

import importlib
import threading
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy import ndarray as Array

from capax.checks import shown, whole
from capax.errors import InputError

_importing = threading.Lock()
DRAWINGS = ("fast", "plain")
FPS = 50
"""Frames of a second of the game."""
LEAST, MOST = np.array([-1.0, 0.0, 0.0]), np.ones(3)
"""Of the steering, the gas and the brake that the game knows."""


def skids(wheels: Any) -> bool:
    """Whether the last frame pulled at any wheel with more than twice the force that its tyre can hold.

    Gymnasium marks such a wheel with where its skid began or with the trail that it leaves, whether drawn or not, and
    clears both in the first frame that is not.
    """
    return any(wheel.skid_start is not None or wheel.skid_particle is not None for wheel in wheels)


class CarRacingSkid(gym.Env[Array, Array]):
    """CarRacing-v3, its physics and rewards unchanged, with `info["cost"]` 1 where any wheel skidded.

    An action is held for `action_repeat` frames, or until the game ends: the reward is their sum, and the cost the
    greatest of theirs. `info["rewards"]` has the frames' own, and `info["frames"]` says how many were played. Actions are
    in [-1, 1]; a gas or brake below 0 is none. The observation is the 600×400 frame that a user sees, score and trails
    included, at 64×64; `drawing="plain"` averages the frame itself, `"fast"` draws the same picture much sooner. Only
    what is observed is drawn, and no display is needed.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": FPS // 2}

    def __init__(
        self,
        cost_limit: float = 0.0,
        discounted: bool = False,
        action_repeat: int = 2,
        violation_rate: float = 0.4,
        drawing: str = "fast",
        render_mode: str | None = None,
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise InputError(f"render_mode is {shown(render_mode)}: choose rgb_array or None.")
        if drawing not in DRAWINGS:
            raise InputError(f"drawing is {shown(drawing)}: choose {' or '.join(DRAWINGS)}.")
        self.action_repeat = whole("action_repeat", action_repeat)
        self.game = _game()
        from capax.envs import racing_picture  # needs what _game has just found

        self.reduced, self.painter = racing_picture.reduced, racing_picture.Painter(self.game)
        self.cost_limit, self.discounted, self.drawing = cost_limit, discounted, drawing
        self.violation_rate = violation_rate
        self.observation_space = spaces.Box(0, 255, (racing_picture.SIDE, racing_picture.SIDE, 3), np.uint8)
        self.action_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.metadata = {**self.metadata, "render_fps": max(1, FPS // self.action_repeat)}
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.game.reset(seed=seed)
        return self._observation(), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        held = np.clip(np.asarray(action, np.float64), LEAST, MOST)
        rewards: list[float] = []
        cost, terminated = 0.0, False
        while len(rewards) < self.action_repeat and not terminated:
            _, reward, terminated, _, info = self.game.step(held)
            rewards.append(float(reward))
            cost = max(cost, float(skids(self.game.car.wheels)))
        info = {**info, "cost": cost, "rewards": rewards, "frames": len(rewards)}
        return self._observation(), sum(rewards), terminated, False, info

    def render(self) -> Any:
        """The 600×400 frame."""
        return self._frame() if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        self.game.close()

    def _observation(self) -> Array:
        return self.painter.picture() if self.drawing == "fast" else self.reduced(self._frame())

    def _frame(self) -> Array:
        return type(self.game)._render(self.game, "rgb_array")


def _game() -> Any:
    """A CarRacing-v3 that does not draw as it steps."""
    try:
        with _importing, warnings.catch_warnings():  # one lane at a time
            warnings.simplefilter("ignore")  # what SWIG made of Box2D warns, and crashes where warnings are errors
            importlib.import_module("gymnasium.envs.box2d.car_racing")
        game: Any = gym.make("CarRacing-v3", disable_env_checker=True).unwrapped
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        raise InputError("CarRacing-v3 needs Box2D and pygame: run pip install 'gymnasium[box2d]'.") from error
    game._render = lambda mode: None  # it draws an observation of its own in every frame
    return game
