"""CAP for continuous control: a probabilistic ensemble, constrained CEM, and a rule that moves κ.

CCEM is this agent with κ fixed at 0, and CEM (PETS) is that without a limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from capax.agents.adapting import Purse, Trouble, all_finite, feedback, first_finite
from capax.agents.ready import Ready
from capax.agents.start import uniform
from capax.buffer import Buffer
from capax.checks import above_0, room, settle, whole
from capax.cores import everywhere
from capax.errors import InputError
from capax.flags import margins
from capax.kappa import Feedback, Rule
from capax.lanes import once, shared
from capax.mirror import Transitions
from capax.models import ensemble
from capax.models.ensemble import Ensemble, EnsembleSettings, Scaling
from capax.planning.ccem import CEM, plan, shifted
from capax.types import Episode, Key, Metrics, Spec


@dataclass(frozen=True)
class PetsSettings:
    """What the agent is made of."""

    ensemble: EnsembleSettings = field(default_factory=EnsembleSettings)
    cem: CEM = field(default_factory=CEM)
    start_steps: int = 1000
    """Random steps before the first fit (paper, hyper-parameter table)."""
    buffer: int = 1_000_000
    """Transitions that are remembered (paper, hyper-parameter table)."""
    fit_every: int = 1000
    """New steps between two fits (paper: 1000, an episode), or a whole episode's where that has fewer."""
    gamma: float = 0.99
    """Discount of a step, in discounted sums."""

    def __post_init__(self) -> None:
        if not isinstance(self.ensemble, EnsembleSettings) or not isinstance(self.cem, CEM):
            raise InputError("ensemble and cem are settings of their own: give EnsembleSettings(...) and CEM(...).")
        settle(self, partial(whole, least=2), "start_steps", "buffer", "fit_every")
        settle(self, above_0(0.999999), "gamma")  # with more, what is discounted has no end in sight
        sizes = {**vars(self.ensemble), **vars(self.cem), **vars(self)}
        for name in ("batch", "start_steps", "fit_every"):
            if sizes[name] > self.buffer:
                raise InputError(f"buffer is {self.buffer}, less than {name}, {sizes[name]}: give at least that many.")
        room(sizes, "population", "particles", "horizon")
        room(sizes, "population", "particles", "hidden", *["members"] * self.ensemble.exact)


class PetsState(NamedTuple):
    """What the agent remembers from episode to episode."""

    model: Ensemble
    optimiser: Any
    scaling: Scaling | None
    """None before the first fit: the agent acts at random."""
    buffer: Buffer
    waiting: int
    """Steps that came in since the last fit."""
    rule: Any
    origin: Any = None
    """Mean of the first observations `[S]`, None before them; subtracted from all of them while they are float64, since
    networks read float32."""
    good: tuple[Ensemble, Scaling] | None = None
    """Parameters of the fit before, which have planned an episode: used where the present ones fail."""
    trouble: Trouble = Trouble()


class Carried(NamedTuple):
    """What an episode carries from step to step."""

    warm: Any
    """The plan that is left."""
    purse: Purse = Purse()


@once
def planning(settings: PetsSettings, obs_dim: int, action_dim: int) -> tuple[Any, Any]:
    """What makes parameters ready, and a plan from a state with these; compiled once for all agents of these sizes."""
    ready, rollout = ensemble.imagination(settings.ensemble, obs_dim, action_dim)

    def act(key: Key, params: Any, told: Any, warm: Any) -> Any:
        obs, kappa, limit = told[:-2], told[-2], told[-1]  # one piece: one copy to the device
        binary, cem = params[1].binary, settings.cem
        chosen, mean, info = plan(key, params, obs, warm, kappa, limit, binary, rollout=rollout, cem=cem)
        return jnp.concatenate([chosen[0], jnp.stack(info)]), shifted(mean)  # one piece: one copy to the host

    return ready, shared(jax.jit(act))


