"""`capax.load`: how does one act with what a run has learned?"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax.random as jr
import numpy as np
from numpy import ndarray as Array

from capax.agents.onpolicy import OnPolicy
from capax.agents.pets import Pets
from capax.agents.planet import Planet
from capax.agents.tabular import sample_action
from capax.checks import shown
from capax.configuration import check_seed, loaded, path_of
from capax.errors import InputError
from capax.parts import parts
from capax.runs.checkpoint import policy_state
from capax.runs.run import Run
from capax.types import Agent, Key


@dataclass
class Policy:
    """Acts in the environment's own units: `policy.reset()` at the start of an episode, then `policy(obs)`, or with what the
    last step cost, `policy(obs, cost)`: with the rule `conformal` an episode that has spent too much is planned with less."""

    agent: Agent[Any]
    state: Any
    low: Array
    high: Array
    shape: tuple[int, ...]
    dtype: str
    key: Key
    episodes: int = -1
    steps: int = 0
    carry: Any = None
    said: dict[str, Any] = field(default_factory=dict)
    """What was planned in the last step: cost, uncertainty, share of feasible candidates."""

    def reset(self) -> None:
        """Forget the plan: a new episode begins."""
        self.episodes, self.steps, self.carry = self.episodes + 1, 0, self.agent.begin(self.state)

    def __call__(self, obs: Any, cost: float | None = None) -> Array:
        """The action for an observation."""
        if self.carry is None:
            self.reset()
        if cost is not None and hasattr(self.agent, "paid"):
            self.carry = self.agent.paid(self.carry, cost)
        obs = self.checked(obs)
        key = jr.fold_in(jr.fold_in(self.key, self.episodes), self.steps)
        unit, self.carry, said = self.agent.act(self.state, self.carry, obs, key)
        self.steps, self.said = self.steps + 1, dict(said)
        action = self.low + (np.clip(unit, -1.0, 1.0) + 1.0) / 2.0 * (self.high - self.low)
        return np.clip(action, self.low, self.high).reshape(self.shape).astype(self.dtype)

    def checked(self, obs: Any) -> Array:
        """An observation as the agent takes it."""
        image = getattr(self.agent, "image", None)
        try:
            array = np.asarray(obs) if image is not None else np.asarray(obs, np.float64).reshape(-1)
        except (TypeError, ValueError):
            raise InputError(f"the observation is {shown(obs)}: give an array of numbers.") from None
        if image is not None:
            if array.shape != image or array.dtype != np.uint8:
                raise InputError(
                    f"the observation is {array.dtype} of shape {array.shape}: give an image, uint8 of shape {image}."
                )
            return array
        size = getattr(self.agent, "obs_dim", array.size)
        if array.size != size or not np.isfinite(array).all():
            raise InputError(
                f"the observation has {array.size} numbers, of which {np.isfinite(array).sum()} are finite: "
                f"give the {size} finite numbers of the environment that was trained in."
            )
        return array


@dataclass
class TablePolicy:
    """Acts in a finite world: `policy(state)` is an action, drawn from `table[state]`."""

    table: Array
    """`[S, A]`, probabilities."""
    key: Key
    steps: int = 0

    def reset(self) -> None:
        """Nothing: a table has no memory."""

    def __call__(self, obs: Any) -> int:
        """The action for a state's number."""
        if isinstance(obs, bool) or not isinstance(obs, int | np.integer) or not 0 <= obs < len(self.table):
            raise InputError(f"the state is {obs!r}: give a whole number from 0 to {len(self.table) - 1}.")
        self.steps += 1
        return int(sample_action(self.table[obs], jr.fold_in(self.key, self.steps)))


def load(run: str | Path | Run, *, seed: int = 0) -> Policy | TablePolicy:
    """The policy of a run, as it was after its last episode."""
    run = run if isinstance(run, Run) else Run(path_of(run))
    key, config = jr.key(check_seed(seed)), loaded(run)
    if config["kind"] == "finite":
        return TablePolicy(policy_state(run.folder, config, None, told).policy, key)
    agent, state = restore(run)
    low, high = (np.array(config[name], np.float64) for name in ("action_low", "action_high"))
    return Policy(agent, state, low, high, tuple(config["action_shape"]), config["action_dtype"], key)


def restore(run: Run) -> tuple[Agent[Any], Any]:
    """The agent of a run and the part of its state that acting needs."""
    config = loaded(run)
    agent = parts(config).agent
    if not isinstance(agent, Pets | Planet | OnPolicy):
        return agent, None
    state: Any = policy_state(run.folder, config, agent.like(jr.key(0)), told)
    learned = {OnPolicy: "improved", Planet: "fits", Pets: "scaling"}[type(agent)]
    if not getattr(state, learned):
        raise InputError(f"{run.folder} has only random episodes: it has not learned a policy yet, so train on.")
    return agent, state


def told(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=4)
