"""Gymnasium's CarRacing with 64×64 images, where a skidding wheel is the cost."""

from __future__ import annotations

import importlib
import threading
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy import ndarray as Array

from capax.core.checks import short_repr, whole
from capax.core.errors import InputError

_import_lock = threading.Lock()
DRAWINGS = ("fast", "plain")
FPS = 50
"""Frames per second of the game."""
ACTION_LOW, ACTION_HIGH = np.array([-1.0, 0.0, 0.0]), np.ones(3)
"""Bounds of the game's own action: steering, gas and brake."""


def skids(wheels: Any) -> bool:
    """Whether any wheel skids: in the last frame the force on it was more than twice what its tyre can hold.

    Gymnasium marks such a wheel with the place where its skid began, or with the trail that it leaves, whether it draws
    them or not. It clears both in the first frame without a skid.
    """
    return any(wheel.skid_start is not None or wheel.skid_particle is not None for wheel in wheels)


class CarRacingSkid(gym.Env[Array, Array]):
    """CarRacing-v3 with its physics and rewards unchanged, and `info["cost"]` 1 if any wheel skidded.

    An action is held for `action_repeat` frames, or until the game ends. The reward is the sum over these frames, the
    cost is the greatest of them. `info["rewards"]` has the reward of each frame, and `info["frames"]` their number.
    Actions are in [-1, 1]; gas or brake below 0 means none. The observation is the 600×400 frame that a user sees, with
    score and trails, at 64×64. `drawing="plain"` averages the frame itself; `"fast"` draws the same picture in less
    time. Only what is observed is drawn, and no display is needed. Random actions are drawn from `random_actions`, if that
    is registered: the game's own gas and brake begin at 0.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": FPS // 2}

    def __init__(
        self,
        cost_limit: float = 0.0,
        discounted: bool = False,
        action_repeat: int = 2,
        violation_rate: float = 0.4,
        random_actions: Any = None,
        drawing: str = "fast",
        render_mode: str | None = None,
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise InputError(f"render_mode is {short_repr(render_mode)}: choose rgb_array or None.")
        if drawing not in DRAWINGS:
            raise InputError(f"drawing is {short_repr(drawing)}: choose {' or '.join(DRAWINGS)}.")
        self.action_repeat = whole("action_repeat", action_repeat)
        self.game = _game()
        from capax.envs import racing_picture  # imports Box2D and pygame, which _game has checked

        self.reduced, self.painter = racing_picture.reduced, racing_picture.Painter(self.game)
        self.cost_limit, self.discounted, self.drawing = cost_limit, discounted, drawing
        self.violation_rate, self.random_actions = violation_rate, random_actions
        self.observation_space = spaces.Box(0, 255, (racing_picture.SIDE, racing_picture.SIDE, 3), np.uint8)
        self.action_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.metadata = {**self.metadata, "render_fps": max(1, FPS // self.action_repeat)}
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.game.reset(seed=seed)
        return self._observation(), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        game_action = np.clip(np.asarray(action, np.float64), ACTION_LOW, ACTION_HIGH)
        rewards: list[float] = []
        cost, terminated = 0.0, False
        while len(rewards) < self.action_repeat and not terminated:
            _, reward, terminated, _, info = self.game.step(game_action)
            rewards.append(float(reward))
            cost = max(cost, float(skids(self.game.car.wheels)))
        info = {**info, "cost": cost, "rewards": rewards, "frames": len(rewards)}
        return self._observation(), sum(rewards), terminated, False, info

    def render(self) -> Any:
        """The 600×400 frame that Gymnasium draws."""
        return self._frame() if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        self.game.close()

    def _observation(self) -> Array:
        return self.painter.picture() if self.drawing == "fast" else self.reduced(self._frame())

    def _frame(self) -> Array:
        return type(self.game)._render(self.game, "rgb_array")


def _game() -> Any:
    """A CarRacing-v3 that draws nothing in a step."""
    try:
        with _import_lock, warnings.catch_warnings():  # one lane at a time
            warnings.simplefilter("ignore")  # the import of Box2D warns, and crashes where warnings are errors
            importlib.import_module("gymnasium.envs.box2d.car_racing")
        game: Any = gym.make("CarRacing-v3", disable_env_checker=True).unwrapped
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        raise InputError("CarRacing-v3 needs Box2D and pygame: run pip install 'gymnasium[box2d]'.") from error
    game._render = lambda mode: None  # otherwise it draws its own observation in every frame
    return game
