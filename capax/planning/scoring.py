"""Scores of candidates: return, conservative cost, and whether the cost is within the limit.

A discounted limit is compared with a plan's mean cost per step. An undiscounted limit is a budget for the rest of the
episode: what the plan costs, and what the steps after its horizon would cost at the rate of its last quarter, or of the
whole plan if that is lower.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from capax.core.types import Imagined
from capax.planning.penalty import conservative

PARTS = 4
"""Parts of a plan. The last one that is in sight stands for all the steps after it."""
LIVED_RATE = math.nan
"""As a termination cost: a step after an imagined termination costs what a lived step of the same plan does."""


class Terms(NamedTuple):
    """What plans are scored with. All of it is traced: other values compile nothing."""

    kappa: Any
    limit: Any
    """The largest mean cost per step."""
    binary: Any
    """Costs are 0 or 1, and predicted as logits."""
    termination_cost: Any = LIVED_RATE
    """Cost of each step after an imagined termination; NaN: the mean of the plan's lived steps."""
    steps_left: Any = math.inf
    """Steps until the episode's end, for a budget."""
    sight: Any = PARTS
    """Parts of a plan that count, for a budget."""
    least_cost: Any = -math.inf
    """A predicted cost below this counts as this, for a budget."""


class Scores(NamedTuple):
    """Return, costs and feasibility of each candidate. Costs are per step, averaged over particles."""

    earned: Float[Array, " N"]
    cost: Float[Array, " N"]
    uncertainty: Float[Array, " N"]
    penalised: Float[Array, " N"]
    feasible: Bool[Array, " N"]
    danger: Float[Array, " N"]
    """Order of the candidates where too few are feasible: the penalised cost and, where flags tie, how close the logits
    are to a cost."""


def part_length(horizon: int) -> int:
    """Steps of a part of a plan; the last one may have fewer."""
    return -(-horizon // PARTS)


class StepWeights(NamedTuple):
    """What the steps of a plan count for."""

    inside: Float[Array, " H"]
    """1 for each step in sight that the episode lasts for."""
    after: Float[Array, "2 H"]
    """Two means that may stand for the steps after that: over the last part in sight, and over all parts in sight."""
    beyond: Any
    """Steps after the sight until the episode's end."""
    visible: Any
    """Steps in sight."""


def step_weights(horizon: int, steps_left: Any, sight: Any = PARTS) -> StepWeights:
    """Weights of the steps of a plan. What lies beyond `sight` parts does not count."""
    place, part = jnp.arange(horizon), part_length(horizon)
    visible = jnp.minimum(sight * part, horizon)
    in_sight, last = place < visible, (place < visible) & (place >= visible - part)
    inside = (in_sight & (place < steps_left)).astype(jnp.float32)
    return StepWeights(
        inside, jnp.stack([last / last.sum(), in_sight / visible]), jnp.maximum(steps_left - visible, 0.0), visible
    )


def at_least(cost: Float[Array, ...], least: Any, binary: Any) -> Float[Array, ...]:
    """Predicted costs, not below the least cost. A model may predict less where it has seen nothing, and one step must not
    make up for another. Logits and numbers that are not finite stay."""
    return jnp.where(binary | ~jnp.isfinite(cost), cost, jnp.maximum(cost, least))


def charged(part: Float[Array, "N P H"], alive: Float[Array, "N P H"], rate: Any) -> Float[Array, "N P H"]:
    """Costs, where each step after an imagined termination costs `rate`; NaN: the mean of the particle's lived steps.

    So no plan saves cost by ending the episode.
    """
    lived = jnp.where(alive > 0.0, part, 0.0)
    mean = lived.sum(-1, keepdims=True) / alive.sum(-1, keepdims=True)
    return jnp.where(alive > 0.0, part, jnp.where(jnp.isnan(rate), mean, rate))


def charged_mean(part: Float[Array, "N P H"], alive: Float[Array, "N P H"], rate: Any) -> Float[Array, " N"]:
    """The mean of `charged` over particles and steps, in one pass over the numbers."""
    steps, lived = alive.sum(-1), jnp.where(alive > 0.0, part, 0.0).sum(-1)
    whole = (lived + rate * (part.shape[-1] - steps)) / part.shape[-1]
    return jnp.where(jnp.isnan(rate), lived / steps, whole).mean(-1)


def score_candidates(imagined: Imagined, terms: Terms, *, budget: bool, flags: bool, break_ties: bool = True) -> Scores:
    """Return, cost and feasibility of each candidate.

    `budget`: the limit is on the rest of the episode, not on the plan's mean. `flags`: a binary cost counts as 1 once
    logit + κu > 0; otherwise as its probability, plus κu. `break_ties`: of equally many flags, those are less dangerous whose
    logits are farther from a cost. A candidate with any non-finite value is infeasible, has
    return −∞ and cost +∞.
    """
    raw, u, alive, rate = imagined.cost, imagined.uncertainty, imagined.alive, terms.termination_cost
    if budget:
        raw = at_least(raw, terms.least_cost, terms.binary)
    cost, penalised = (conservative(raw, u, k, terms.binary, flags) for k in (0.0, terms.kappa))
    # an uncertainty that a termination cost replaces is not there
    parts = ((cost, rate), (u, jnp.where(jnp.isnan(rate), rate, 0.0)), (penalised, rate), (raw + terms.kappa * u, 0.0))
    reward = jnp.where(alive > 0.0, imagined.reward, 0.0)
    if budget:
        weights = step_weights(raw.shape[-1], terms.steps_left, terms.sight)
        # each step after the sight costs the lower of the two means: later plans can stop what this one does at its end
        cost_weights = (weights.inside + weights.after * weights.beyond) / terms.steps_left
        both = [charged(part, alive, each).mean(1) @ cost_weights.T for part, each in parts]  # each [N 2]
        lower = both[2].argmin(-1, keepdims=True)
        charges = [jnp.take_along_axis(part, lower, -1)[:, 0] for part in both]
        # and it earns the lower of them, for as many steps as were in sight: otherwise a plan would first go away from a
        # goal, so that it approaches it in its last part
        earned_per_step = reward.mean(1)
        after = (earned_per_step @ weights.after.T).min(-1) * jnp.minimum(weights.beyond, weights.visible)
        reward = earned_per_step @ weights.inside + after
    else:
        charges = [charged_mean(part, alive, each) for part, each in parts]
        reward = reward.mean((1, 2)) * raw.shape[-1]
    finite = jnp.isfinite(sum(charges) + reward)  # then so is all that they are sums of
    earned, cost, u, penalised, logit = (jnp.where(finite, part, jnp.inf) for part in (reward, *charges))
    ties = terms.binary & finite & (flags and break_ties)
    return Scores(
        earned=jnp.where(finite, earned, -jnp.inf),
        cost=cost,
        uncertainty=u,
        penalised=penalised,
        feasible=finite & (penalised <= terms.limit),
        danger=penalised + jnp.where(ties, squash(logit) / raw[0].size, 0.0),  # less than the cost of one step
    )


def squash(x: Float[Array, " N"]) -> Float[Array, " N"]:
    """A number between 0 and 1 that rises with x, so slowly that 100 and 101 differ. A sigmoid rounds 17 to 1."""
    return 0.5 + 0.5 * jax.nn.soft_sign(x)
