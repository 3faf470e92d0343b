"""Runs of every agent that the tests stop and resume, and what stops them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from capax.runtime import signals
from capax.training import recorder
from support.small_settings import GRADIENT, IMAGE, VECTOR
from support.toy_envs import walk


class Stop(signals.Stop):
    """As abrupt as a signal."""


def stop(*_: Any) -> None:
    """Stands for a function during which the process is stopped."""
    raise Stop


def initial_policy(obs: Any) -> list[float]:
    """A policy for the random start of a walk."""
    return [float(np.clip(obs[0], -1.0, 3.0))]


def logged_walk() -> dict[str, Any]:
    """Logged transitions of a walk."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(25, 2))
    return dict(obs=obs, action=rng.uniform(-1, 3, 25), reward=obs[:, 0], cost=np.abs(obs[:, 1]), next_obs=0.9 * obs)


WALK = dict(env=walk, steps=60, cost_limit=12.0, episode_steps=10, settings=VECTOR, preset="fast")
ENDING_WALK = WALK | dict(env=partial(walk, ends=True))
GROUP = 2
"""Episodes that are played side by side: of at most 10 steps, in a batch of 20."""
WORLD = dict(env="capax/Gridworld-v0", steps=400, episode_steps=50)
DOT = dict(env="capax/Dot-v0", steps=48, episode_steps=8, preset="fast", violation_rate=0.2, settings=IMAGE)
RUNS: dict[str, dict[str, Any]] = {
    "cap conformal": WALK | dict(violation_rate=0.2),
    "cap adam": WALK | dict(kappa="adam"),
    "cap pi": WALK | dict(kappa="pi"),
    "cap fixed": WALK | dict(kappa=0.3),
    "ccem": WALK | dict(method="ccem"),
    "cem": WALK | dict(method="cem"),
    "random": WALK | dict(method="random", settings={}),
    "binary cost, endings": WALK | dict(env=partial(walk, binary=True, ends=True), cost_limit=1.0),
    "discounted": WALK | dict(discounted=True),
    "a small buffer": WALK | dict(settings=VECTOR | dict(buffer=24)),
    "logged data": WALK | dict(initial_data=logged_walk()),
    "initial policy": WALK | dict(initial_policy=initial_policy),
    "logged data, policy": WALK | dict(initial_data=logged_walk(), initial_policy=initial_policy),
    "own cost": WALK | dict(cost=lambda obs, action, next_obs, info: float(next_obs[0] ** 2)),
    "rare fits": ENDING_WALK | dict(settings=VECTOR | dict(fit_every=10)),
    "ppo": WALK | dict(method="ppo", settings=GRADIENT),
    "ppo-lag, endings": ENDING_WALK | dict(method="ppo-lag", settings=GRADIENT),
    "focops, discounted": WALK | dict(method="focops", settings=GRADIENT, discounted=True),
    "image ppo": DOT | dict(method="ppo", settings=GRADIENT, episode_steps=10),
    "image conformal": DOT,
    "image adam": DOT | dict(kappa="adam"),
    "image, a small buffer": DOT | dict(settings=IMAGE | dict(buffer=20)),
    "tabular pi": WORLD,
    "tabular fixed": WORLD | dict(kappa=0.05),
    "tabular ccem": WORLD | dict(method="ccem"),
    "tabular cem": WORLD | dict(method="cem"),
    "tabular random": WORLD | dict(method="random"),
    "tabular calibrated": WORLD | dict(method="calibrated"),
}
"""Arguments of `capax.train` for every agent, rule and kind of task."""


def stop_in(monkeypatch: pytest.MonkeyPatch, *, episode: int, step: int) -> None:
    """Have the process stop right after a step, whatever it was doing."""
    real = recorder.Recorder.step

    def stopped(self: Any, action: Any, outcome: Any) -> None:
        real(self, action, outcome)
        if self.at.number == episode and self._steps - self.at.steps == step:
            raise Stop

    monkeypatch.setattr(recorder.Recorder, "step", stopped)