@dataclass(frozen=True)
class Pets:
    """CAP with an ensemble (Algorithm 1 with Eq. 7 and 8)."""

    spec: Spec
    rule: Rule
    obs_dim: int
    action_dim: int
    settings: PetsSettings
    capacity: int
    """Steps that the run is to have: the buffer is padded to them, so that a fit is compiled once."""

    def __post_init__(self) -> None:
        if self.settings.ensemble.rollout == "fused":  # refused here rather than at the first plan
            ensemble.imagination(self.settings.ensemble, self.obs_dim, self.action_dim)

    @cached_property
    def _ready(self) -> Ready:
        make = planning(self.settings, self.obs_dim, self.action_dim)[0]
        return Ready(lambda *params: make(params))

    @cached_property
    def _transitions(self) -> Transitions:
        return Transitions()

    def init(self, key: Key) -> PetsState:
        model = ensemble.init(key, self.obs_dim, self.action_dim, self.settings.ensemble)
        optimiser = optax.adam(self.settings.ensemble.learning_rate).init(model)
        buffer = Buffer.empty(self.obs_dim, self.action_dim)
        return PetsState(model, optimiser, None, buffer, 0, self.rule.init())

    def like(self, key: Key) -> PetsState:
        """A state with the classes and shapes of every one that this agent comes to have."""
        blank = self.init(key)
        scale = ensemble.scaling(blank.buffer.padded(1))
        return blank._replace(scaling=scale, good=(blank.model, scale), origin=np.zeros(self.obs_dim))

    def begin(self, state: PetsState) -> Carried:
        return Carried(everywhere(jnp.zeros((self.settings.cem.horizon, self.action_dim))))

    def act(self, state: PetsState, carry: Carried, obs: Any, key: Key) -> tuple[Any, Carried, Metrics]:
        """The first action of the best plan within the limit."""
        if state.scaling is None:
            return np.asarray(uniform(key, self.action_dim)), carry, {}
        limit = self.rule.allowed(self.spec.limit / self.spec.scale, carry.purse.left(self.spec))
        given = *(obs - state.origin), state.rule.kappa, limit
        with np.errstate(over="ignore"):  # what is too large for float32 is infinite, and its plan not finite
            told = np.asarray(given, np.float32)
        _, acting = planning(self.settings, self.obs_dim, self.action_dim)

        def planned(params: Any) -> Any:
            return lambda: acting(key, self._ready(*params), told, carry.warm)

        good = None if state.good is None else planned(state.good)
        plans = planned((state.model, state.scaling)), good
        last = carry.warm
        action, warm, said = first_finite(plans, lambda: (np.asarray(last[0]), shifted(last)), self.action_dim)
        return action, carry._replace(warm=warm), {**said, "plan_limit": limit}

    def paid(self, carry: Carried, cost: float) -> Carried:
        """With what the last step cost."""
        return carry._replace(purse=carry.purse.after(self.spec, cost))

    def learn(self, state: PetsState, episodes: Sequence[Episode], key: Key) -> tuple[PetsState, Metrics]:
        """Remember what is new, and fit once enough of it has come."""
        buffer, waiting, origin = state.buffer, state.waiting, state.origin
        if episodes and buffer.size == 0:
            origin = np.concatenate([episode.obs for episode in episodes]).mean(0, dtype=np.float64)
        for episode in episodes:
            near = episode._replace(obs=episode.obs - origin, next_obs=episode.next_obs - origin)
            buffer, waiting = buffer.add(near, self.settings.buffer), waiting + len(episode.reward)
        every = min(self.settings.fit_every, self.spec.episode_steps or self.settings.fit_every)
        state = state._replace(buffer=buffer, waiting=waiting, origin=origin)
        if state.scaling is not None and waiting < every:
            return state, {}
        scale = ensemble.scaling(buffer)
        if state.scaling is not None and bool(state.scaling.binary) != bool(scale.binary):
            state = state._replace(rule=self.rule.init())  # logits became costs: what it remembers has other units
        model, optimiser, loss = ensemble.fit(
            state.model,
            state.optimiser,
            scale,
            self._transitions.follow(buffer, capacity_for(buffer.size, self.capacity)),
            buffer.size,
            key,
            settings=self.settings.ensemble,
        )
        if not (np.isfinite(loss) and all_finite(model)):
            trouble = state.trouble.bad_fit(self.settings.ensemble.learning_rate)
            return state._replace(waiting=0, trouble=trouble), {"bad_fits": trouble.fits}
        rule = state.rule
        if bool(scale.binary):
            rule = self.rule.fitted(
                rule, margins(*ensemble.judged((model, scale), buffer, key, self.settings.ensemble))
            )
        good = None if state.scaling is None else (state.model, state.scaling)
        trouble = state.trouble._replace(fits=0)
        fitted = dict(rule=rule, model=model, optimiser=optimiser, scaling=scale, waiting=0, good=good, trouble=trouble)
        return state._replace(**fitted), {"model_loss": float(loss)}

    def adapt(self, state: PetsState, episode: Episode) -> tuple[PetsState, Metrics]:
        """Let what was paid, beside what was planned, move κ."""
        trouble = state.trouble.after(episode)
        learned, told = self.feedback(state, episode)
        rule = self.rule.update(state.rule, learned)
        used = {"kappa": float(state.rule.kappa), **self.rule.report(state.rule)}
        return state._replace(rule=rule, trouble=trouble), {**used, **told, "kappa_next": float(rule.kappa)}

    def feedback(self, state: PetsState, episode: Episode) -> tuple[Feedback, Metrics]:
        """What the rule learns from an episode."""
        return feedback(self.spec, state.scaling is not None and bool(state.scaling.binary), episode)


def capacity_for(count: int, capacity: int) -> int:
    """The size that `count` rows are padded to: the run's own, doubled where a run is longer than it was meant to be."""
    while capacity < count:
        capacity *= 2
    return capacity
