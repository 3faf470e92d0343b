"""Which actions earn most among those whose conservative cost stays under the limit? (constrained CEM)

The planner knows no network. It asks a `Rollout` what candidates would earn, cost and how uncertain that is; CCEM is this
planner at κ = 0, and CEM is it with no limit (+∞).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from capax.checks import between, flag, room, settle, whole, word
from capax.errors import InputError
from capax.penalty import conservative
from capax.types import Key

MANY = 4096
"""Candidates from which on sorting them is the shorter way."""


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
    clip: bool = False
    """Put what is drawn beyond the range on its bounds (PlaNet), instead of drawing within it (the published PETS)."""
    keep: float = 0.0
    """Share of the elites, rounded down, that enter the next round's population as they are."""
    execute: str = "mean"
    """What is acted on: the mean of the last round's elites (published code), or the best of the last round's candidates,
    the mean before it among them, which needs fewer rounds: an average of actions costs other than they do on average."""

    def __post_init__(self) -> None:
        settle(self, whole, "horizon", "population", "elites")
        settle(self, partial(whole, most=1000), "iterations")
        settle(self, between(0.0, 1.0), "smoothing", "keep")
        settle(self, between(0.0, 2.0), "spread")
        settle(self, between(0.0, 8.0), "colour")
        settle(self, flag, "clip")
        settle(self, between(1.0, 1e9), "shrink")
        settle(self, partial(word, choices=("mean", "best")), "execute")
        if self.elites > self.population:
            raise InputError(f"elites is {self.elites}, more than the population of {self.population}: give fewer.")
        if (self.iterations - 1) * math.log(self.shrink) > 700.0:  # e^709 is the largest float
            raise InputError(f"shrink is {self.shrink} in {self.iterations} iterations: give less of one of them.")
        room(vars(self), "population", "horizon")
        if self.colour > 0.0:
            room(vars(self), "horizon", "horizon", each=8)

    @property
    def sizes(self) -> list[int]:
        """Sequences drawn in each round."""
        least = min(self.population, 2 * self.elites)
        return [max(least, int(self.population / self.shrink**i)) for i in range(self.iterations)]

    @property
    def widest(self) -> int:
        """Sequences imagined at once, at most."""
        return max(self.sizes) + int(self.keep * self.elites) + (self.execute == "best")

    @property
    def evaluations(self) -> int:
        """Sequences imagined for one plan."""
        kept = int(self.keep * self.elites)
        return sum(self.sizes) + kept * (self.iterations - 1) + (self.execute == "best")


class Scores(NamedTuple):
    """What is known of each candidate; costs per step, in the mean over particles and horizon."""

    earned: Float[Array, " N"]
    cost: Float[Array, " N"]
    uncertainty: Float[Array, " N"]
    penalised: Float[Array, " N"]
    feasible: Bool[Array, " N"]
    danger: Float[Array, " N"]
    """What to sort by where too few are feasible: the penalised cost and, where binary costs tie, how near to a flag."""


class Round(NamedTuple):
    """What is known after one."""

    scores: Scores
    rank: Int[Array, " N"]
    """Each candidate's place, 0 for the best."""
    first_cost: Float[Array, " N"]
    """Cost (or logit) of the first step alone."""
    first_uncertainty: Float[Array, " N"]


class PlanInfo(NamedTuple):
    """What is expected of what is acted on (of the last round's elites, in the mean, if that is their mean)."""

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
    raw, u = imagined.cost, imagined.uncertainty
    cost, penalised = (conservative(raw, u, k, binary) for k in (0.0, kappa))
    signals = (imagined.reward, cost, u, penalised, raw + kappa * u)
    means = [jnp.where(imagined.alive > 0.0, part, 0.0).mean(axis=(1, 2)) for part in signals]
    finite = jnp.isfinite(sum(means))  # as are all that they are means of
    earned, cost, u, penalised, logit = (jnp.where(finite, mean, jnp.inf) for mean in means)
    near = jnp.where(binary & finite, below_1(logit) / raw[0].size, 0.0)  # less than one flag more
    return Scores(
        earned=jnp.where(finite, earned * imagined.reward.shape[2], -jnp.inf),
        cost=cost,
        uncertainty=u,
        penalised=penalised,
        feasible=finite & (penalised <= limit),
        danger=penalised + near,
    )


