"""What does an episode of the image agent take on this machine, part by part?

python benchmarks/images.py             at the paper's sizes; --fast: at those of `--preset fast`; --json: as JSON
python benchmarks/images.py plan env    only these parts of: plan, update (a batch from the host), fit, env

The buffer holds random frames. A plan is an action of the agent, from the image to the action on the host; the sum is
that of an episode of 500 steps, without what a run writes. Everything is compiled before it is timed.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import jax
import jax.random as jr
import numpy as np

import capax.envs  # noqa: F401  # registers
from capax.agents.planet import Planet, PlanetSettings, PlanetState
from capax.conformal import Conformal
from capax.frames import Frames, Seen
from capax.models import rssm
from capax.presets import IMAGE_PRESETS
from capax.types import Spec

STEPS, HELD = 500, 10
"""Of an episode; episodes that the buffer holds."""
ACTIONS = 3


def prepared(settings: PlanetSettings) -> tuple[Planet, PlanetState]:
    """An agent that has seen random frames, and plans."""
    agent = Planet(Spec(0.0, 0.99, False, STEPS, 2), Conformal(0.4), (64, 64, 3), ACTIONS, settings)
    rng = np.random.default_rng(0)
    episodes = tuple(
        Seen(
            rng.integers(0, 256, (STEPS + 1, 64, 64, 3), np.uint8),
            rng.uniform(-1, 1, (STEPS, ACTIONS)).astype(np.float32),
            *rng.integers(0, 2, (2, STEPS)).astype(np.float32),
        )
        for _ in range(HELD)
    )
    return agent, agent.init(jr.key(0))._replace(buffer=Frames(episodes, HELD * STEPS), fits=1)


def median(call: Callable[[], Any], rounds: int, warm: int = 2) -> float:
    """Seconds of a call."""
    times = []
    for _ in range(warm + rounds):
        began = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - began)
    return statistics.median(times[warm:])


def plan(agent: Planet, state: PlanetState) -> float:
    """An action."""
    image, carry = state.buffer.episodes[0].image[0], agent.begin(state)
    return median(lambda: agent.act(state, carry, image, jr.key(0))[0], 50)


def update(agent: Planet, state: PlanetState) -> float:
    """A gradient step on a batch that comes from the host."""
    sizes, rng = agent.settings.rssm, np.random.default_rng(0)

    def one() -> Any:
        data = state.buffer.take(state.buffer.pick(rng, (sizes.batch,), sizes.chunk), sizes.chunk)
        return rssm.update(state.model, state.optimiser, data, np.bool_(True), jr.key(0), sizes)

    return median(one, 5)


def fit(agent: Planet, state: PlanetState) -> float:
    """What is learned after an episode."""
    return median(lambda: agent.learn(state, (), jr.key(0))[0].model, 2, warm=1)


def env(agent: Planet, state: PlanetState) -> float:
    """A step of two frames."""
    racing = gym.make("capax/CarRacingSkid-v0").unwrapped
    racing.reset(seed=0)
    return median(lambda: racing.step(np.array([0.1, 0.3, -1.0], np.float32))[0], 200)


PARTS: dict[str, Callable[[Planet, PlanetState], float]] = {"plan": plan, "update": update, "fit": fit, "env": env}


def measured(settings: PlanetSettings, parts: list[str]) -> dict[str, float]:
    """Milliseconds of each part, and of an episode where its parts are known."""
    agent, state = prepared(settings)
    told = {name: 1e3 * PARTS[name](agent, state) for name in parts}
    if {"plan", "fit", "env"} <= set(told):
        told["episode"] = STEPS * (told["plan"] + told["env"]) + told["fit"]
    return told


def main(words: list[str]) -> None:
    parts = [word for word in words if word in PARTS] or list(PARTS)
    told = measured(IMAGE_PRESETS["fast" if "--fast" in words else "paper"], parts)
    if "--json" in words:
        print(json.dumps(told))
    else:
        for name, value in told.items():
            print(f"{name:>8}: {value:10.2f} ms")


if __name__ == "__main__":
    main(sys.argv[1:])
