"""CAP for finite MDPs: counts, the penalty κ/√n, and the exact optimum under the limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from capax.core.contracts import Agent, PlanningRule
from capax.core.types import Episode, Feedback, Key, Metrics, Spec
from capax.tabular.cmdp import CMDP, penalised, replace_unchecked
from capax.tabular.counts import CountModel
from capax.tabular.sampler import action_uniform, draw_outcome, thresholds
from capax.tabular.solvers import Solution, solve


class KnownWorld(NamedTuple):
    """The part of a world that an agent knows before any data: all but the transitions."""

    r: Float[Array, "S A"]
    c: Float[Array, "S A"]
    mu0: Float[Array, " S"]
    prior: Any
    """Pseudo-counts of the possible transitions."""

    def model(self) -> CountModel:
        """A model without data."""
        return CountModel.init(self.prior, self.r.shape[1])

    def cmdp(self, gamma: float) -> CMDP:
        """The world according to the model without data."""
        return CMDP(self.model().P, self.r, self.c, self.mu0, gamma)

    def blank_solution(self) -> Solution:
        """A solution of the right shapes, as an example for checkpoints."""
        return Solution(np.zeros(self.r.shape), np.zeros(self.r.shape), 0.0, 0.0, 0.0, "optimal")


class TabularState(NamedTuple):
    """State of the agent: the counts, its last plan, and its rule's state."""

    model: CountModel
    policy: Float[Array, "S A"]
    plan: Solution | None
    rule: Any


@dataclass(frozen=True)
class TabularCAP(Agent[TabularState]):
    """CAP by linear programming (Algorithm 1 with Eq. 5)."""

    world: KnownWorld
    spec: Spec
    rule: PlanningRule

    @cached_property
    def prior_cmdp(self) -> CMDP:
        """The world without data."""
        return self.world.cmdp(self.spec.gamma)

    def init(self, key: Key) -> TabularState:
        return TabularState(self.world.model(), uniform_policy(self.world.r.shape), None, self.rule.init())

    def example(self, initial: TabularState) -> TabularState:
        return initial._replace(plan=self.world.blank_solution())

    def begin(self, state: TabularState) -> Float[Array, "S A"]:
        return state.policy

    def act(self, state: TabularState, carry: Any, obs: Any, key: Key) -> tuple[Any, Any, Metrics]:
        return sample_action(carry[obs], key), carry, {}

    def learn(self, state: TabularState, episodes: Sequence[Episode], key: Key) -> tuple[TabularState, Metrics]:
        """Count, then solve Eq. 5 with c + κ/√max(n, 1). While no policy is feasible, the rule relaxes κ."""
        model = add_counts(state.model, episodes)
        cmdp = replace_unchecked(self.prior_cmdp, P=model.P)
        u = 1.0 / np.sqrt(np.maximum(model.n, 1.0))
        rule, plan = state.rule, state.plan
        while True:
            plan = solve(penalised(cmdp, rule.kappa * u), self.spec.limit, warm=plan)
            relaxed = self.rule.relax(rule) if plan.status == "infeasible" else None
            if relaxed is None:
                break
            rule = relaxed
        metrics = {"kappa": rule.kappa, "planned_cost": plan.cost, "feasible": plan.status == "optimal"}
        return TabularState(model, plan.policy, plan, rule), metrics

    def adapt(self, state: TabularState, episode: Episode) -> tuple[TabularState, Metrics]:
        if episode.random:  # not a policy of the agent
            return state, {}
        return state._replace(
            rule=self.rule.update(state.rule, Feedback(episode.paid, self.spec.limit, exact=True))
        ), {}


def uniform_policy(shape: tuple[int, ...]) -> Float[Array, "S A"]:
    """The policy that chooses every action with the same probability."""
    return np.full(shape, 1.0 / shape[1])


def add_counts(model: CountModel, episodes: Sequence[Episode]) -> CountModel:
    """The model with the transitions of these episodes added."""
    for episode in episodes:
        model = model.fit(episode.obs, episode.action, episode.next_obs)
    return model


def sample_action(probabilities: Float[Array, " A"], key: Key) -> np.int64:
    """A random action, the same one that the compiled sampler draws with this key."""
    return draw_outcome(thresholds(probabilities), float(action_uniform(key)))