def below_1(x: Float[Array, " N"]) -> Float[Array, " N"]:
    """From 0 to 1, rising so slowly that hundreds and hundreds and one differ: a sigmoid rounds 17 to 1."""
    return 0.5 + 0.5 * jax.nn.soft_sign(x)


def ranked(scores: Scores) -> Int[Array, " N"]:
    """Each candidate's place, 0 for the best: the feasible by return, then the others by cost. Of equals the earlier is
    better."""
    keys = scores.feasible, jnp.where(scores.feasible, scores.earned, -scores.danger)
    if len(keys[0]) > MANY:
        return by_sorting(*keys)
    return jax.lax.platform_dependent(*keys, cuda=by_counting, default=by_sorting)


def by_sorting(feasible: Bool[Array, " N"], worth: Float[Array, " N"]) -> Int[Array, " N"]:
    number = jnp.arange(len(worth))
    return jnp.zeros_like(number).at[jnp.lexsort((-worth, ~feasible))].set(number)


def by_counting(feasible: Bool[Array, " N"], worth: Float[Array, " N"]) -> Int[Array, " N"]:
    """Those ahead of each: a GPU has compared everyone with everyone long before it has sorted them."""
    # made once: else they may be made, and rounded, anew for each comparison
    f, w = jax.lax.optimization_barrier((feasible, worth))
    number = jnp.arange(len(w))
    better = (w > w[:, None]) | ((w == w[:, None]) & (number < number[:, None]))
    ahead = (f & ~f[:, None]) | ((f == f[:, None]) & better)
    return ahead.sum(1)


def mean_of(rank: Int[Array, " N"], count: int, x: Float[Array, "N ..."]) -> Array:
    """Of so many of the best; what is not finite elsewhere does not matter."""
    return jnp.where((rank < count).reshape(-1, *[1] * (x.ndim - 1)), x, 0.0).sum(0) / count


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
    draw: Callable[[Key], Any] = lambda key: key,
) -> tuple[Float[Array, "H A"], Float[Array, "H A"], PlanInfo]:
    """The plan to act on, the elites' mean to begin the next search with, and what is expected of the plan.

    The search begins at `warm`. κ, the limit per step and whether the cost is binary are traced: changing them compiles
    nothing. What the rollout wants instead of a key, `draw` makes, of all rounds at once.
    """
    kept = int(cem.keep * cem.elites)
    keys = jax.vmap(jr.split)(jr.split(key, cem.iterations))  # of each round, for its candidates and for its rollout
    none, given = jnp.zeros((0, *warm.shape), warm.dtype), jax.vmap(draw)(keys[:, 1])

    def round_of(mean: Any, variance: Any, others: Any, drawn: Any, given: Any) -> tuple[Any, ...]:
        fresh = around(mean, jnp.sqrt(variance), drawn, cem.colour, cem.clip)
        actions = jnp.concatenate([fresh, others])  # [N H A]
        imagined = rollout(params, start, actions, given)
        scores = judge(imagined, kappa, limit, binary)
        rank = ranked(scores)
        apart = actions - mean  # so that squares are no larger than they need to be: both moments in one pass
        shift, square = jnp.split(mean_of(rank, cem.elites, jnp.concatenate([apart, jnp.square(apart)], -1)), 2, -1)
        spread = jnp.maximum(square - jnp.square(shift), 0.0)
        mean = jnp.clip(mean + (1.0 - cem.smoothing) * shift, -1.0, 1.0)  # against rounding
        variance = cem.smoothing * variance + (1.0 - cem.smoothing) * spread
        first = (part[:, :, 0].mean(1) for part in (imagined.cost, imagined.uncertainty))
        return mean, variance, actions, Round(scores, rank, *first)

    mean, variance = warm, jnp.full_like(warm, cem.spread**2)
    if len(set(cem.sizes)) == 1 and kept == 0 and cem.execute == "mean":  # every round alike: compiled once

        def body(carry: Any, at: Any) -> tuple[Any, None]:
            mean, variance, _, known = round_of(carry[0], carry[1], none, *at)
            return (mean, variance, known), None

        # of all rounds at once: fewer small kernels on a GPU
        drawn = jax.vmap(lambda key: noise(key, (cem.population, *warm.shape), cem.colour, cem.clip))(keys[:, 0])
        first = jax.tree.map(itemgetter(0), (drawn, given))
        shapes = jax.eval_shape(lambda: round_of(mean, variance, none, *first)[-1])
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        (mean, _, known), _ = jax.lax.scan(body, (mean, variance, nothing), (drawn, given))
        return mean, mean, describe(known, cem.elites, cem.elites)
    others = none
    for number, size in enumerate(cem.sizes):
        if cem.execute == "best" and number == cem.iterations - 1:
            others = jnp.concatenate([others, mean[None]])
        drawn = noise(keys[number, 0], (size, *warm.shape), cem.colour, cem.clip)
        own = jax.tree.map(itemgetter(number), given)
        mean, variance, actions, known = round_of(mean, variance, others, drawn, own)
        others = in_order(actions, known.rank, kept)
    if cem.execute == "best":
        return in_order(actions, known.rank, 1)[0], mean, describe(known, cem.elites, 1)
    return mean, mean, describe(known, cem.elites, cem.elites)


