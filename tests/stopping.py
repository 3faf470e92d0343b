"""The runs that the tests stop and resume, and what stops them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import capax
from capax import recording
from capax.runs.run import Run

SMALL = dict(
    hidden=8, layers=1, members=2, particles=4, population=12, elites=3, iterations=2, horizon=4, batch=16,
    least_updates=5, most_updates=10, start_steps=20, fit_every=10,
)  # fmt: skip


class Stop(BaseException):
    """As abrupt as a signal."""


class Walk(gym.Env[Any, Any]):
    """A noisy walk on a line that may end early, and whose cost may be 0 or 1."""

    def __init__(self, binary: bool = False, ends: bool = False) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,))
        self.action_space = spaces.Box(-1.0, 3.0, (1,), np.float32)
        self.binary, self.ends = binary, ends

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x, self.t = self.np_random.normal(size=2), 0
        return self.x.copy(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        self.x = 0.9 * self.x + 0.1 * float(action[0]) + 0.05 * self.np_random.normal(size=2)
        cost = float(np.abs(self.x).sum())
        ended = self.ends and bool(self.np_random.random() < 0.1)
        return (
            self.x.copy(),
            float(self.x[0]),
            ended,
            self.t >= 10,
            {"cost": float(cost > 1.0) if self.binary else cost},
        )


def walk(**options: bool) -> Any:
    return lambda: Walk(**options)


def policy(obs: Any) -> list[float]:
    return [float(np.clip(obs[0], -1.0, 3.0))]


def logged() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(25, 2))
    return dict(obs=obs, action=rng.uniform(-1, 3, 25), reward=obs[:, 0], cost=np.abs(obs[:, 1]), next_obs=0.9 * obs)


BOX = dict(env=walk(), steps=60, cost_limit=12.0, episode_steps=10, settings=SMALL, preset="fast")
GRADIENT = dict(batch=20, minibatch=8, epochs=2, hidden=8)
TOGETHER = 2
"""Episodes of at most 10 steps in a batch of 20."""
FINITE = dict(env="capax/Gridworld-v0", steps=400, episode_steps=50)
IMAGE = dict(env="capax/Dot-v0", steps=48, episode_steps=8, preset="fast", violation_rate=0.2)
IMAGE["settings"] = dict(
    deter=6, stoch=3, hidden=6, depth=1, members=2, batch=2, chunk=4, updates=2, horizon=3, iterations=2, population=8,
    elites=2, start_steps=16,
)  # fmt: skip
AGENTS: dict[str, dict[str, Any]] = {
    "cap conformal": BOX | dict(violation_rate=0.2),
    "cap adam": BOX | dict(kappa="adam"),
    "cap pi": BOX | dict(kappa="pi"),
    "cap fixed": BOX | dict(kappa=0.3),
    "ccem": BOX | dict(method="ccem"),
    "cem": BOX | dict(method="cem"),
    "random": BOX | dict(method="random", settings={}),
    "binary cost, endings": BOX | dict(env=walk(binary=True, ends=True), cost_limit=1.0),
    "discounted": BOX | dict(discounted=True),
    "a small buffer": BOX | dict(settings=SMALL | dict(buffer=24)),
    "logged data": BOX | dict(initial_data=logged()),
    "initial policy": BOX | dict(initial_policy=policy),
    "logged data, policy": BOX | dict(initial_data=logged(), initial_policy=policy),
    "own cost": BOX | dict(cost=lambda obs, action, next_obs, info: float(next_obs[0] ** 2)),
    "rare fits": BOX | dict(settings=SMALL | dict(fit_every=10), env=walk(ends=True)),
    "ppo": BOX | dict(method="ppo", settings=GRADIENT),
    "ppo-lag, endings": BOX | dict(method="ppo-lag", settings=GRADIENT, env=walk(ends=True)),
    "focops, discounted": BOX | dict(method="focops", settings=GRADIENT, discounted=True),
    "image ppo": IMAGE | dict(method="ppo", settings=GRADIENT, episode_steps=10),
    "image conformal": IMAGE,
    "image adam": IMAGE | dict(kappa="adam"),
    "image, a small buffer": IMAGE | dict(settings=IMAGE["settings"] | dict(buffer=20)),
    "tabular pi": FINITE,
    "tabular fixed": FINITE | dict(kappa=0.05),
    "tabular ccem": FINITE | dict(method="ccem"),
    "tabular cem": FINITE | dict(method="cem"),
    "tabular random": FINITE | dict(method="random"),
    "tabular calibrated": FINITE | dict(method="calibrated"),
}


def timeless(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "time"} for row in rows]


def stop_in(monkeypatch: pytest.MonkeyPatch, *, episode: int, step: int) -> None:
    """Have the process stop right after a step, whatever it was doing."""
    real = recording.Recorder.step

    def stopped(self: Any, action: Any, at: Any) -> None:
        real(self, action, at)
        if self.number == episode and self._done - self._at.steps == step:
            raise Stop

    monkeypatch.setattr(recording.Recorder, "step", stopped)


class Counting(gym.Env[Any, Any]):
    """Earns 1, 2, 3, … and pays ten times that, in four steps."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(-9.0, 9.0, (1,)), spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.array([float(self.t)]), float(self.t), False, self.t == 4, {"cost": 10.0 * self.t}


def counted(out: Path, **options: Any) -> Run:
    return capax.train(
        Counting, **{**dict(steps=12, out=out, method="random", cost_limit=25.0, episode_steps=4), **options}
    )
