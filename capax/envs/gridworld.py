"""The paper's gridworld as a Gymnasium environment, with a sampled cost in `info["cost"]`."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from capax.core.errors import InputError
from capax.tabular.gridworld import World, gridworld
from capax.tabular.sampler import UNIFORMS_PER_STEP, draw_outcome, sampling_table

PIXELS = 24
"""Side of a cell in a rendered picture."""


class Gridworld(gym.Env[np.int64, np.int64]):
    """A slippery grid with Bernoulli rewards and costs. It never ends; the registered id truncates after 500 steps.

    Observations are cells (row by row). Actions are up, down, left, right. `world` is a `World`, or the number of one
    in `capax gridworld --seed SEED`. The seed of `reset` decides the steps only, not the world.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 10}

    def __init__(
        self,
        world: World | int = 0,
        seed: int = 0,
        size: int = 8,
        slip: str = "any",
        gamma: float = 0.99,
        render_mode: str | None = None,
    ) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise InputError(f"render_mode is {render_mode!r}: choose ansi, rgb_array or None.")
        if not isinstance(world, World):
            if world < 0 or seed < 0:
                raise InputError(f"world is {world} and seed {seed}: give a World, or numbers >= 0.")
            world = gridworld(np.random.default_rng([seed, world]), size=size, slip=slip, gamma=gamma)
        self.world = world
        self.table = sampling_table(world.cmdp)
        self.observation_space = spaces.Discrete(world.cmdp.S)
        self.action_space = spaces.Discrete(world.cmdp.A)
        self.render_mode = render_mode
        self.state = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.int64, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = draw_outcome(self.table.start, self.np_random.random())
        return np.int64(self.state), {}

    def step(self, action: Any) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        if action not in (0, 1, 2, 3):
            raise InputError(f"action is {action!r}: give 0 (up), 1 (down), 2 (left) or 3 (right).")
        u, s, a = self.np_random.random(UNIFORMS_PER_STEP), self.state, int(action)
        self.state = self.table.successors[s, a, draw_outcome(self.table.thresholds[s, a], u[0])]
        reward, cost = float(u[1] < self.table.r[s, a]), float(u[2] < self.table.c[s, a])
        return np.int64(self.state), reward, False, False, {"cost": cost}

    def render(self) -> Any:
        """`ansi`: the grid with the agent as `@`. `rgb_array`: each cell's least cost in red, the agent in blue."""
        size = self.world.size
        if self.render_mode == "ansi":
            cells = ["@" if s == self.state else "." for s in range(size * size)]
            return "\n".join("".join(cells[row * size : (row + 1) * size]) for row in range(size))
        if self.render_mode == "rgb_array":
            shade = np.round(255 * (1.0 - self.world.cmdp.c.min(1))).astype(np.uint8).reshape(size, size)
            picture = np.stack([np.full_like(shade, 255), shade, shade], axis=-1)
            picture[divmod(int(self.state), size)] = (40, 70, 200)
            return picture.repeat(PIXELS, axis=0).repeat(PIXELS, axis=1)
        return None