def in_order(actions: Float[Array, "N H A"], rank: Int[Array, " N"], count: int) -> Float[Array, "count H A"]:
    """The best, best first."""
    return actions[jnp.zeros(count, rank.dtype).at[rank].set(jnp.arange(len(rank)), mode="drop")]


def describe(known: Round, elites: int, acted: int) -> PlanInfo:
    """Means over the candidates that are acted on, so many of the best; what is feasible, of all."""
    scores, mean = known.scores, partial(mean_of, known.rank, acted)
    return PlanInfo(
        earned=mean(scores.earned),
        cost=mean(scores.cost),
        uncertainty=mean(scores.uncertainty),
        penalised=mean(scores.penalised),
        feasible=scores.feasible.mean(dtype=jnp.float32),
        enough=(scores.feasible.sum() >= elites).astype(jnp.float32),
        first_cost=mean(known.first_cost),
        first_uncertainty=mean(known.first_uncertainty),
    )


def noise(key: Key, shape: tuple[int, ...], colour: float, clip: bool) -> Float[Array, "N H A"]:
    """What candidates differ by, in deviations: normal, truncated at two deviations (the published planner), or coloured."""
    if colour == 0.0 and not clip:
        return jr.truncated_normal(key, -2.0, 2.0, shape)
    white = jr.normal(key, shape)
    return white if colour == 0.0 else jnp.einsum("nka,hk->nha", white, correlate(shape[1], colour))


def around(
    mean: Float[Array, "H A"], sd: Float[Array, "H A"], drawn: Float[Array, "N H A"], colour: float, clip: bool
) -> Float[Array, "N H A"]:
    """Candidates in [−1, 1] around the mean.

    Where noise is truncated its deviation is at most half the distance to the nearer bound; elsewhere candidates are
    clipped at the bounds.
    """
    if colour == 0.0 and not clip:
        room = jnp.minimum(mean + 1.0, 1.0 - mean) / 2.0
        return mean + jnp.minimum(sd, room) * drawn
    return jnp.clip(mean + sd * drawn, -1.0, 1.0)


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
