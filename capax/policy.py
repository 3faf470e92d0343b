"""`capax.load`: how does one act with what a run has learned?"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax.random as jr
import numpy as np
from numpy import ndarray as Array

from capax.agents.pets import Pets, PetsSettings, PetsState
from capax.agents.start import Random
from capax.buffer import Buffer
from capax.errors import InputError
from capax.kappa import Fixed
from capax.models import ensemble
from capax.models.ensemble import EnsembleSettings
from capax.planning.ccem import CEM
from capax.runs import weights
from capax.runs.run import POLICY, Run
from capax.types import Agent, Key, Spec


@dataclass
class Policy:
    """Acts in the environment's own units: `policy.reset()` at the start of an episode, then `policy(obs)`."""

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

    def __call__(self, obs: Any) -> Array:
        """The action for an observation."""
        if self.carry is None:
            self.reset()
        obs = np.asarray(obs, np.float64).reshape(-1)
        size = getattr(self.agent, "obs_dim", obs.size)
        if obs.size != size or not np.isfinite(obs).all():
            raise InputError(
                f"the observation has {obs.size} numbers, of which {np.isfinite(obs).sum()} are finite: "
                f"give the {size} finite numbers of the environment that was trained in."
            )
        key = jr.fold_in(jr.fold_in(self.key, self.episodes), self.steps)
        unit, self.carry, said = self.agent.act(self.state, self.carry, obs, key)
        self.steps, self.said = self.steps + 1, dict(said)
        action = self.low + (np.clip(unit, -1.0, 1.0) + 1.0) / 2.0 * (self.high - self.low)
        return np.clip(action, self.low, self.high).reshape(self.shape).astype(self.dtype)


def load(run: str | Path | Run, *, seed: int = 0) -> Policy:
    """The policy of a run, as it was when last saved."""
    run = run if isinstance(run, Run) else Run(Path(run))
    agent, state = restore(run)
    config = run.config
    low, high = (np.array(config[name], np.float64) for name in ("action_low", "action_high"))
    return Policy(agent, state, low, high, tuple(config["action_shape"]), config["action_dtype"], jr.key(seed))


def restore(run: Run) -> tuple[Agent[Any], Any]:
    """The agent of a run and the part of its state that acting needs."""
    config = run.config
    try:
        low, saved = config["action_low"], config["settings"]
        if config["method"] == "random":
            return Random(len(low)), None
        parts = {"ensemble": EnsembleSettings(**saved["ensemble"]), "cem": CEM(**saved["cem"])}
        settings = PetsSettings(**{**saved, **parts})
        no_limit = config["method"] == "cem" or config["cost_limit"] is None
        limit = math.inf if no_limit else float(config["cost_limit"])
        spec = Spec(limit, config["gamma"], config["discounted"], config["episode_steps"])
        obs_dim = config["obs_dim"]
    except (KeyError, TypeError) as error:
        raise InputError(f"config.json of {run.folder} was written by another version ({error}): train anew.") from None
    empty = Buffer.empty(obs_dim, len(low))
    agent = Pets(spec, Fixed(0.0), obs_dim, len(low), settings, 1)
    blank = agent.init(jr.key(0))
    scale = ensemble.scaling(Buffer(*(np.zeros((1, *part.shape[1:]), np.float32) for part in tuple(empty))))
    like: dict[str, Any] = {
        "model": blank.model,
        "scaling": scale,
        "kappa": np.float64(0.0),
        "origin": np.zeros(obs_dim),
    }
    read = weights.load(run.folder / POLICY, like)
    rule = Fixed(float(read["kappa"]))
    agent = Pets(spec, rule, obs_dim, len(low), settings, 1)
    return agent, PetsState(read["model"], None, read["scaling"], empty, 0, rule.init(), read["origin"])
