"""Which actions earn most among those whose conservative cost stays under the limit? (constrained CEM)

The planner knows no network. It asks a `Rollout` what candidates would earn, cost and how uncertain that is; CCEM is this
planner at κ = 0, and CEM is it with no limit (+∞).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from capax.errors import InputError
from capax.penalty import conservative
from capax.types import Key


class Imagined(NamedTuple):
    """What a model expects of N candidates, with P particles each, over H steps."""

    reward: Float[Array, "N P H"]
    cost: Float[Array, "N P H"]
    """A logit where the cost is binary."""
    uncertainty: Float[Array, "N P H"]
    """u(s, a), the maximum over the members already taken."""
    alive: Float[Array, "N P H"]
    """1 up to and including the step that ends an imagined episode, 0 after it."""


Rollout = Callable[[Any, Any, Float[Array, "N H A"], Key], Imagined]
"""(params, start, actions in [−1, 1], key) → Imagined."""


@dataclass(frozen=True)
class CEM:
    """Sizes of the planner; the defaults are the paper's (hyper-parameter table) and those of its published code."""

    horizon: int = 30
    """H: steps that a plan looks ahead."""
    iterations: int = 5
    """Rounds of sampling and refitting."""
    population: int = 500
    """N: action sequences in the first round."""
    elites: int = 50
    """Sequences that the next round's distribution is fitted to."""
    smoothing: float = 0.1
    """Share of the old mean and variance that is kept in a round."""
    spread: float = 0.5
    """Standard deviation of the first round; the action range is [−1, 1]."""
    colour: float = 0.0
    """0: the paper's truncated normal, independent from step to step. Above: noise whose power falls as frequency^−colour."""
    shrink: float = 1.0
    """The population is divided by this from round to round, down to twice the elites."""
    keep: float = 0.0
    """Share of the elites that enter the next round's population as they are."""

    def __post_init__(self) -> None:
        for name in ("horizon", "iterations", "population", "elites"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}: give a whole number >= 1.")
        if self.elites > self.population:
            raise InputError(f"elites is {self.elites}, more than the population of {self.population}: give fewer.")
        for name, low, high in (
            ("smoothing", 0.0, 1.0),
            ("keep", 0.0, 1.0),
            ("spread", 0.0, 2.0),
            ("colour", 0.0, 8.0),
        ):
            if not low <= getattr(self, name) <= high:
                raise InputError(f"{name} is {getattr(self, name)}: give a number from {low} to {high}.")
        if not 1.0 <= self.shrink < float("inf"):
            raise InputError(f"shrink is {self.shrink}: give a number >= 1.")

    @property
    def sizes(self) -> list[int]:
        """Sequences drawn in each round."""
        least = min(self.population, 2 * self.elites)
        return [max(least, int(self.population / self.shrink**i)) for i in range(self.iterations)]

    @property
    def evaluations(self) -> int:
        """Sequences imagined for one plan."""
        kept = int(self.keep * self.elites)
        return sum(self.sizes) + kept * (self.iterations - 1)


class Scores(NamedTuple):
    """What is known of each candidate; costs per step, in the mean over particles and horizon."""

    earned: Float[Array, " N"]
    cost: Float[Array, " N"]
    uncertainty: Float[Array, " N"]
    penalised: Float[Array, " N"]
    feasible: Bool[Array, " N"]


class PlanInfo(NamedTuple):
    """What the last round's elites promise: means over them, per step of the plan."""

    earned: Float[Array, ""]
    """Sum of rewards over the horizon."""
    cost: Float[Array, ""]
    """Unpenalised cost of a step."""
    uncertainty: Float[Array, ""]
    penalised: Float[Array, ""]
    feasible: Float[Array, ""]
    """Share of the last round's candidates under the limit."""
    enough: Float[Array, ""]
    """1 if at least as many candidates as there are elites were under the limit."""
    first_cost: Float[Array, ""]
    """Cost (or logit) of the first step alone."""
    first_uncertainty: Float[Array, ""]


def judge(imagined: Imagined, kappa: Any, limit: Any, binary: Any) -> Scores:
    """Return, cost and feasibility of each candidate; `limit` is the cost that a step may have in the mean.

    A candidate with anything that is not finite is infeasible, earns −∞ and costs +∞.
    """
    cost = conservative(imagined.cost, imagined.uncertainty, 0.0, binary)
    penalised = conservative(imagined.cost, imagined.uncertainty, kappa, binary)
    parts = [
        jnp.where(imagined.alive > 0.0, part, 0.0) for part in (imagined.reward, cost, imagined.uncertainty, penalised)
    ]
    finite = jnp.all(jnp.stack([jnp.isfinite(part).all(axis=(1, 2)) for part in parts]), axis=0)
    earned, cost, uncertainty, penalised = (jnp.where(finite, part.mean(axis=(1, 2)), jnp.inf) for part in parts)
    return Scores(
        earned=jnp.where(finite, earned * imagined.reward.shape[2], -jnp.inf),
        cost=cost,
        uncertainty=uncertainty,
        penalised=penalised,
        feasible=finite & (penalised <= limit),
    )


