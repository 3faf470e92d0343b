"""CAP for continuous control: a probabilistic ensemble, constrained CEM, and a rule that moves κ.

CCEM is this agent with κ fixed at 0. CEM (PETS) is CCEM without a limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax

from capax.agents.budget_feedback import (
    Error,
    Played,
    budget_feedback,
    costly_runs,
    episode_error,
    sight_of,
    start_error,
    stretches,
    unbroken,
)
from capax.agents.pets_settings import PetsSettings as PetsSettings
from capax.agents.planned_common import EpisodeBudget, FailureCount, all_finite, feedback, first_finite
from capax.agents.recent_cache import RecentCache
from capax.agents.starters import uniform
from capax.agents.surprise import FORESEEN, Recalled, relearned
from capax.core.contracts import Agent, PlanningRule
from capax.core.costs import violates
from capax.core.types import AnyNumber, Episode, Feedback, Key, Metrics, Rest, Spec
from capax.data.device_cache import TransitionCache
from capax.data.transitions import COLUMNS, TransitionBuffer
from capax.kappa.allowance import typical_run
from capax.kappa.conformal import residual_kappa
from capax.models import ensemble, ensemble_fit
from capax.models.ensemble import Ensemble, Scaling
from capax.models.replay import Replay, explained_reward, replay
from capax.models.sharpness import sharpened, step_margins
from capax.planning.ccem import plan, shifted
from capax.planning.scoring import LIVED_RATE, PARTS, Terms
from capax.runtime.cpu_devices import replicate
from capax.runtime.lanes import batched, built_once

REPLAYED_EPISODES = 12
"""Latest episodes on which a new model is tried."""


class PetsState(NamedTuple):
    """State of the agent between episodes."""

    model: Ensemble
    optimiser: Any
    scaling: Scaling | None
    """None before the first fit; until then the agent acts at random."""
    buffer: TransitionBuffer
    waiting: int
    """Steps added since the last fit."""
    rule: Any
    origin: Any = None
    """Mean of the first observations `[S]`; None before them. It is subtracted from all observations in float64, since
    networks read float32."""
    good: tuple[Ensemble, Scaling] | None = None
    """Parameters of the previous fit, which have planned an episode: the fallback if the present ones fail."""
    failures: FailureCount = FailureCount()
    surprised: bool = False
    """The last episode violated the limit, or paid the first cost of all: the model is fitted before the next one."""
    played: tuple[Played, ...] = ()
    """The latest planned episodes under an undiscounted limit, oldest first."""
    sight: int = PARTS
    """Parts of a plan that count."""
    run_length: float = 1.0
    """Steps in a row that cost something, typically, once one does."""


class PlanCarry(NamedTuple):
    """The carry from step to step of an episode."""

    warm: Any
    """The rest of the last plan, where the next search begins."""
    budget: EpisodeBudget = EpisodeBudget()
    risk: float = 0.0
    """Conservative cost that was predicted for the steps so far."""
    unpaid: float | None = None
    """Predicted cost of the last step, until its true cost is known. Who does not report costs is taken to pay it."""
    recalled: Recalled | None = None
    """The latest steps, where a cost that was not foreseen is learned from at once."""
    model: Ensemble | None = None
    """What was learned from within this episode."""
    surprised: bool = False
    """The last step had a cost that was not foreseen."""


@built_once
def compiled_plan(
    settings: PetsSettings, obs_dim: int, action_dim: int, rest: tuple[float, ...] | None = None
) -> tuple[Any, Any]:
    """Two functions that agents of the same sizes share: one prepares parameters, the other plans with them.

    With an action of doing nothing, `rest`, the limit is a budget.
    """
    prepare, rollout = ensemble.build_rollout(settings.ensemble, obs_dim, action_dim)
    flags = settings.binary_costs == "flag"

    def act(key: Key, params: Any, inputs: Any, warm: Any) -> Any:
        obs, (kappa, limit, steps_left, sight) = inputs[:-4], inputs[-4:]  # one array: one copy to the device
        rate = settings.termination_cost if settings.termination_cost >= 0.0 else LIVED_RATE
        terms = Terms(kappa, limit, params[1].binary, rate, steps_left, sight, params[1].least_cost)
        still = None if rest is None else jnp.asarray(rest, jnp.float32)
        actions, mean, info = plan(
            key, params, obs, warm, terms, rollout=rollout, cem=settings.cem, flags=flags, rest=still
        )
        last = 0.0 if still is None else still
        return jnp.concatenate([actions[0], jnp.stack(info)]), shifted(mean, last)  # one array: one copy to the host

    return prepare, batched(jax.jit(act))


@dataclass(frozen=True)
class Pets(Agent[PetsState]):
    """CAP with an ensemble (Algorithm 1 with Eq. 7 and 8)."""

    spec: Spec
    rule: PlanningRule
    obs_dim: int
    action_dim: int
    settings: PetsSettings
    capacity: int
    """Steps of the run. The buffer is padded to them, so that a fit is compiled once."""
    rest: tuple[float, ...] = ()
    """The action in [−1, 1] that is nearest to doing nothing; empty: the middle of the range."""

    @property
    def _budget(self) -> bool:
        """The limit is a budget for the episode's sum."""
        pace = self.settings.undiscounted_limit == "pace"
        return not pace and not self.spec.discounted and self.spec.episode_steps is not None

    def _flags(self, scale: Scaling | None) -> bool:
        """Costs are 0 or 1, and count as flags."""
        return scale is not None and self.settings.binary_costs == "flag" and bool(scale.binary)

    @cached_property
    def _rest(self) -> tuple[float, ...] | None:
        return (self.rest or (0.0,) * self.action_dim) if self._budget else None

    def __post_init__(self) -> None:
        if self.settings.ensemble.rollout == "fused":  # refused here, not at the first plan, where it cannot run
            ensemble.build_rollout(self.settings.ensemble, self.obs_dim, self.action_dim)

    @cached_property
    def _prepared(self) -> RecentCache:
        prepare = compiled_plan(self.settings, self.obs_dim, self.action_dim, self._rest)[0]
        return RecentCache(lambda *params: prepare(params))

    @cached_property
    def _transitions(self) -> TransitionCache:
        return TransitionCache()

    def init(self, key: Key) -> PetsState:
        model = ensemble.init(key, self.obs_dim, self.action_dim, self.settings.ensemble)
        optimiser = optax.adam(self.settings.ensemble.learning_rate).init(model)
        buffer = TransitionBuffer.empty(self.obs_dim, self.action_dim)
        return PetsState(model, optimiser, None, buffer, 0, self.rule.init())

    def example(self, initial: PetsState) -> PetsState:
        scale = ensemble.scaling(TransitionBuffer.empty(self.obs_dim, self.action_dim).padded(1))
        return initial._replace(
            scaling=scale,
            good=(initial.model, scale),
            origin=np.zeros(self.obs_dim),
            played=AnyNumber(Played(0, 0)),
        )

    def can_act(self, state: PetsState) -> bool:
        return state.scaling is not None

    def begin(self, state: PetsState) -> PlanCarry:
        shape = self.settings.cem.horizon, self.action_dim
        recalled = None
        if state.model.costs is not None and state.scaling is not None and bool(state.scaling.binary):
            recalled = Recalled.nothing(self.obs_dim, self.action_dim)
        warm = replicate(jnp.broadcast_to(jnp.asarray(self._rest or 0.0, jnp.float32), shape))
        return PlanCarry(warm, recalled=recalled)

    def act(self, state: PetsState, carry: PlanCarry, obs: Any, key: Key) -> tuple[Any, PlanCarry, Metrics]:
        """The first action of the best plan within the limit."""
        if state.scaling is None:
            return np.asarray(uniform(key, self.action_dim)), carry, {}
        if self._budget and carry.unpaid is not None:
            carry = self.observe_cost(carry, carry.unpaid)
        limit, steps_left = self._limit(state, carry)
        if carry.surprised and carry.recalled is not None:
            rate, model = self.settings.ensemble.learning_rate, carry.model or state.model
            carry = carry._replace(model=relearned(model, state.scaling, carry.recalled, rate), surprised=False)
        numbers = *(obs - state.origin), state.rule.kappa, limit, steps_left, state.sight
        with np.errstate(over="ignore"):  # numbers too large for float32 become infinite, and the plan is not finite
            inputs = np.asarray(numbers, np.float32)
        _, act = compiled_plan(self.settings, self.obs_dim, self.action_dim, self._rest)

        def plan_with(params: Any) -> Any:
            return lambda: act(key, self._prepared(*params), inputs, carry.warm)

        good = None if state.good is None else plan_with(state.good)
        plans = plan_with((carry.model or state.model, state.scaling)), good
        last = carry.warm
        action, warm, metrics = first_finite(plans, lambda: (np.asarray(last[0]), shifted(last)), self.action_dim)
        predicted = max(0.0, metrics["plan_first_cost"])
        risk = carry.risk + predicted + state.rule.kappa * metrics["plan_first_uncertainty"]
        recalled = carry.recalled.with_step(obs - state.origin, action) if carry.recalled is not None else None
        carry = carry._replace(warm=warm, risk=risk, unpaid=predicted, recalled=recalled)
        return action, carry, {**metrics, "plan_limit": limit}

    def _limit(self, state: PetsState, carry: PlanCarry) -> tuple[float, float]:
        """The largest mean cost per step of the next plan, and the steps that are left."""
        if not self._budget:
            limit, left = self.spec.limit, carry.budget.left(self.spec)
            if self._flags(state.scaling):
                return limit / self.spec.scale, np.inf
            if limit <= 0.0 and state.scaling is not None and bool(state.scaling.binary):  # a probability is never 0
                limit = self.rule.allowance(state.rule, Rest(limit, 1, 1, True))
                left = max(left, limit / self.spec.scale)
            return self.rule.step_limit(limit / self.spec.scale, left), np.inf
        assert self.spec.episode_steps is not None and state.scaling is not None
        steps, left = max(1, self.spec.episode_steps - carry.budget.steps), self.spec.limit - carry.budget.spent
        binary = bool(state.scaling.binary)
        rest = Rest(left, steps, self.spec.episode_steps, binary, carry.risk, state.run_length)
        per_step = self.rule.allowance(state.rule, rest) / steps
        return self.rule.step_limit(per_step, per_step), steps

    def observe_cost(self, carry: PlanCarry, cost: float) -> PlanCarry:
        carry = carry._replace(budget=carry.budget.after(self.spec, cost))
        if carry.recalled is not None and carry.unpaid is not None:
            surprised = carry.unpaid < FORESEEN < cost
            carry = carry._replace(recalled=carry.recalled.with_cost(cost), surprised=surprised)
        return carry._replace(unpaid=None)

    def learn(self, state: PetsState, episodes: Sequence[Episode], key: Key) -> tuple[PetsState, Metrics]:
        """Add new episodes to the buffer, and fit if there are enough new steps."""
        buffer, waiting, origin = state.buffer, state.waiting, state.origin
        if episodes and buffer.size == 0:
            origin = np.concatenate([episode.obs for episode in episodes]).mean(0, dtype=np.float64)
        for episode in episodes:
            centred = episode._replace(obs=episode.obs - origin, next_obs=episode.next_obs - origin)
            buffer, waiting = buffer.add(centred, self.settings.buffer), waiting + len(episode.reward)
        every = min(self.settings.fit_every, self.spec.episode_steps or self.settings.fit_every)
        state = state._replace(buffer=buffer, waiting=waiting, origin=origin)
        if state.scaling is not None and waiting < every and not state.surprised:
            return state, {}
        scale = ensemble.scaling(buffer, self.settings.ensemble, origin)
        if state.scaling is not None and bool(state.scaling.binary) != bool(scale.binary):
            # logits became costs: the rule's state has other units
            state = state._replace(rule=self.rule.init(), played=(), sight=PARTS)
        if self._budget:
            runs = typical_run(costly_runs(buffer), max(1.0, np.floor(self.spec.limit) + 1.0))
            state = state._replace(run_length=runs)
            if state.scaling is None:
                state = state._replace(rule=self._before_planning(state, scale, key))
        model, optimiser, loss = self._fit(state.model, state.optimiser, scale, buffer, key)
        if not (np.isfinite(loss) and all_finite(model)):
            failures = state.failures.bad_fit(self.settings.ensemble.learning_rate)
            return state._replace(waiting=0, failures=failures), {"bad_fits": failures.fits}
        if self._flags(scale):
            margins = step_margins((model, scale), buffer, key, self.settings.ensemble)
            state = state._replace(rule=self.rule.after_fit(state.rule, margins))
        elif bool(scale.binary):
            scale = sharpened((model, scale), buffer, key, self.settings.ensemble)
        if self._budget:
            state = self._reconsidered(state, (model, scale))
        good = None if state.scaling is None else (state.model, state.scaling)
        failures = state.failures._replace(fits=0)
        changes = dict(
            model=model, optimiser=optimiser, scaling=scale, waiting=0, good=good, failures=failures,
            surprised=False,
        )  # fmt: skip
        return state._replace(**changes), {"model_loss": float(loss)}

    def adapt(self, state: PetsState, episode: Episode) -> tuple[PetsState, Metrics]:
        """Move κ by the paid cost and the planned one."""
        failures = state.failures.after(episode)
        first_cost = bool(np.any(episode.cost > 0.0)) and not np.any(state.buffer.cost > 0.0)
        surprised = not episode.random and (violates(episode.paid, self.spec.limit) or first_cost)
        lesson, metrics = self.feedback(state, episode)
        rule = self.rule.update(state.rule, lesson)
        before = {**self.rule.report(state.rule), "kappa": float(state.rule.kappa)}
        state = state._replace(rule=rule, failures=failures, surprised=state.surprised or surprised)
        known_error = lesson.residual is not None and np.isfinite(lesson.residual) and 0.0 < lesson.uncertainty < np.inf
        if self._budget and known_error:
            played = (*state.played, Played(state.buffer.added, len(episode.reward)))
            state = state._replace(played=played[-REPLAYED_EPISODES:])
        return state, {**before, **metrics, **self._learned(state, episode), "kappa_next": float(rule.kappa)}

    def _learned(self, state: PetsState, episode: Episode) -> Metrics:
        """How well the model, not yet fitted to an episode, predicts its rewards, and how far its actions were from rest."""
        if episode.random or state.scaling is None:
            return {}
        activity = float(np.abs(episode.action - np.asarray(self.rest or 0.0)).mean())
        obs, action = (episode.obs - state.origin).astype(np.float32), episode.action.astype(np.float32)
        steps = self.spec.episode_steps or 1 << (len(obs) - 1).bit_length()  # few sizes, so little is compiled
        share = explained_reward((state.model, state.scaling), obs, action, episode.reward, steps)
        return {"activity": activity} | ({} if share is None else {"reward_explained": share})

    def feedback(self, state: PetsState, episode: Episode) -> tuple[Feedback, Metrics]:
        """The feedback of an episode for the rule, and metrics."""
        planned = "plan_limit" in episode.extras
        if not self._budget or not planned or state.scaling is None:
            return feedback(self.spec, self._flags(state.scaling), episode)
        obs = (episode.obs - state.origin).astype(np.float32)
        replayed = self._replayed((state.model, state.scaling), obs, episode.action)
        error = self._error(state.sight, episode.cost, replayed)
        if not np.isfinite(episode.extras["plan_cost"]).all():  # then the episode says nothing about the model's error
            error = error._replace(error=np.inf)
        allowance = float(episode.extras["plan_limit"][0]) * (self.spec.episode_steps or 1)
        return budget_feedback(self.spec, error, allowance, episode)

    def _error(self, sight: int, cost: Any, replayed: Replay) -> Error:
        """The model's error in a replayed episode."""
        goal = self.settings.termination_cost == 0.0  # an early end is no reason to expect more
        whole = 1.0 if goal else self.spec.scale / len(cost)
        return episode_error(cost, *replayed.with_sight(sight), whole)

    def _replayed(self, params: tuple[Ensemble, Scaling], obs: Any, action: Any) -> Replay:
        """What the model predicts for the actions of an episode."""
        steps, key = self.spec.episode_steps or len(obs), jr.key(0)
        horizon = self.settings.cem.horizon
        return replay(params, obs, action.astype(np.float32), key, horizon, self.settings.ensemble, steps)

    def _reconsidered(self, state: PetsState, params: tuple[Ensemble, Scaling]) -> PetsState:
        """The state after a fit: its sight and the past errors of its rule are those of the new model."""
        buffer, places = state.buffer, [at for at in stretches(state.buffer, state.played) if at is not None]
        if not places or not np.isfinite(self.spec.limit):
            return state
        costs = [buffer.cost[at] for at in places]
        replays = [self._replayed(params, buffer.obs[at], buffer.action[at]) for at in places]
        sight = sight_of(costs, replays, self.spec.limit)
        found = [self._error(sight, cost, replayed) for cost, replayed in zip(costs, replays, strict=True)]
        errors, uncertainty = tuple(part.error for part in found), float(np.mean([part.uncertainty for part in found]))
        return state._replace(sight=sight, rule=self.rule.reconsider(state.rule, errors, uncertainty))

    def _before_planning(self, state: PetsState, scale: Scaling, key: Key) -> Any:
        """The rule's state before the first plan: the error on each half of the start data of a model fitted to the other."""
        buffer, half = state.buffer, state.buffer.size // 2
        if half == 0 or not np.isfinite(self.spec.limit):
            return state.rule
        predictions = []
        for fitted, tried in ((slice(half, None), slice(None, half)), (slice(None, half), slice(half, None))):
            columns: dict[str, Any] = {name: getattr(buffer, name)[fitted] for name in COLUMNS}
            part = buffer._replace(**columns)
            model, _, loss = self._fit(state.model, state.optimiser, scale, part, key)
            if not np.isfinite(loss):
                return state.rule
            for at in unbroken(buffer, tried):
                replayed = self._replayed((model, scale), buffer.obs[at], buffer.action[at])
                predictions.append(replayed.with_sight(PARTS))
        predicted, uncertainty = (np.concatenate(parts) for parts in zip(*predictions, strict=True))
        steps = self.spec.episode_steps or buffer.size
        error = start_error(buffer.cost, predicted, uncertainty, self.settings.cem.horizon, steps)
        left = self.spec.limit
        allowance = self.rule.allowance(
            state.rule, Rest(left, steps, steps, bool(scale.binary), run_length=state.run_length)
        )
        unit = allowance / error.uncertainty if error.uncertainty > 0.0 and np.isfinite(allowance) else 0.0
        residual = residual_kappa(error.error, 0.0, error.uncertainty)
        lesson = Feedback(0.0, left, False, residual, unit, error.uncertainty, noise=error.noise, allowance=allowance)
        return self.rule.before_planning(state.rule, lesson)

    def _fit(self, model: Any, optimiser: Any, scale: Scaling, buffer: TransitionBuffer, key: Key) -> Any:
        """A model fitted to a buffer, its optimiser's state, and the loss."""
        data = self._transitions.sync(buffer, capacity_for(buffer.size, self.capacity))
        return ensemble_fit.fit(model, optimiser, scale, data, buffer.size, key, settings=self.settings.ensemble)


def capacity_for(count: int, capacity: int) -> int:
    """The size that `count` rows are padded to: the capacity of the run, doubled until they fit if it became longer."""
    while capacity < count:
        capacity *= 2
    return capacity
