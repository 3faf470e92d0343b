"""Constrained cross-entropy method (CCEM): plans with the highest return whose conservative cost meets the limit.

The planner knows no network. A `Rollout` predicts rewards, costs and uncertainty of candidates. CCEM is this planner
at κ = 0, and CEM is CCEM with no limit (+∞).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from capax.core.checks import check_size
from capax.core.errors import InputError
from capax.core.settings import Between, Flag, OneOf, Whole, settle
from capax.core.types import Key, Rollout
from capax.planning.scoring import Scores, Terms, score_candidates

MAX_COUNTED_CANDIDATES = 4096
"""Up to this many candidates, counting is a faster way to rank them on a GPU than sorting."""

SCALES = (1.0, 0.5, 0.25, 0.1)
"""Shares of the spread at which candidates are drawn where the limit is a budget."""
GROWTH = 1.12
"""Factor by which a change of the plan is kept longer than the one before it."""
FOLLOWED_SHARES = (1.0, 0.5, 0.25, 0.1, 0.0)
"""Shares of the horizon for which a candidate follows the present plan before it does nothing."""


@dataclass(frozen=True)
class CEM:
    """Sizes of the planner. The defaults are those of the paper (hyper-parameter table) and of its published code."""

    horizon: Annotated[int, Whole()] = 30
    """H: steps that a plan looks ahead."""
    iterations: Annotated[int, Whole(1, 1000)] = 5
    """Rounds of sampling and refitting."""
    population: Annotated[int, Whole()] = 500
    """N: action sequences sampled in the first round."""
    elites: Annotated[int, Whole()] = 50
    """Best sequences of a round; the next round's distribution is fitted to them."""
    smoothing: Annotated[float, Between(0.0, 1.0)] = 0.1
    """Share of the old mean and variance that is kept in each round."""
    spread: Annotated[float, Between(0.0, 2.0)] = 0.5
    """Standard deviation of the first round, where actions range from −1 to 1."""
    colour: Annotated[float, Between(0.0, 8.0)] = 0.0
    """Exponent of the noise's spectrum over the steps of a plan. 0: the paper's truncated normal, independent from step
    to step. Above 0: noise whose power falls as frequency^−colour."""
    shrink: Annotated[float, Between(1.0, 1e9)] = 1.0
    """Factor that the population is divided by in each round, down to twice the elites."""
    clip: Annotated[bool, Flag()] = False
    """Whether actions beyond the range are clipped to its bounds (PlaNet). Otherwise they are drawn within the range
    (the published PETS)."""
    ties: Annotated[str, OneOf("danger", "order")] = "danger"
    """Order of plans with equally many flagged steps, where too few are feasible: by how close their logits are to a cost, or
    (order: published code) as they were drawn."""
    keep: Annotated[float, Between(0.0, 1.0)] = 0.0
    """Share of the elites, rounded down, that enter the next round's population unchanged."""
    execute: Annotated[str, OneOf("mean", "best")] = "mean"
    """The plan that is executed. mean: the mean of the last round's elites (published code). best: the best of the
    last round's candidates and the mean before that round. best needs fewer rounds, since the cost of an average of
    actions differs from the average of their costs."""

    def __post_init__(self) -> None:
        settle(self)
        if self.elites > self.population:
            raise InputError(f"elites is {self.elites}, more than the population of {self.population}: give fewer.")
        if (self.iterations - 1) * math.log(self.shrink) > 700.0:  # e^709 is the largest float
            raise InputError(f"shrink is {self.shrink} in {self.iterations} iterations: give less of one of them.")
        check_size(vars(self), "population", "horizon")
        if self.colour > 0.0:
            check_size(vars(self), "horizon", "horizon", each=8)

    @property
    def sizes(self) -> list[int]:
        """Sequences sampled in each round."""
        smallest = min(self.population, 2 * self.elites)
        return [max(smallest, int(self.population / self.shrink**i)) for i in range(self.iterations)]

    @property
    def max_candidates(self) -> int:
        """Most sequences imagined at once."""
        return max(self.sizes) + int(self.keep * self.elites) + (self.execute == "best")

    @property
    def evaluations(self) -> int:
        """Sequences imagined for one plan."""
        kept = int(self.keep * self.elites)
        return sum(self.sizes) + kept * (self.iterations - 1) + (self.execute == "best")


