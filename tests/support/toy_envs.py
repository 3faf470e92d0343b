"""One toy environment with replaceable parts, and the toys of it that several tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from capax.envs.task import GymTask

UNIT_BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
IMAGE = (64, 64, 3)


class Toy(gym.Env[Any, Any]):
    """An environment with replaceable parts. Without any, it observes `[count of steps, seed]`; a step earns 1 and pays 0.5.

    Each part is a function of the toy: of its state `x`, the `count` of steps in the episode, the last `action`, and
    `np_random`. The toy also records its `actions`, and counts its `resets` and how often it was closed.
    """

    def __init__(
        self,
        action_space: Any = UNIT_BOX,
        observation_space: Any = None,
        reply: Callable[[Toy], Any] | None = None,
        render_mode: str | None = None,
        *,
        start: Callable[[Toy], Any] | None = None,
        move: Callable[[Toy], tuple[Any, float, dict[str, Any]]] | None = None,
        terminates: Callable[[Toy], bool] | None = None,
        steps: int | None = None,
        show: Callable[[Any], Any] = np.copy,
        on_step: Callable[[Toy], Any] | None = None,
        **registered: Any,
    ) -> None:
        """`reply` is the whole result of a step. Otherwise it is made of these parts:

        `start` is the first state. `move` is the next state, the reward, and the info with the cost. `terminates` says
        whether the episode ends there; after `steps` steps the toy truncates it. `show` is the observation of a state.
        `on_step` is called before anything else happens in a step.
        """
        self.action_space = action_space
        self.observation_space = observation_space or spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.reply = reply or (lambda toy: toy.result())
        self.render_mode = render_mode
        self.start, self.move, self.terminates = start, move, terminates
        self.steps, self.show, self.on_step = steps, show, on_step
        self.count, self.seed, self.resets, self.closes = 0, 0, 0, 0
        self.action: Any = None
        self.actions: list[Any] = []
        self.x: Any = None

    def obs(self) -> Any:
        return np.array([self.count, self.seed], np.float32) if self.start is None else self.show(self.x)

    def result(self) -> Any:
        """The result of a step, made of the toy's parts."""
        reward, info = 1.0, {"cost": 0.5}
        if self.move is not None:
            self.x, reward, info = self.move(self)
        terminated = self.terminates is not None and bool(self.terminates(self))
        return self.obs(), reward, terminated, self.count == self.steps, info

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count, self.seed, self.resets = 0, seed, self.resets + 1
        if self.start is not None:
            self.x = self.start(self)
        return self.obs(), {}

    def step(self, action: Any) -> Any:
        if self.on_step is not None:
            self.on_step(self)
        self.count += 1
        self.action = action
        self.actions.append(action)
        return self.reply(self)

    def close(self) -> None:
        self.closes += 1


class Maker:
    """Makes toys, and keeps all of them in `toys`."""

    def __init__(self, make: Callable[..., Toy], **parts: Any) -> None:
        self.make, self.parts = make, parts
        self.toys: list[Toy] = []

    def __call__(self) -> Toy:
        self.toys.append(self.make(**self.parts))
        return self.toys[-1]


# Toys.


def counting(*, ends: int | None = None, low: float = -1.0, high: float = 3.0, **parts: Any) -> Toy:
    """Earns 1, 2, 3, … and pays 10, 20, 30, … in its steps; it terminates after `ends` of them.

    It observes a random number of the episode, and the count of steps.
    """
    return Toy(
        spaces.Box(low, high, (1,), np.float64),
        spaces.Box(-np.inf, np.inf, (2,), np.float64),
        start=lambda toy: np.array([toy.np_random.normal(), 0.0]),
        move=lambda toy: (np.array([toy.x[0], toy.count]), float(toy.count), {"cost": 10.0 * toy.count}),
        terminates=lambda toy: toy.count == ends,
        **parts,
    )


def walk(*, steps: int = 10, binary: bool = False, ends: bool = False, **parts: Any) -> Toy:
    """A noisy walk in the plane. Its cost is its distance, or with `binary` 0 or 1; with `ends` it may terminate early."""

    def move(toy: Toy) -> Any:
        x = 0.9 * toy.x + 0.1 * float(toy.action[0]) + 0.05 * toy.np_random.normal(size=2)
        distance = float(np.abs(x).sum())
        return x, float(x[0]), {"cost": float(distance > 1.0) if binary else distance}

    return Toy(
        spaces.Box(-1.0, 3.0, (1,), np.float32),
        start=lambda toy: toy.np_random.normal(size=2),
        move=move,
        terminates=lambda toy: ends and toy.np_random.random() < 0.1,
        steps=steps,
        **parts,
    )


def echo(*, steps: int, image: bool = False) -> Toy:
    """Rewards an action that repeats the observation: a random number, or with `image` the brightness of an image."""

    def random_number(toy: Toy) -> Any:
        return toy.np_random.uniform(-1.0, 1.0, 1)

    def move(toy: Toy) -> Any:
        reward = 1.0 - float(np.square(toy.action - toy.x).sum())
        return random_number(toy), reward, {"cost": 0.0}

    box = spaces.Box(-1.0, 1.0, (1,))
    shown = dict(observation_space=box)
    if image:
        shown = dict(observation_space=image_space(), show=lambda x: grey(int(127.5 * (1.0 + x.item()))))
    return Toy(box, start=random_number, move=move, steps=steps, **shown)


def limited(make: Callable[[], Toy], steps: int | None) -> Callable[[], Any]:
    """A function that makes a toy, under a time limit that capax can read; None: without one."""
    return make if steps is None else lambda: TimeLimit(make(), steps)


def image_space(dtype: Any = np.uint8) -> spaces.Box:
    """The space of images: bytes, or floats from 0 to 1."""
    return spaces.Box(0, 255 if dtype == np.uint8 else 1, IMAGE, dtype)


def grey(level: float, dtype: Any = np.uint8) -> Any:
    """An image of one brightness."""
    return np.full(IMAGE, level, dtype)


# Toys for the tests of `capax.envs.task`.


def reset_task(env: Any = None, **parts: Any) -> GymTask:
    """The task of an environment, after a reset with the seed 0."""
    task = GymTask(env or Toy(), name="toy", **parts)
    task.reset(0)
    return task


def resetting(reply: Callable[[Any, Any], Any]) -> Toy:
    """A toy whose reset is this function of itself and the seed."""
    return type("Toy", (Toy,), {"reset": lambda self, *, seed=None, options=None: reply(self, seed)})()


def replying(*items: Any, **info: Any) -> Toy:
    """A toy whose step returns its observation, these items and this info."""
    return Toy(reply=lambda toy: (toy.obs(), *items, info))


def six_items(cost: Any) -> Toy:
    """A toy whose step returns six items: the cost is the third."""
    return Toy(reply=lambda toy: (toy.obs(), 1.0, cost, False, True, {"cost": 9.0}))


def raising(error: Exception) -> Callable[[], Any]:
    """A function that raises an error."""

    def entry_point() -> Any:
        raise error

    return entry_point
