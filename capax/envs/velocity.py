"""Gymnasium's MuJoCo robots with their speed as the cost."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
from numpy import ndarray as Array

from capax.core.errors import InputError


class Velocity(gym.Env[Array, Array]):
    """A robot of Gymnasium, unchanged, with its speed over the ground in `info["cost"]`.

    The speed is |v_x|, or √(v_x² + v_y²) if the robot moves in a plane. `robot` is Gymnasium's id and `options` are its
    arguments. `cost_limit` and `discounted` (γ = .99) are the limit of the task; the robot itself does not use them.
    """

    metadata: dict[str, Any] = {"render_modes": ["human", "rgb_array", "depth_array", "rgbd_tuple"]}

    def __init__(
        self, robot: str, cost_limit: float, discounted: bool = True, render_mode: str | None = None, **options: Any
    ) -> None:
        try:
            wrapped = gym.make(robot, render_mode=render_mode, disable_env_checker=True, **options)
        except (ImportError, gym.error.DependencyNotInstalled) as error:
            raise InputError(f"{robot} needs MuJoCo: run pip install 'gymnasium[mujoco]'.") from error
        self.robot: gym.Env[Array, Array] = wrapped.unwrapped
        self.cost_limit, self.discounted = cost_limit, discounted
        self.observation_space, self.action_space = self.robot.observation_space, self.robot.action_space
        self.metadata = self.robot.metadata  # each robot has its own frame rate
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        return self.robot.reset(seed=seed, options=options)

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.robot.step(action)
        cost = math.hypot(info["x_velocity"], info.get("y_velocity", 0.0))
        return obs, float(reward), bool(terminated), truncated, {**info, "cost": cost}

    def render(self) -> Any:
        return self.robot.render()

    def close(self) -> None:
        self.robot.close()