class Round(NamedTuple):
    """Results of one round."""

    scores: Scores
    rank: Int[Array, " N"]
    """Each candidate's rank, 0 for the best."""
    first_cost: Float[Array, " N"]
    """Cost (or logit) of the first step alone."""
    first_uncertainty: Float[Array, " N"]


class PlanInfo(NamedTuple):
    """Predictions for the executed plan: the best candidate, or the average over the last round's elites."""

    earned: Float[Array, ""]
    """Sum of rewards over the horizon."""
    cost: Float[Array, ""]
    """Mean cost per step, without penalty."""
    uncertainty: Float[Array, ""]
    penalised: Float[Array, ""]
    feasible: Float[Array, ""]
    """Share of the last round's candidates within the limit."""
    enough: Float[Array, ""]
    """1 if at least `elites` candidates were within the limit, else 0."""
    first_cost: Float[Array, ""]
    """Cost (or logit) of the first step alone."""
    first_uncertainty: Float[Array, ""]


def rank_candidates(scores: Scores) -> Int[Array, " N"]:
    """Each candidate's rank, 0 for the best: the feasible by return, then the others by cost.

    Of equal candidates the earlier is better.
    """
    feasible_and_value = scores.feasible, jnp.where(scores.feasible, scores.earned, -scores.danger)
    if len(feasible_and_value[0]) > MAX_COUNTED_CANDIDATES:
        return rank_by_sorting(*feasible_and_value)
    return jax.lax.platform_dependent(*feasible_and_value, cuda=rank_by_counting, default=rank_by_sorting)


def rank_by_sorting(feasible: Bool[Array, " N"], value: Float[Array, " N"]) -> Int[Array, " N"]:
    """Ranks from one stable sort."""
    places = jnp.arange(len(value))
    return jnp.zeros_like(places).at[jnp.lexsort((-value, ~feasible))].set(places)


def rank_by_counting(feasible: Bool[Array, " N"], value: Float[Array, " N"]) -> Int[Array, " N"]:
    """Ranks from the number of better candidates. A GPU compares all pairs faster than it sorts."""
    # computed once: otherwise XLA may recompute and round them for each comparison
    feasible, value = jax.lax.optimization_barrier((feasible, value))
    number = jnp.arange(len(value))
    better_value = (value > value[:, None]) | ((value == value[:, None]) & (number < number[:, None]))
    ahead = (feasible & ~feasible[:, None]) | ((feasible == feasible[:, None]) & better_value)
    return ahead.sum(1)


def mean_of_best(rank: Int[Array, " N"], count: int, x: Float[Array, "N ..."]) -> Array:
    """Mean of x over the `count` best candidates. Non-finite values of the others do not matter."""
    return jnp.where((rank < count).reshape(-1, *[1] * (x.ndim - 1)), x, 0.0).sum(0) / count