def best(scores: Scores, elites: int) -> Any:
    """The elites' indices: by return among the feasible, by penalised cost where too few are feasible."""
    enough = scores.feasible.sum() >= elites
    by_return = jnp.where(scores.feasible, scores.earned, -jnp.inf)
    return jax.lax.top_k(jnp.where(enough, by_return, -scores.penalised), elites)[1]


def plan(
    key: Key,
    params: Any,
    start: Any,
    warm: Float[Array, "H A"],
    kappa: Any,
    limit: Any,
    binary: Any,
    *,
    rollout: Rollout,
    cem: CEM,
) -> tuple[Float[Array, "H A"], PlanInfo]:
    """The mean of the last round's elites, from the start `warm`, and what was thought of them.

    κ, the limit per step and whether the cost is binary are traced: changing them compiles nothing.
    """
    kept = int(cem.keep * cem.elites)
    keys = jr.split(key, cem.iterations)

    def round_of(mean: Any, variance: Any, old: Any, key: Key, size: int) -> tuple[Any, ...]:
        k_noise, k_model = jr.split(key)
        fresh = sample(k_noise, mean, jnp.sqrt(variance), size, cem.colour)
        actions = jnp.concatenate([fresh, old])  # [N H A]
        imagined = rollout(params, start, actions, k_model)
        scores = judge(imagined, kappa, limit, binary)
        index = best(scores, cem.elites)
        elites = actions[index]
        mean = cem.smoothing * mean + (1.0 - cem.smoothing) * elites.mean(0)
        variance = cem.smoothing * variance + (1.0 - cem.smoothing) * elites.var(0)
        return mean, variance, elites[:kept], describe(scores, imagined, index)

    mean, variance, old = warm, jnp.full_like(warm, cem.spread**2), jnp.zeros((0, *warm.shape), warm.dtype)
    if len(set(cem.sizes)) == 1 and kept == 0:  # every round alike: compiled once

        def body(carry: Any, key: Key) -> tuple[Any, PlanInfo]:
            mean, variance, _, info = round_of(carry[0], carry[1], old, key, cem.population)
            return (mean, variance), info

        (mean, _), infos = jax.lax.scan(body, (mean, variance), keys)
        return mean, jax.tree.map(lambda x: x[-1], infos)
    for number, size in enumerate(cem.sizes):
        mean, variance, old, info = round_of(mean, variance, old, keys[number], size)
    return mean, info


def describe(scores: Scores, imagined: Imagined, index: Any) -> PlanInfo:
    """Means over the elites."""
    return PlanInfo(
        earned=scores.earned[index].mean(),
        cost=scores.cost[index].mean(),
        uncertainty=scores.uncertainty[index].mean(),
        penalised=scores.penalised[index].mean(),
        feasible=scores.feasible.mean(dtype=jnp.float32),
        enough=(scores.feasible.sum() >= len(index)).astype(jnp.float32),
        first_cost=imagined.cost[index, :, 0].mean(),
        first_uncertainty=imagined.uncertainty[index, :, 0].mean(),
    )


def sample(
    key: Key, mean: Float[Array, "H A"], sd: Float[Array, "H A"], size: int, colour: float
) -> Float[Array, "N H A"]:
    """Candidates in [−1, 1] around the mean.

    Without colour, a normal truncated at two deviations whose deviation is at most half the distance to the nearer
    bound (the published planner); with it, correlated noise that is clipped at the bounds.
    """
    if colour == 0.0:
        room = jnp.minimum(mean + 1.0, 1.0 - mean) / 2.0
        return mean + jnp.minimum(sd, room) * jr.truncated_normal(key, -2.0, 2.0, (size, *mean.shape))
    noise = jnp.einsum("nka,hk->nha", jr.normal(key, (size, *mean.shape)), correlate(mean.shape[0], colour))
    return jnp.clip(mean + sd * noise, -1.0, 1.0)


def correlate(steps: int, colour: float) -> Float[np.ndarray, "H H"]:
    """The matrix that turns white noise into unit-variance noise whose power falls as frequency^−colour."""
    frequency = np.fft.rfftfreq(2 * steps)  # a period of 2H, that ends need not meet
    frequency[0] = frequency[1]
    power = frequency**-colour
    covariance = np.fft.irfft(power)[:steps]
    covariance = covariance / covariance[0]
    toeplitz = covariance[np.abs(np.subtract.outer(np.arange(steps), np.arange(steps)))]
    return np.linalg.cholesky(toeplitz + 1e-9 * np.eye(steps)).astype(np.float32)


def shifted(mean: Float[Array, "H A"]) -> Float[Array, "H A"]:
    """The plan that is left after its first action, with the middle of the range appended."""
    return jnp.concatenate([mean[1:], jnp.zeros_like(mean[:1])])
