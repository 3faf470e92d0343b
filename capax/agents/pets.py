"""CAP for continuous control: a probabilistic ensemble, constrained CEM, and a rule that moves κ.

CCEM is this agent with κ fixed at 0. CEM (PETS) is CCEM without a limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from capax.agents.planned_common import EpisodeBudget, FailureCount, all_finite, feedback, first_finite
from capax.agents.recent_cache import RecentCache
from capax.agents.starters import uniform
from capax.core.checks import check_size
from capax.core.contracts import Agent, PlanningRule
from capax.core.errors import InputError
from capax.core.settings import Above, Whole, settle
from capax.core.types import Episode, Feedback, Key, Metrics, Spec
from capax.data.device_cache import TransitionCache
from capax.data.transitions import TransitionBuffer
from capax.kappa.binary import safety_margins
from capax.models import ensemble
from capax.models.ensemble import Ensemble, EnsembleSettings, Scaling
from capax.planning.ccem import CEM, plan, shifted
from capax.runtime.cpu_devices import replicate
from capax.runtime.lanes import batched, built_once


@dataclass(frozen=True)
class PetsSettings:
    """Settings of the agent."""

    ensemble: EnsembleSettings = field(default_factory=EnsembleSettings)
    cem: CEM = field(default_factory=CEM)
    start_steps: Annotated[int, Whole(2)] = 1000
    """Random steps before the first fit (paper, hyper-parameter table)."""
    buffer: Annotated[int, Whole(2)] = 1_000_000
    """Transitions that are kept (paper, hyper-parameter table)."""
    fit_every: Annotated[int, Whole(2)] = 1000
    """New steps between two fits (paper: 1000, an episode); one episode if that has fewer."""
    gamma: Annotated[float, Above(0.0, 0.999999)] = 0.99
    """Discount of a step, in discounted sums."""

    def __post_init__(self) -> None:
        if not isinstance(self.ensemble, EnsembleSettings) or not isinstance(self.cem, CEM):
            raise InputError("ensemble and cem are settings of their own: give EnsembleSettings(...) and CEM(...).")
        settle(self)
        sizes = {**vars(self.ensemble), **vars(self.cem), **vars(self)}
        for name in ("batch", "start_steps", "fit_every"):
            if sizes[name] > self.buffer:
                raise InputError(f"buffer is {self.buffer}, less than {name}, {sizes[name]}: give at least that many.")
        check_size(sizes, "population", "particles", "horizon")
        check_size(sizes, "population", "particles", "hidden", *["members"] * self.ensemble.exact)


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


class PlanCarry(NamedTuple):
    """The carry from step to step of an episode."""

    warm: Any
    """The rest of the last plan, where the next search begins."""
    budget: EpisodeBudget = EpisodeBudget()


@built_once
def compiled_plan(settings: PetsSettings, obs_dim: int, action_dim: int) -> tuple[Any, Any]:
    """Two functions that agents of the same sizes share: one prepares parameters, the other plans with them."""
    prepare, rollout = ensemble.build_rollout(settings.ensemble, obs_dim, action_dim)

    def act(key: Key, params: Any, inputs: Any, warm: Any) -> Any:
        obs, kappa, limit = inputs[:-2], inputs[-2], inputs[-1]  # one array: one copy to the device
        binary, cem = params[1].binary, settings.cem
        actions, mean, info = plan(key, params, obs, warm, kappa, limit, binary, rollout=rollout, cem=cem)
        return jnp.concatenate([actions[0], jnp.stack(info)]), shifted(mean)  # one array: one copy to the host

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

    def __post_init__(self) -> None:
        if self.settings.ensemble.rollout == "fused":  # refused here, not at the first plan, where it cannot run
            ensemble.build_rollout(self.settings.ensemble, self.obs_dim, self.action_dim)

    @cached_property
    def _prepared(self) -> RecentCache:
        prepare = compiled_plan(self.settings, self.obs_dim, self.action_dim)[0]
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
        return initial._replace(scaling=scale, good=(initial.model, scale), origin=np.zeros(self.obs_dim))

    def can_act(self, state: PetsState) -> bool:
        return state.scaling is not None

    def begin(self, state: PetsState) -> PlanCarry:
        return PlanCarry(replicate(jnp.zeros((self.settings.cem.horizon, self.action_dim))))

    def act(self, state: PetsState, carry: PlanCarry, obs: Any, key: Key) -> tuple[Any, PlanCarry, Metrics]:
        """The first action of the best plan within the limit."""
        if state.scaling is None:
            return np.asarray(uniform(key, self.action_dim)), carry, {}
        limit = self.rule.step_limit(self.spec.limit / self.spec.scale, carry.budget.left(self.spec))
        numbers = *(obs - state.origin), state.rule.kappa, limit
        with np.errstate(over="ignore"):  # numbers too large for float32 become infinite, and the plan is not finite
            inputs = np.asarray(numbers, np.float32)
        _, act = compiled_plan(self.settings, self.obs_dim, self.action_dim)

        def plan_with(params: Any) -> Any:
            return lambda: act(key, self._prepared(*params), inputs, carry.warm)

        good = None if state.good is None else plan_with(state.good)
        plans = plan_with((state.model, state.scaling)), good
        last = carry.warm
        action, warm, metrics = first_finite(plans, lambda: (np.asarray(last[0]), shifted(last)), self.action_dim)
        return action, carry._replace(warm=warm), {**metrics, "plan_limit": limit}

    def observe_cost(self, carry: PlanCarry, cost: float) -> PlanCarry:
        return carry._replace(budget=carry.budget.after(self.spec, cost))

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
        if state.scaling is not None and waiting < every:
            return state, {}
        scale = ensemble.scaling(buffer)
        if state.scaling is not None and bool(state.scaling.binary) != bool(scale.binary):
            state = state._replace(rule=self.rule.init())  # logits became costs: the rule's state has other units
        model, optimiser, loss = ensemble.fit(
            state.model,
            state.optimiser,
            scale,
            self._transitions.sync(buffer, capacity_for(buffer.size, self.capacity)),
            buffer.size,
            key,
            settings=self.settings.ensemble,
        )
        if not (np.isfinite(loss) and all_finite(model)):
            failures = state.failures.bad_fit(self.settings.ensemble.learning_rate)
            return state._replace(waiting=0, failures=failures), {"bad_fits": failures.fits}
        rule = state.rule
        if bool(scale.binary):
            margins = safety_margins(*ensemble.margin_samples((model, scale), buffer, key, self.settings.ensemble))
            rule = self.rule.after_fit(rule, margins)
        good = None if state.scaling is None else (state.model, state.scaling)
        failures = state.failures._replace(fits=0)
        changes = dict(
            rule=rule, model=model, optimiser=optimiser, scaling=scale, waiting=0, good=good, failures=failures
        )
        return state._replace(**changes), {"model_loss": float(loss)}

    def adapt(self, state: PetsState, episode: Episode) -> tuple[PetsState, Metrics]:
        """Move κ by the paid cost and the planned one."""
        failures = state.failures.after(episode)
        lesson, metrics = self.feedback(state, episode)
        rule = self.rule.update(state.rule, lesson)
        before = {**self.rule.report(state.rule), "kappa": float(state.rule.kappa)}
        return state._replace(rule=rule, failures=failures), {**before, **metrics, "kappa_next": float(rule.kappa)}

    def feedback(self, state: PetsState, episode: Episode) -> tuple[Feedback, Metrics]:
        """The feedback of an episode for the rule, and metrics."""
        return feedback(self.spec, state.scaling is not None and bool(state.scaling.binary), episode)


def capacity_for(count: int, capacity: int) -> int:
    """The size that `count` rows are padded to: the capacity of the run, doubled until they fit if it became longer."""
    while capacity < count:
        capacity *= 2
    return capacity