def plan(
    key: Key,
    params: Any,
    start: Any,
    warm: Float[Array, "H A"],
    terms: Terms,
    *,
    rollout: Rollout,
    cem: CEM,
    flags: bool = True,
    rest: Float[Array, " A"] | None = None,
    draw: Callable[[Key], Any] = lambda key: key,
) -> tuple[Float[Array, "H A"], Float[Array, "H A"], PlanInfo]:
    """The plan to execute, the mean of the elites for the next search, and predictions for the plan.

    The search begins at `warm`. `terms` are traced: changing them compiles nothing. `flags`: binary costs count as 0 or
    1, not as probabilities. With an action of doing nothing, `rest`, the limit is a budget for the rest of the episode.
    `draw` turns a key into the rollout's last argument, for all rounds at once.
    """
    budget = rest is not None
    kept = int(cem.keep * cem.elites)
    keys = jax.vmap(jr.split)(jr.split(key, cem.iterations))  # each round: one for candidates, one for the rollout
    no_extra, rollout_inputs = jnp.zeros((0, *warm.shape), warm.dtype), jax.vmap(draw)(keys[:, 1])

    def run_round(mean: Any, variance: Any, extra: Any, noise: Any, rollout_inputs: Any) -> tuple[Any, ...]:
        if rest is not None:
            noise, extra = at_several_scales(noise), jnp.concatenate([extra, quieter_plans(mean, rest)])
        fresh = candidates_around(mean, jnp.sqrt(variance), noise, cem.colour, cem.clip)
        actions = jnp.concatenate([fresh, extra])  # [N H A]
        imagined = rollout(params, start, actions, rollout_inputs)
        scores = score_candidates(imagined, terms, budget=budget, flags=flags, break_ties=cem.ties == "danger")
        rank = rank_candidates(scores)
        offset = actions - mean  # keeps squares small, so both moments come from one pass
        shift, square = jnp.split(
            mean_of_best(rank, cem.elites, jnp.concatenate([offset, jnp.square(offset)], -1)), 2, -1
        )
        elite_variance = jnp.maximum(square - jnp.square(shift), 0.0)
        mean = jnp.clip(mean + (1.0 - cem.smoothing) * shift, -1.0, 1.0)  # rounding may pass the bound
        variance = cem.smoothing * variance + (1.0 - cem.smoothing) * elite_variance
        first_cost = imagined.cost[:, :, 0]
        if not flags:
            first_cost = jnp.where(terms.binary, jax.nn.sigmoid(first_cost), first_cost)
        return mean, variance, actions, Round(scores, rank, first_cost.mean(1), imagined.uncertainty[:, :, 0].mean(1))

    mean, variance = warm, jnp.full_like(warm, cem.spread**2)
    if len(set(cem.sizes)) == 1 and kept == 0 and cem.execute == "mean":  # all rounds are alike: compiled once

        def body(carry: Any, inputs: Any) -> tuple[Any, None]:
            mean, variance, _, last_round = run_round(carry[0], carry[1], no_extra, *inputs)
            return (mean, variance, last_round), None

        # for all rounds at once: fewer small kernels on a GPU
        noise = jax.vmap(lambda key: sample_noise(key, (cem.population, *warm.shape), cem.colour, cem.clip))(keys[:, 0])
        first_round = jax.tree.map(itemgetter(0), (noise, rollout_inputs))
        shapes = jax.eval_shape(lambda: run_round(mean, variance, no_extra, *first_round)[-1])
        blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        (mean, _, last_round), _ = jax.lax.scan(body, (mean, variance, blank), (noise, rollout_inputs))
        return mean, mean, plan_info(last_round, cem.elites, cem.elites)
    extra = no_extra
    for number, size in enumerate(cem.sizes):
        if cem.execute == "best" and number == cem.iterations - 1:
            extra = jnp.concatenate([extra, mean[None]])
        noise = sample_noise(keys[number, 0], (size, *warm.shape), cem.colour, cem.clip)
        round_inputs = jax.tree.map(itemgetter(number), rollout_inputs)
        mean, variance, actions, last_round = run_round(mean, variance, extra, noise, round_inputs)
        extra = best_actions(actions, last_round.rank, kept)
    if cem.execute == "best":
        return best_actions(actions, last_round.rank, 1)[0], mean, plan_info(last_round, cem.elites, 1)
    return mean, mean, plan_info(last_round, cem.elites, cem.elites)


def at_several_scales(noise: Float[Array, "N H A"]) -> Float[Array, "N H A"]:
    """The noise of candidates, of which some stay near the mean: where actions cost, much noise costs too much.

    A change of a later action is kept for longer. So a long plan is searched with few numbers, and noise that cancels
    itself costs little.
    """
    scale = jnp.asarray(SCALES)[jnp.arange(len(noise)) % len(SCALES)]
    return noise[:, held_longer(noise.shape[1])] * scale[:, None, None]


