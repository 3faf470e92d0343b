"""The agent of policy-gradient methods: PPO, PPO-Lagrangian and FOCOPS.

It collects whole episodes with one policy until there are `batch` steps. Then it estimates the advantages of reward and cost,
and improves the policy and the two values in some epochs of minibatches. Methods differ in their surrogate, the loss of a
sample, and in the rule that moves the cost's multiplier (λ, ν), as a rule moves κ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax.random as jr
import numpy as np

from capax.agents.planned_common import all_finite
from capax.agents.policy_gradient.acting import DevicePolicy, HostPolicy
from capax.agents.policy_gradient.batch import prepare_batch
from capax.agents.policy_gradient.improve import improve, make_optimiser, minibatch_order
from capax.agents.policy_gradient.observations import ImageObservations, Moments, Observations, VectorObservations
from capax.agents.policy_gradient.settings import PolicyGradientSettings
from capax.agents.policy_gradient.surrogate import Surrogate
from capax.agents.recent_cache import RecentCache
from capax.core.contracts import Agent, Rule
from capax.core.errors import TrainingFailed
from capax.core.types import Episode, Feedback, Key, Metrics, Spec
from capax.models import actor_critic
from capax.models.actor_critic import ActorCritic

MAX_EPISODES_AT_ONCE = 16
"""Most episodes that are played side by side."""


class PolicyGradientState(NamedTuple):
    """State of the agent between episodes."""

    model: ActorCritic
    optimiser: Any
    moments: Moments
    """Of the observations that the agent has learned from."""
    rule: Any
    """State of the multiplier's rule; its `kappa` is the multiplier."""
    improvements: int = 0
    """Number of improvements so far."""


@dataclass(frozen=True)
class PolicyGradient(Agent[PolicyGradientState]):
    """A policy-gradient method: a surrogate, and a rule for the multiplier of the cost."""

    spec: Spec
    rule: Rule
    observations: Observations
    action_dim: int
    settings: PolicyGradientSettings
    surrogate: Surrogate

    @property
    def image(self) -> tuple[int, int, int] | None:
        """Shape of an observation that is an image; None if observations are vectors."""
        return self.observations.shape if isinstance(self.observations, ImageObservations) else None

    @property
    def obs_dim(self) -> int:
        """Size of an observation that is a vector; 0 if observations are images."""
        return self.observations.size if isinstance(self.observations, VectorObservations) else 0

    @property
    def steps_before_learning(self) -> int:
        """Steps of a batch."""
        return self.settings.batch

    @property
    def episodes_at_once(self) -> int:
        """Episodes that make up a batch, MAX_EPISODES_AT_ONCE at most."""
        return min(MAX_EPISODES_AT_ONCE, -(-self.settings.batch // (self.spec.episode_steps or self.settings.batch)))

    @cached_property
    def _acting_policy(self) -> RecentCache:
        return RecentCache((HostPolicy if self.image is None else DevicePolicy).from_network)

    def init(self, key: Key) -> PolicyGradientState:
        net = actor_critic.init(key, self.image or self.obs_dim, self.action_dim, self.settings.hidden)
        optimiser = make_optimiser(self.settings).init(net)
        return PolicyGradientState(net, optimiser, self.observations.initial_moments(), self.rule.init())

    def can_act(self, state: PolicyGradientState) -> bool:
        """Whether the policy was improved at least once."""
        return state.improvements > 0

    def begin(self, state: PolicyGradientState) -> tuple[()]:
        return ()

    def act(self, state: PolicyGradientState, carry: Any, obs: Any, key: Key) -> tuple[Any, Any, Metrics]:
        """An action in one episode."""
        (action,), (carry,) = self.act_together(state, [carry], [obs], [key])
        return action, carry, {}

    def act_together(
        self, state: PolicyGradientState, carries: Sequence[Any], obs: Sequence[Any], keys: Sequence[Key]
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Actions sampled from the policy in several episodes. The environment clips them to its range.

        A carry holds an episode's random generator, seeded by its first key, and the last input of the network.
        """
        policy = self._acting_policy(state.model)
        next_carries = []
        for carry, observation, key in zip(carries, obs, keys, strict=True):
            rng, previous = carry or (np.random.default_rng(np.asarray(jr.key_data(key))), None)
            next_carries.append((rng, self.observations.network_input(state.moments, previous, observation)))
        mean = policy.mean(np.stack([x for _, x in next_carries]))
        noise = np.stack([rng.standard_normal(self.action_dim, np.float32) for rng, _ in next_carries])
        return mean + policy.sd * noise, next_carries

    def learn(
        self, state: PolicyGradientState, episodes: Sequence[Episode], key: Key
    ) -> tuple[PolicyGradientState, Metrics]:
        """Improve the policy with the episodes that it has played."""
        if not episodes:
            return state, {}
        settings, count = self.settings, sum(len(episode.reward) for episode in episodes)
        batch = prepare_batch(
            state.model, self.observations, state.moments, episodes, gamma=settings.gamma, lam=settings.lam
        )
        order, steps = minibatch_order(key, count, settings)
        model, optimiser, metrics = improve(
            state.model, state.optimiser, batch, order, np.int32(steps), np.int32(steps // settings.epochs),
            np.float32(state.rule.kappa),
            settings=settings, surrogate=self.surrogate,
        )  # fmt: skip
        if not all_finite(model):
            raise TrainingFailed("the policy is no longer finite: lower learning_rate, or check for huge rewards.")
        moments = self.observations.updated_moments(state.moments, episodes)
        state = state._replace(model=model, optimiser=optimiser, moments=moments, improvements=state.improvements + 1)
        return state, {name: float(value) for name, value in metrics.items()}

    def adapt(self, state: PolicyGradientState, episode: Episode) -> tuple[PolicyGradientState, Metrics]:
        """Let the true cost of an episode move the multiplier. The metrics are those before the move."""
        rule = self.rule.update(state.rule, Feedback(episode.paid, self.spec.limit))
        metrics = {"multiplier": float(state.rule.kappa), **self.rule.report(state.rule)}
        return state._replace(rule=rule), metrics
