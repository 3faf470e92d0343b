"""CAP with a calibrated margin: a policy is played only if its predicted cost and z standard errors keep the limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from jaxtyping import Float, Int
from numpy import ndarray as Array

from capax.agents.tabular import KnownWorld, add_counts, sample_action, uniform_policy
from capax.core.contracts import Agent
from capax.core.types import AnyNumber, Episode, Key, Metrics, Spec
from capax.tabular.cmdp import CMDP, replace_unchecked
from capax.tabular.counts import CountModel, pooled_prior
from capax.tabular.margin import best_policy_within, estimate_cost, exploration_bonus, fit_posterior, safest_policy
from capax.tabular.solvers import Solution, solve


class CalibratedState(NamedTuple):
    """State of the agent."""

    model: CountModel
    policy: Float[Array, "S A"]
    warm: Solution | None
    executed: tuple[tuple[Array, float], ...]
    """The last policies that were executed, with their true costs; at most `memory` of them."""
    number: int
    """Policies executed so far."""


@dataclass(frozen=True)
class Calibrated(Agent[CalibratedState]):
    """Best return among the policies whose upper cost value Ĵ_c + zσ keeps the limit (see `tabular.margin`)."""

    world: KnownWorld
    spec: Spec
    successors: Int[Array, "S K"] | None = None
    """The cell that each direction leads to. With it, the prior takes its shape from the outcomes of actions elsewhere."""
    z_first: float = 10.0
    """Standard errors of margin at the first policy, when the model is least reliable."""
    z_last: float = 4.0
    """Standard errors of margin from policy `z_fall` on."""
    z_fall: int = 20
    """Policies over which z falls, linearly."""
    z_none: float = 1.0
    """Standard errors in the upper value that is minimised if no policy keeps the limit with z."""
    explore: float = 0.4
    """Weight of the exploration bonus at the first policy."""
    explore_fall: int = 30
    """Policies over which the bonus falls to 0, linearly."""
    memory: int = 32
    """Last policies whose true costs correct the prediction. With all of them, an episode would take longer the more there
    were before it. The paper's experiment executes 31."""

    @cached_property
    def prior_cmdp(self) -> CMDP:
        """The world without data."""
        return self.world.cmdp(self.spec.gamma)

    def init(self, key: Key) -> CalibratedState:
        return CalibratedState(self.world.model(), uniform_policy(self.world.r.shape), None, (), 0)

    def example(self, initial: CalibratedState) -> CalibratedState:
        executed: Any = AnyNumber((initial.policy, 0.0))
        return initial._replace(warm=self.world.blank_solution(), executed=executed)

    def begin(self, state: CalibratedState) -> Float[Array, "S A"]:
        return state.policy

    def act(self, state: CalibratedState, carry: Any, obs: Any, key: Key) -> tuple[Any, Any, Metrics]:
        return sample_action(carry[obs], key), carry, {}

    def learn(self, state: CalibratedState, episodes: Sequence[Episode], key: Key) -> tuple[CalibratedState, Metrics]:
        """Count, correct the prediction by the paid costs, then search the best policy within the margin."""
        world, number = self.world, state.number
        model = add_counts(state.model, episodes)
        if self.successors is not None:
            model = model._replace(prior=pooled_prior(model, self.successors))
        cmdp = replace_unchecked(self.prior_cmdp, P=model.P)
        posterior = fit_posterior(cmdp, model.n, state.executed)
        z = self.z_first + (self.z_last - self.z_first) * min(1.0, number / self.z_fall)
        cheapest = solve(cmdp, -math.inf).policy
        starts = [
            estimate_cost(posterior, policy, z) for policy in ([state.policy] if state.executed else []) + [cheapest]
        ]
        if min(start.upper for start in starts) > self.spec.limit:
            starts.append(safest_policy(posterior, z))
        gain, explore = world.r, self.explore * max(0.0, 1.0 - number / self.explore_fall)
        if explore > 0.0:
            multiplier = state.warm.multiplier if state.warm is not None and state.warm.status == "optimal" else 0.0
            gain = gain + explore * exploration_bonus(
                posterior, state.warm.policy if state.warm else cheapest, multiplier
            )
        best, warm = best_policy_within(posterior, gain, self.spec.limit, z, starts, state.warm)
        chosen = safest_policy(posterior, self.z_none) if best is None else best
        metrics = {"kappa": z, "planned_cost": chosen.cost, "planned_sd": chosen.sd, "feasible": best is not None}
        return CalibratedState(model, chosen.policy, warm, state.executed, number), metrics

    def adapt(self, state: CalibratedState, episode: Episode) -> tuple[CalibratedState, Metrics]:
        if episode.random:
            return state, {}
        executed = (*state.executed, (state.policy, episode.paid))[-self.memory :]
        return state._replace(executed=executed, number=state.number + 1), {}
