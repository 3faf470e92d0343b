"""CAP for finite MDPs: counts, the penalty κ/√n, and the exact optimum under the limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from capax.kappa import Feedback, Rule
from capax.tabular.cmdp import CMDP, penalised, trusted
from capax.tabular.counts import CountModel
from capax.tabular.lp import Solution, solve
from capax.tabular.sampler import action_uniform, draw, thresholds
from capax.types import Episode, Key, Metrics, Spec


class Known(NamedTuple):
    """What an agent is told of its world: everything but the transitions."""

    r: Float[Array, "S A"]
    c: Float[Array, "S A"]
    mu0: Float[Array, " S"]
    prior: Any
    """Pseudo-counts over the transitions that it deems possible."""

    def model(self) -> CountModel:
        """A model without data."""
        return CountModel.init(self.prior, self.r.shape[1])

    def cmdp(self, gamma: float) -> CMDP:
        """The world as it looks without data."""
        return CMDP(self.model().P, self.r, self.c, self.mu0, gamma)


class TabularState(NamedTuple):
    """What CAP remembers: the counts, its last plan, and its rule's state."""

    model: CountModel
    policy: Float[Array, "S A"]
    plan: Solution | None
    rule: Any


@dataclass(frozen=True)
class TabularCAP:
    """CAP by linear programming (Algorithm 1 with Eq. 5)."""

    known: Known
    spec: Spec
    rule: Rule

    @cached_property
    def blank(self) -> CMDP:
        return self.known.cmdp(self.spec.gamma)

    def init(self, key: Key) -> TabularState:
        return TabularState(self.known.model(), uniform_policy(self.known.r.shape), None, self.rule.init())

    def begin(self, state: TabularState) -> Float[Array, "S A"]:
        return state.policy

    def act(self, state: TabularState, carry: Any, obs: Any, key: Key) -> tuple[Any, Any, Metrics]:
        return sample_action(carry[obs], key), carry, {}

    def learn(self, state: TabularState, episodes: Sequence[Episode], key: Key) -> tuple[TabularState, Metrics]:
        """Count, then solve Eq. 5 with c + κ/√max(n, 1); the rule says how far κ gives way if nothing is feasible."""
        model = fit(state.model, episodes)
        cmdp = trusted(self.blank, P=model.P)
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
        if episode.random:  # data, not a policy of the agent
            return state, {}
        return state._replace(rule=self.rule.update(state.rule, Feedback(episode.paid, self.spec.limit))), {}


def uniform_policy(shape: tuple[int, ...]) -> Float[Array, "S A"]:
    """Every action alike."""
    return np.full(shape, 1.0 / shape[1])


def fit(model: CountModel, episodes: Sequence[Episode]) -> CountModel:
    """The model with the transitions of these episodes added."""
    for episode in episodes:
        model = model.fit(episode.obs, episode.action, episode.next_obs)
    return model


def sample_action(probabilities: Float[Array, " A"], key: Key) -> np.int64:
    """An action drawn as the compiled sampler draws it."""
    return draw(thresholds(probabilities), float(action_uniform(key)))
