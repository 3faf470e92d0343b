"""`capax.load`: act with what a run has learned."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax.random as jr
import numpy as np
from numpy import ndarray as Array

from capax import runtime
from capax.agents.tabular import sample_action
from capax.core.checks import check_size, short_repr
from capax.core.contracts import Agent
from capax.core.errors import InputError
from capax.core.types import Key
from capax.runs.checkpoint import policy_state
from capax.runs.config import RunConfig
from capax.runs.run import Run
from capax.runs.state import StateLike, state_like
from capax.runtime import terminal
from capax.training.build import UserObjects, build, check_precision, own_rule
from capax.training.request import check_seed, path_of


@dataclass(repr=False)
class Policy:
    """Acts in the environment's own units: `policy.reset()` at the start of an episode, then `policy(obs)`, or with the cost
    of the last step, `policy(obs, cost)`: an episode that has spent too much is planned with less. Under an undiscounted
    limit, a step whose cost is not reported is taken to cost what was predicted."""

    agent: Agent[Any]
    state: Any
    config: RunConfig
    key: Key
    episodes: int = -1
    steps: int = 0
    carry: Any = None
    metrics: dict[str, Any] = field(default_factory=dict)
    """The plan of the last step: cost, uncertainty, share of feasible candidates."""

    def reset(self) -> None:
        """Forget the plan: a new episode begins."""
        self.episodes, self.steps, self.carry = self.episodes + 1, 0, self.agent.begin(self.state)

    def __call__(self, obs: Any, cost: float | None = None) -> Array:
        """The action for an observation."""
        if self.carry is None:
            self.reset()
        if cost is not None:
            self.carry = self.agent.observe_cost(self.carry, cost)
        checked = self.checked(obs)
        key = jr.fold_in(jr.fold_in(self.key, self.episodes), self.steps)
        unit, self.carry, metrics = self.agent.act(self.state, self.carry, checked, key)
        self.steps, self.metrics = self.steps + 1, dict(metrics)
        return self.config.action_box.to_env(np.clip(np.asarray(unit, np.float64), -1.0, 1.0))

    def checked(self, obs: Any) -> Array:
        """An observation as the agent takes it."""
        image, size = self.config.image, self.config.obs_dim
        try:
            array = np.asarray(obs) if image is not None else np.asarray(obs, np.float64).reshape(-1)
        except (TypeError, ValueError):
            raise InputError(f"the observation is {short_repr(obs)}: give an array of numbers.") from None
        if image is not None:
            if array.shape != image or array.dtype != np.uint8:
                raise InputError(
                    f"the observation is {array.dtype} of shape {array.shape}: give an image, uint8 of shape {image}."
                )
            return array
        if array.size != size or not np.isfinite(array).all():
            raise InputError(
                f"the observation has {array.size} numbers, of which {np.isfinite(array).sum()} are finite: "
                f"give the {size} finite numbers of the environment that was trained in."
            )
        return array

    def __repr__(self) -> str:
        config = self.config
        numbers, actions = config.obs_dim, config.action_box.size
        observation = (
            f"{numbers} number{'s' * (numbers != 1)}" if config.image is None else f"image {list(config.image)}"
        )
        text = f"Policy({config.task}, {config.method}: {observation} -> {actions} action{'s' * (actions != 1)})"
        return terminal.printable(text)

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(repr(self))}</code>"


@dataclass(repr=False)
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
            raise InputError(f"the state is {short_repr(obs)}: give a whole number from 0 to {len(self.table) - 1}.")
        self.steps += 1
        return int(sample_action(self.table[obs], jr.fold_in(self.key, self.steps)))

    def __repr__(self) -> str:
        states, actions = self.table.shape
        return f"TablePolicy({states} states -> {actions} actions)"

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(repr(self))}</code>"


def load(run: str | Path | Run, *, seed: int = 0, kappa: Any = None) -> Policy | TablePolicy:
    """The policy of a run, as it was after its last episode. `kappa` is the run's rule, if it is one of your own."""
    runtime.configure()
    run = run if isinstance(run, Run) else Run(path_of(run))
    key, config = jr.key(check_seed(seed)), run.config
    if config.kind == "finite":
        return TablePolicy(_table_policy(run, config), key)
    agent, state = restore(run, kappa)
    return Policy(agent, state, config, key)


def restore(run: Run, kappa: Any = None) -> tuple[Agent[Any], Any]:
    """The agent of a run and the part of its state that acting needs."""
    config = run.config
    check_precision(config)
    agent = build(config, None, UserObjects(own_rule(config, kappa))).agent
    like = state_like(agent, jr.key(0))
    state = None if like.initial is None else policy_state(run.folder, config, like, _warn)
    if not agent.can_act(state):
        raise InputError(
            f"{run.folder} has only random episodes: it has not learned a policy yet, so resume it with more steps."
        )
    return agent, state


def _table_policy(run: Run, config: RunConfig) -> Array:
    """The policy `[S, A]` of a finite world's agent, whatever else its state holds."""
    sizes = {"states": config.states or 0, "actions": config.actions or 0}
    check_size(sizes, "states", "actions", each=8)
    blank = np.zeros((sizes["states"], sizes["actions"]))
    return policy_state(run.folder, config, StateLike(blank, blank), _warn, part="policy")


def _warn(message: str) -> None:
    terminal.warn(message, stacklevel=4)
