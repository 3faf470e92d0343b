"""What do agents that plan with an uncertain model share: the feedback for κ, and what to do when numbers are not finite?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from capax.conformal import real_residual
from capax.errors import TrainingFailed
from capax.kappa import Feedback
from capax.planning.ccem import PlanInfo
from capax.types import Episode, Metrics, Spec

MOST_TROUBLE = 3
"""Fits in a row that may come out not finite, and episodes in a row that may hold such a plan, before the run stops."""


NEAR = 0.9
"""Share of its limit from which on a plan is bound by it. Plans of an agent that does little leave much more, for other
reasons, and would do so with any κ."""


SOON = 4.0
"""An episode that has spent more than its share makes up for it in one over this of what is left: late steps of a discounted
limit count for nothing, and the whole rest of an episode would go by with nothing to spend."""


class Purse(NamedTuple):
    """What an episode has cost so far."""

    spent: float = 0.0
    """In the task's convention."""
    weight: float = 0.0
    """What a constant cost of 1 would have come to."""
    steps: int = 0

    def after(self, spec: Spec, cost: float) -> Purse:
        """With what the last step cost."""
        weight = spec.weight(self.steps)
        return Purse(self.spent + weight * float(cost), self.weight + weight, self.steps + 1)

    def left(self, spec: Spec) -> float:
        """What each of the next steps may cost, by the limit. Of an episode that has spent more than its share, one step's
        worth is kept back: what the last step costs too much cannot be made up for."""
        now, share = spec.weight(self.steps), spec.limit / spec.scale
        over, rest = self.spent - share * self.weight, max(spec.scale - self.weight, now)
        return share - SOON * (over + share * now) / rest if over > 0.0 else (spec.limit - self.spent) / rest


class Trouble(NamedTuple):
    """What has gone wrong since it last went well."""

    fits: int = 0
    """Fits in a row that were thrown away."""
    plans: int = 0
    """Episodes in a row with a plan that was not finite."""

    def bad_fit(self, learning_rate: float) -> Trouble:
        """One more fit that is not finite."""
        fits = self.fits + 1
        if fits >= MOST_TROUBLE:
            raise TrainingFailed(
                f"{fits} fits in a row gave a model that is not finite: lower learning_rate (it is {learning_rate:g}), "
                "or see whether observations, rewards or costs are huge."
            )
        return self._replace(fits=fits)

    def after(self, episode: Episode) -> Trouble:
        """With an episode's plans looked at."""
        plans = self.plans + 1 if np.any(episode.extras.get("plan_bad", 0.0)) else 0
        if plans >= MOST_TROUBLE:
            raise TrainingFailed(
                f"plans of {plans} episodes in a row were not finite: see whether observations are huge, or lower "
                "learning_rate."
            )
        return self._replace(plans=plans)


def first_finite(
    plans: Iterable[Callable[[], tuple[Any, Any]] | None], otherwise: Callable[[], tuple[Any, Any]], action_dim: int
) -> tuple[Any, Any, Metrics]:
    """The action, the carry and the report of the first plan that is finite; `otherwise` makes an action and a carry.

    A plan comes as its first action and its `PlanInfo` in one array, and the next carry.
    """
    bad = 0.0
    for make in plans:
        if make is not None:
            packed, carry = make()
            packed.copy_to_host_async()  # queued behind the plan: sooner there than asked for once it is done
            action, info = np.split(np.asarray(packed), [action_dim])
            if np.isfinite(action).all() and np.isfinite(info[0]):
                break
        bad = 1.0
    else:
        action, carry = otherwise()
    told = {f"plan_{name}": float(value) for name, value in zip(PlanInfo._fields, info, strict=True)}
    return action, carry, {**told, "plan_bad": bad}


def feedback(spec: Spec, binary: bool, episode: Episode) -> tuple[Feedback, Metrics]:
    """What a rule learns from an episode: the planned cost Ĵ_c and uncertainty U in the task's convention.

    The residual is the κ with which the limit would have been paid exactly: plans leave some of it unused though it binds
    them, since elites are on one side of it, and would do so with another κ as well.
    """
    seen = episode.extras
    if "plan_cost" not in seen:
        return Feedback(episode.paid, spec.limit, random=True), {}
    weights = spec.weights(len(episode.reward))
    with np.errstate(invalid="ignore"):  # a broken model's plan is infinite, and so are its ratios
        planned, U = float(weights @ seen["plan_cost"]), float(weights @ seen["plan_uncertainty"])
        told = {"planned_cost": planned, "planned_uncertainty": U, "paid_cost": episode.paid}
        if binary:
            return Feedback(episode.paid, spec.limit, binary=True), told
        whole = U * spec.scale / float(weights.sum())  # of an episode that ended early, as if it had gone on
        slack = float(weights @ unused(*(seen[f"plan_{name}"] for name in ("limit", "penalised", "feasible"))))
        residual = real_residual(episode.paid, planned + slack, U)
        unit = (spec.limit if spec.limit > 0.0 else episode.paid) / whole if U > 0.0 else 0.0
    return Feedback(episode.paid, spec.limit, False, residual, unit, whole), {
        **told,
        "planned_slack": slack,
        "residual": residual,
        "unit": unit,
    }


def unused(limit: Any, penalised: Any, feasible: Any) -> Any:
    """What each plan left of its limit, where that bound it: some candidates were beyond it, and the elites close to it."""
    bound = (feasible < 1.0) & (penalised >= NEAR * limit) & (penalised < limit)
    return np.where(bound, limit - np.where(bound, penalised, 0.0), 0.0)


@jax.jit
def all_finite(tree: Any) -> Any:
    """Whether every number of a tree of arrays is."""
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]).all()
