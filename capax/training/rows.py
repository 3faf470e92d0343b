"""The row of an episode, as `episodes.jsonl` holds it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from capax.core.costs import total_cost
from capax.core.loop import Outcome
from capax.core.types import Episode, Spec
from capax.runs.config import RunConfig

PLAN_DETAILS = ("cost", "uncertainty", "first_cost", "first_uncertainty", "penalised", "limit")
"""Metrics of a plan that matter within an episode only."""


class Violations(NamedTuple):
    """Violations so far; those of random episodes are not the agent's fault."""

    planned: int = 0
    random: int = 0

    def after(self, episode: Episode, violation: bool) -> Violations:
        """The counts after an episode."""
        return Violations(
            self.planned + (violation and not episode.random), self.random + (violation and episode.random)
        )

    @classmethod
    def of_row(cls, row: Any) -> Violations:
        """The counts that a row holds."""
        planned = int(row["planned_violations"])
        return cls(planned, int(row["violations"]) - planned)


def make_row(outcome: Outcome, config: RunConfig, violation: bool, counts: Violations) -> dict[str, Any]:
    """The row of an episode. Everything that depends on the clock is added later, under `time`."""
    episode, metrics, spec = outcome.episode, dict(outcome.metrics), config.spec()
    weights = spec.discounts(len(episode.reward))
    exact = {"return": episode.earned, "cost": episode.paid}
    exact |= {f"discounted_{name}": value for name, value in exact.items()}
    sums = {
        "return": float(episode.reward.sum()),
        "discounted_return": discounted_return(episode, spec),
        "cost": total_cost(episode.cost),
        "discounted_cost": total_cost(episode.cost, weights),
    }
    row: dict[str, Any] = {
        "episode": outcome.number,
        "steps": outcome.steps,
        "phase": "random" if episode.random else "plan",
        **(exact if config.kind == "finite" else sums),
        "limit": config.cost_limit,
        "violation": bool(violation),
        "violations": int(counts.planned + counts.random),
        "planned_violations": int(counts.planned),
        "kappa": metrics.pop("kappa", None),
        "length": episode.env_steps,
        "terminated": bool(episode.terminated[-1]),
        "model_loss": metrics.pop("model_loss", None),
        "feasible": metrics.pop("plan_feasible", metrics.pop("feasible", None)),
    }
    dropped = {f"plan_{name}" for name in PLAN_DETAILS}
    dropped |= {"plan_bad"} if metrics.get("plan_bad") == 0.0 else set()
    row |= {name: value for name, value in metrics.items() if name not in dropped and name not in row}
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in row.items()}


def discounted_return(episode: Episode, spec: Spec) -> float:
    """Σ γ^t r_t, frame by frame where actions are repeated."""
    rewards = episode.reward if episode.frames is None else episode.frames[np.isfinite(episode.frames)]
    return float(spec.gamma ** np.arange(len(rewards)) @ rewards)