def held_longer(steps: int) -> Int[np.ndarray, " H"]:
    """For each step of a plan, the number of the change that it follows: one for each of the first steps, then fewer."""
    lengths: list[int] = []
    number = 0
    while sum(lengths) < steps:
        lengths.append(int(GROWTH**number))
        number += 1
    return np.repeat(np.arange(number), lengths)[:steps]


def quieter_plans(mean: Float[Array, "H A"], rest: Float[Array, " A"]) -> Float[Array, "5 H A"]:
    """The present plan, and plans that follow it for a share of the horizon and then do nothing."""
    steps = len(mean)
    follow = jnp.asarray([int(share * steps) for share in FOLLOWED_SHARES])[:, None]
    return jnp.where((jnp.arange(steps) < follow)[..., None], mean, rest)


def best_actions(actions: Float[Array, "N H A"], rank: Int[Array, " N"], count: int) -> Float[Array, "count H A"]:
    """The `count` best candidates, best first."""
    return actions[jnp.zeros(count, rank.dtype).at[rank].set(jnp.arange(len(rank)), mode="drop")]


def plan_info(last_round: Round, elites: int, count: int) -> PlanInfo:
    """Means over the `count` best candidates. The feasible share is that of all candidates."""
    scores, mean = last_round.scores, partial(mean_of_best, last_round.rank, count)
    return PlanInfo(
        earned=mean(scores.earned),
        cost=mean(scores.cost),
        uncertainty=mean(scores.uncertainty),
        penalised=mean(scores.penalised),
        feasible=scores.feasible.mean(dtype=jnp.float32),
        enough=(scores.feasible.sum() >= elites).astype(jnp.float32),
        first_cost=mean(last_round.first_cost),
        first_uncertainty=mean(last_round.first_uncertainty),
    )


def sample_noise(key: Key, shape: tuple[int, ...], colour: float, clip: bool) -> Float[Array, "N H A"]:
    """Noise of the candidates in standard deviations.

    Normal, truncated at two standard deviations (the published planner), or coloured.
    """
    if colour == 0.0 and not clip:
        return jr.truncated_normal(key, -2.0, 2.0, shape)
    white = jr.normal(key, shape)
    return white if colour == 0.0 else jnp.einsum("nka,hk->nha", white, colour_matrix(shape[1], colour))


def candidates_around(
    mean: Float[Array, "H A"], sd: Float[Array, "H A"], noise: Float[Array, "N H A"], colour: float, clip: bool
) -> Float[Array, "N H A"]:
    """Candidates in [−1, 1] around the mean.

    Where noise is truncated, its standard deviation is at most half the distance to the nearer bound. Otherwise
    candidates are clipped at the bounds.
    """
    if colour == 0.0 and not clip:
        room = jnp.minimum(mean + 1.0, 1.0 - mean) / 2.0
        return mean + jnp.minimum(sd, room) * noise
    return jnp.clip(mean + sd * noise, -1.0, 1.0)


def colour_matrix(steps: int, colour: float) -> Float[np.ndarray, "H H"]:
    """The matrix that turns white noise into unit-variance noise whose power falls as frequency^−colour."""
    frequency = np.fft.rfftfreq(2 * steps)  # a period of 2H, so that first and last step need not match
    frequency[0] = frequency[1]
    power = frequency**-colour
    covariance = np.fft.irfft(power)[:steps]
    covariance = covariance / covariance[0]
    toeplitz = covariance[np.abs(np.subtract.outer(np.arange(steps), np.arange(steps)))]
    return np.linalg.cholesky(toeplitz + 1e-9 * np.eye(steps)).astype(np.float32)


def shifted(mean: Float[Array, "H A"], last: Any = 0.0) -> Float[Array, "H A"]:
    """The plan without its first action, with `last` appended: the middle of the range, or doing nothing."""
    return jnp.concatenate([mean[1:], jnp.broadcast_to(jnp.asarray(last, mean.dtype), mean[:1].shape)])
