"""Shared parts of agents that plan with a learned model: episode budget, feedback for κ, failed fits and plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from capax.core.errors import TrainingFailed
from capax.core.types import Episode, Feedback, Metrics, Spec
from capax.kappa.conformal import residual_kappa
from capax.planning.ccem import PlanInfo

MAX_FAILURES = 3
"""The run stops after this many fits in a row that are not finite, or episodes in a row with such a plan."""
BINDING_SHARE = 0.9
"""A plan counts as bound by its limit if its penalised cost is at least this share of it. Plans of an agent that does
little leave more of the limit unused, for other reasons and with any κ."""
CATCH_UP = 4.0
"""An episode that has spent too much makes up for it within the next quarter (1 / CATCH_UP) of its remaining weight. Late
steps of a discounted limit weigh almost nothing: over the whole rest, nothing could be spent until the end."""


class EpisodeBudget(NamedTuple):
    """The cost of an episode so far, and how much of its weight has passed."""

    spent: float = 0.0
    """In the task's convention."""
    weight: float = 0.0
    """The sum that a constant cost of 1 would have given."""
    steps: int = 0

    def after(self, spec: Spec, cost: float) -> EpisodeBudget:
        """The budget after a step with this cost."""
        weight = spec.cost_weight(self.steps)
        return EpisodeBudget(self.spent + weight * float(cost), self.weight + weight, self.steps + 1)

    def left(self, spec: Spec) -> float:
        """The cost that each of the next steps may have: (limit − spent) / rest, or less if more than the share was spent.

        An episode that has spent more than its share keeps the cost of one step in reserve, since no later step can make up
        for a last step that costs too much.
        """
        now, share = spec.cost_weight(self.steps), spec.limit / spec.scale
        over, rest = self.spent - share * self.weight, max(spec.scale - self.weight, now)
        return share - CATCH_UP * (over + share * now) / rest if over > 0.0 else (spec.limit - self.spent) / rest


class FailureCount(NamedTuple):
    """Counts of failures since the last success."""

    fits: int = 0
    """Fits in a row that were discarded."""
    plans: int = 0
    """Episodes in a row with a plan that was not finite."""

    def bad_fit(self, learning_rate: float) -> FailureCount:
        """The count after one more fit that is not finite."""
        fits = self.fits + 1
        if fits >= MAX_FAILURES:
            raise TrainingFailed(
                f"{fits} fits in a row gave a model that is not finite: lower learning_rate (it is {learning_rate:g}), "
                "or see whether observations, rewards or costs are huge."
            )
        return self._replace(fits=fits)

    def after(self, episode: Episode) -> FailureCount:
        """The count after an episode's plans."""
        plans = self.plans + 1 if np.any(episode.extras.get("plan_bad", 0.0)) else 0
        if plans >= MAX_FAILURES:
            raise TrainingFailed(
                f"plans of {plans} episodes in a row were not finite: see whether observations are huge, or lower "
                "learning_rate."
            )
        return self._replace(plans=plans)


def first_finite(
    plans: Iterable[Callable[[], tuple[Any, Any]] | None], fallback: Callable[[], tuple[Any, Any]], action_dim: int
) -> tuple[Any, Any, Metrics]:
    """The action, the carry and the metrics of the first plan that is finite; else the action and carry of `fallback`.

    A plan returns one array, with its first action and its `PlanInfo`, and the next carry.
    """
    bad = 0.0
    for plan in plans:
        if plan is not None:
            packed, carry = plan()
            packed.copy_to_host_async()  # queued behind the plan, so it arrives sooner
            action, info = np.split(np.asarray(packed), [action_dim])
            if np.isfinite(action).all() and np.isfinite(info[0]):
                break
        bad = 1.0
    else:
        action, carry = fallback()
    metrics = {f"plan_{name}": float(value) for name, value in zip(PlanInfo._fields, info, strict=True)}
    return action, carry, {**metrics, "plan_bad": bad}


def feedback(spec: Spec, binary: bool, episode: Episode) -> tuple[Feedback, Metrics]:
    """The feedback of an episode, from its planned cost Ĵ_c and uncertainty U in the task's convention, and metrics.

    The residual is the κ at which exactly the limit would have been paid. Plans leave some of the limit unused even if it
    binds them, since all elites lie below it. They would do so with another κ too.
    """
    planned_metrics = episode.extras
    if "plan_cost" not in planned_metrics:
        return Feedback(episode.paid, spec.limit, random=True), {}
    weights = spec.cost_weights(len(episode.reward))
    with np.errstate(invalid="ignore"):  # a broken model's plan is infinite, and so are its ratios
        planned = float(weights @ planned_metrics["plan_cost"])
        U = float(weights @ planned_metrics["plan_uncertainty"])
        metrics = {"planned_cost": planned, "planned_uncertainty": U, "paid_cost": episode.paid}
        if binary:
            return Feedback(episode.paid, spec.limit, binary=True), metrics
        whole = U * spec.scale / float(weights.sum())  # an episode that ended early counts as if it had continued
        slack = float(
            weights @ plan_slack(*(planned_metrics[f"plan_{name}"] for name in ("limit", "penalised", "feasible")))
        )
        residual = residual_kappa(episode.paid, planned + slack, U)
        unit = (spec.limit if spec.limit > 0.0 else episode.paid) / whole if U > 0.0 else 0.0
    return Feedback(episode.paid, spec.limit, False, residual, unit, whole), {
        **metrics,
        "planned_slack": slack,
        "residual": residual,
        "unit": unit,
    }


def plan_slack(limit: Any, penalised: Any, feasible: Any) -> Any:
    """The unused part of each plan's limit, if it bound the plan: some candidates were above it and the elites near it."""
    bound = (feasible < 1.0) & (penalised >= BINDING_SHARE * limit) & (penalised < limit)
    return np.where(bound, limit - np.where(bound, penalised, 0.0), 0.0)


@jax.jit
def all_finite(tree: Any) -> Any:
    """Whether every number of a tree of arrays is finite."""
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]).all()
