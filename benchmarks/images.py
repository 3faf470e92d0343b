"""Measures the parts of an episode of the image agent on this machine.

python benchmarks/images.py             at the paper's sizes; --fast: at those of the preset `fast`; --json: as JSON
python benchmarks/images.py plan env    only these parts of: plan, update (a batch from the host), fit, env

The buffer holds random frames. A plan is an action of the agent, from the image to the action on the host. The sum is
that of an episode of 500 steps, without the files of a run. Everything is compiled before it is timed.
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
from capax.core.types import Spec
from capax.data.image_episodes import ImageBuffer, ImageEpisode
from capax.kappa.conformal import Conformal
from capax.models import rssm
from capax.runtime import cpu_devices
from capax.training.methods import settings_of

EPISODE_STEPS, EPISODES = 500, 10
"""Steps of an episode; episodes in the buffer."""
ACTIONS = 3


def agent_with_data(settings: PlanetSettings) -> tuple[Planet, PlanetState]:
    """An agent with random frames in its buffer, which plans."""
    agent = Planet(Spec(0.0, 0.99, False, EPISODE_STEPS, 2), Conformal(0.4), (64, 64, 3), ACTIONS, settings)
    rng = np.random.default_rng(0)
    episodes = tuple(
        ImageEpisode(
            rng.integers(0, 256, (EPISODE_STEPS + 1, 64, 64, 3), np.uint8),
            rng.uniform(-1, 1, (EPISODE_STEPS, ACTIONS)).astype(np.float32),
            *rng.integers(0, 2, (2, EPISODE_STEPS)).astype(np.float32),
        )
        for _ in range(EPISODES)
    )
    return agent, agent.init(jr.key(0))._replace(buffer=ImageBuffer(episodes, EPISODES * EPISODE_STEPS), fits=1)


def median(call: Callable[[], Any], rounds: int, warm: int = 2) -> float:
    """Median seconds of a call."""
    times = []
    for _ in range(warm + rounds):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
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
    """The fit after an episode."""
    return median(lambda: agent.learn(state, (), jr.key(0))[0].model, 2, warm=1)


def env(agent: Planet, state: PlanetState) -> float:
    """A step of two frames."""
    racing = gym.make("capax/CarRacingSkid-v0").unwrapped
    racing.reset(seed=0)
    return median(lambda: racing.step(np.array([0.1, 0.3, -1.0], np.float32))[0], 200)


PARTS: dict[str, Callable[[Planet, PlanetState], float]] = {"plan": plan, "update": update, "fit": fit, "env": env}


def measure(settings: PlanetSettings, parts: list[str]) -> dict[str, float]:
    """Milliseconds of each part, and of an episode if all of its parts are measured."""
    agent, state = agent_with_data(settings)
    results = {name: 1e3 * PARTS[name](agent, state) for name in parts}
    if {"plan", "fit", "env"} <= set(results):
        results["episode"] = EPISODE_STEPS * (results["plan"] + results["env"]) + results["fit"]
    return results


def main(words: list[str]) -> None:
    cpu_devices.claim()
    parts = [word for word in words if word in PARTS] or list(PARTS)
    from record import save

    preset = "fast" if "--fast" in words else "paper"
    results = measure(settings_of("cap", "image", preset), parts)
    save(f"images-{preset}", [{"part": name, "ms": value} for name, value in results.items()])
    if "--json" in words:
        print(json.dumps(results))
    else:
        for name, value in results.items():
            print(f"{name:>8}: {value:10.2f} ms")


if __name__ == "__main__":
    main(sys.argv[1:])
