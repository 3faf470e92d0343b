"""Policy-gradient methods under Algorithm 1's loop: what PPO, PPO-Lagrangian and FOCOPS share.

Whole episodes are collected with one policy until there are `batch` steps. Then advantages of reward and cost are
estimated, and some epochs of minibatches improve the policy and the two values. A method is its surrogate: what is made small,
sample by sample. The multiplier of the cost (λ, ν) is moved by a rule, like κ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jax import Array
from jaxtyping import Float, Int

from capax.agents.adapting import all_finite
from capax.agents.advantage import advantages
from capax.agents.ready import Ready
from capax.checks import above_0, between, settle, whole
from capax.errors import TrainingFailed
from capax.kappa import Feedback, Rule
from capax.lanes import shared
from capax.models import actor
from capax.models.actor import Actor, Normal
from capax.types import Episode, Key, Metrics, Spec

FAR = 10.0
"""Deviations beyond which an observation is cut."""


@dataclass(frozen=True)
class OnPolicySettings:
    """Sizes and training; the defaults are the paper's."""

    hidden: int = 64
    """Units of each of two layers."""
    batch: int = 2048
    """Steps at least, in whole episodes, between two improvements."""
    minibatch: int = 64
    epochs: int = 10
    """Passes over a batch."""
    learning_rate: float = 3e-4
    """Of Adam."""
    gamma: float = 0.99
    """Discount of rewards and costs."""
    lam: float = 0.95
    """λ of the advantages."""
    clip: float = 0.2
    """How far from 1 a ratio of probabilities still counts (PPO)."""
    temperature: float = 1.5
    """λ of FOCOPS: how much the surrogate counts beside the divergence is 1/λ."""
    trust: float = 0.02
    """δ of FOCOPS: the divergence beyond which a sample no longer counts."""
    decay: float = 0.0
    """Weight of the values' squared parameters in the loss."""
    farthest: float = 1e9
    """The mean divergence of an epoch after which a batch is left."""
    gradient: float = 0.5
    """Largest norm of a gradient."""

    def __post_init__(self) -> None:
        settle(self, whole, "hidden", "batch", "minibatch", "epochs")
        settle(self, above_0(1e9), "learning_rate", "clip", "temperature", "trust", "farthest", "gradient")
        settle(self, above_0(0.999999), "gamma")
        settle(self, between(0.0, 1.0), "lam")
        settle(self, between(0.0, 1e9), "decay")


class Moments(NamedTuple):
    """Of the observations so far."""

    number: float
    mean: Any
    square: Any
    """Σ (x − mean)²."""

    def seen(self, obs: Any) -> Moments:
        """With more of them (Chan's update)."""
        n, mean = len(obs), obs.mean(0, dtype=np.float64)
        number, apart = self.number + n, mean - self.mean
        square = self.square + np.square(obs - mean).sum(0) + np.square(apart) * self.number * n / number
        return Moments(number, self.mean + apart * n / number, square)

    def normal(self, obs: Any) -> Any:
        """In deviations from the mean."""
        sd = np.sqrt(self.square / self.number) + 1e-8 if self.number else 1.0
        return np.clip((obs - self.mean) / sd, -FAR, FAR).astype(np.float32)


class OnPolicyState(NamedTuple):
    """What the agent remembers from episode to episode."""

    model: Actor
    optimiser: Any
    moments: Moments
    rule: Any
    """Of the multiplier, which is its `kappa`."""
    improved: int = 0


class Sample(NamedTuple):
    """What a surrogate is told of each of B steps."""

    ratio: Float[Array, " B"]
    """π_new(a|s) / π_old(a|s)."""
    kl: Float[Array, " B"]
    """KL(π_new ‖ π_old) at s."""
    advantage: Float[Array, " B"]
    """Of the reward, normalised over the batch."""
    cost_advantage: Float[Array, " B"]
    """Of the cost, likewise."""
    multiplier: Float[Array, ""]


Surrogate = Callable[[Sample, OnPolicySettings], Float[Array, " B"]]


class Batch(NamedTuple):
    """What an improvement is made from, padded."""

    x: Any
    """Normalised observations `[N, S]`."""
    action: Any
    """`[N, A]`."""
    old: Any
    """Means of the policy that acted, `[N, A]`."""
    old_log_sd: Any
    """`[A]`."""
    advantage: Any
    """`[N]`."""
    cost_advantage: Any
    target: Any
    """What the value should have been, `[N]`."""
    cost_target: Any


class Acting(NamedTuple):
    """A policy on the host, where an action takes a tenth of what a compiled call does."""

    layers: tuple[tuple[Any, Any], ...]
    sd: Any

    @classmethod
    def of(cls, net: Actor) -> Acting:
        layers = tuple((np.asarray(layer.w), np.asarray(layer.b)) for layer in net.policy)
        return cls(layers, np.exp(np.asarray(net.log_sd)))

    def __call__(self, x: Any, rng: np.random.Generator) -> Any:
        """Drawn at normalised observations."""
        *hidden, (w, b) = self.layers
        for w_hidden, b_hidden in hidden:
            x = np.tanh(x @ w_hidden + b_hidden)
        mean = x @ w + b
        return mean + self.sd * rng.standard_normal(mean.shape, np.float32)


@shared
@jax.jit
def judged(net: Actor, x: Float[Array, "N S"], following: Float[Array, "N S"]) -> Any:
    """Means of the policy, and both values here and one step later."""
    return actor.policy(net, x).mean, actor.values(net, x), actor.values(net, following)


@shared
@partial(jax.jit, static_argnames=("settings", "surrogate"))
def improve(
    net: Actor,
    memory: Any,
    batch: Batch,
    order: Int[Array, "M B"],
    count: Int[Array, ""],
    epoch: Int[Array, ""],
    multiplier: Float[Array, ""],
    *,
    settings: OnPolicySettings,
    surrogate: Surrogate,
) -> tuple[Actor, Any, Metrics]:
    """The first `count` minibatches of `order`, `epoch` of them in each epoch, a gradient step each."""

    def loss(net: Actor, rows: Batch) -> tuple[Any, Any]:
        old, new = Normal(rows.old, batch.old_log_sd), actor.policy(net, rows.x)
        ratio, kl = jnp.exp(new.log_prob(rows.action) - old.log_prob(rows.action)), new.kl(old)
        sample = Sample(ratio, kl, rows.advantage, rows.cost_advantage, multiplier)
        value, cost_value = actor.values(net, rows.x)
        errors = jnp.square(value - rows.target).mean() + jnp.square(cost_value - rows.cost_target).mean()
        size = sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves((net.value, net.cost_value)))
        policy = surrogate(sample, settings).mean()
        return policy + 0.5 * errors + settings.decay * size, (policy, errors, kl.mean())

    def more(carry: Any) -> Any:
        """Up to the last one, or to the end of an epoch that went too far."""
        number, far = carry[0], carry[-1]
        return (number < count) & ((number % epoch != 0) | (far <= settings.farthest * epoch))

    def one(carry: Any) -> Any:
        number, net, memory, _, far = carry
        at = order[number]
        rows = Batch(
            *(part if name == "old_log_sd" else part[at] for name, part in zip(Batch._fields, batch, strict=True))
        )
        grads, told = jax.grad(loss, has_aux=True)(net, rows)
        steps, memory = optimiser(settings).update(grads, memory)
        far = jnp.where(number % epoch == 0, 0.0, far) + told[-1]
        return number + 1, optax.apply_updates(net, steps), memory, told, far

    begin = (jnp.zeros((), jnp.int32), net, memory, (jnp.zeros(()),) * 3, jnp.zeros(()))
    number, net, memory, told, _ = jax.lax.while_loop(more, one, begin)
    return net, memory, {**dict(zip(("policy_loss", "value_loss", "kl"), told, strict=True)), "gradient_steps": number}


def optimiser(settings: OnPolicySettings) -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(settings.gradient), optax.adam(settings.learning_rate, eps=1e-5))


@dataclass(frozen=True)
class OnPolicy:
    """A method is its surrogate and the rule of its multiplier."""

    spec: Spec
    rule: Rule
    obs_dim: int
    action_dim: int
    settings: OnPolicySettings
    surrogate: Surrogate

    @cached_property
    def _acting(self) -> Ready:
        return Ready(Acting.of)

    @property
    def wants(self) -> int:
        """Steps that it waits for before it learns."""
        return self.settings.batch

    def init(self, key: Key) -> OnPolicyState:
        net = actor.init(key, self.obs_dim, self.action_dim, self.settings.hidden)
        moments = Moments(0.0, np.zeros(self.obs_dim), np.zeros(self.obs_dim))
        return OnPolicyState(net, optimiser(self.settings).init(net), moments, self.rule.init())

    def like(self, key: Key) -> OnPolicyState:
        """A state with the classes and shapes of every one that this agent comes to have."""
        return self.init(key)

    def begin(self, state: OnPolicyState) -> None:
        return None

    def act(self, state: OnPolicyState, carry: Any, obs: Any, key: Key) -> tuple[Any, Any, Metrics]:
        """Drawn from the policy; the environment cuts what is beyond its range.

        An episode has a generator of its own, which its first key decides.
        """
        rng = np.random.default_rng(np.asarray(jr.key_data(key))) if carry is None else carry
        return self._acting(state.model)(state.moments.normal(obs), rng), rng, {}

    def learn(self, state: OnPolicyState, episodes: Sequence[Episode], key: Key) -> tuple[OnPolicyState, Metrics]:
        """Improve the policy with what it did."""
        if not episodes:
            return state, {}
        settings, count = self.settings, sum(len(episode.reward) for episode in episodes)
        batch = self.batch(state, episodes)
        minibatch = min(settings.minibatch, count)
        rng = np.random.default_rng(np.asarray(jr.key_data(key)))
        shuffled = [rng.permutation(count)[: count // minibatch * minibatch] for _ in range(settings.epochs)]
        order = np.concatenate(shuffled).reshape(-1, minibatch).astype(np.int32)
        steps, padded = len(order), padded_to(len(order))
        order = np.pad(order, ((0, padded - steps), (0, 0)))
        model, memory, told = improve(
            state.model, state.optimiser, batch, order, np.int32(steps), np.int32(steps // settings.epochs),
            np.float32(state.rule.kappa),
            settings=settings, surrogate=self.surrogate,
        )  # fmt: skip
        if not all_finite(model):
            raise TrainingFailed(
                "the policy is not finite any more: lower learning_rate, or see whether rewards are huge."
            )
        obs = np.concatenate([episode.obs for episode in episodes])
        state = state._replace(
            model=model, optimiser=memory, moments=state.moments.seen(obs), improved=state.improved + 1
        )
        return state, {name: float(value) for name, value in told.items()}

    def batch(self, state: OnPolicyState, episodes: Sequence[Episode]) -> Batch:
        """Advantages and targets of whole episodes, normalised over all of them, and padded with what is there."""
        settings, here = self.settings, state.moments.normal
        x, following = (here(np.concatenate([getattr(e, name) for e in episodes])) for name in ("obs", "next_obs"))
        count = len(x)
        rows = np.arange(padded_to(count)) % count
        mean, now, later = jax.device_get(judged(state.model, x[rows], following[rows]))
        ends = np.cumsum([len(episode.reward) for episode in episodes])[:-1]
        told = []
        for signal, value, after in zip(("reward", "cost"), now, later, strict=True):
            pieces = zip(episodes, np.split(value[:count], ends), np.split(after[:count], ends), strict=True)
            told.append(np.concatenate([
                advantages(getattr(e, signal), v, w, e.terminated, settings.gamma, settings.lam) for e, v, w in pieces
            ]))  # fmt: skip
        targets = [advantage + value[:count] for advantage, value in zip(told, now, strict=True)]
        scaled = [(advantage - advantage.mean()) / (advantage.std() + 1e-8) for advantage in told]
        action = np.concatenate([episode.action for episode in episodes])
        columns = (x, action, mean[:count], *scaled, *targets)
        x, action, mean, *rest = (np.asarray(column, np.float32)[rows] for column in columns)
        return Batch(x, action, mean, np.asarray(state.model.log_sd), *rest)

    def adapt(self, state: OnPolicyState, episode: Episode) -> tuple[OnPolicyState, Metrics]:
        """Let what was paid move the multiplier."""
        rule = self.rule.update(state.rule, Feedback(episode.paid, self.spec.limit))
        used = {"multiplier": float(state.rule.kappa), **self.rule.report(state.rule)}
        return state._replace(rule=rule), used


def padded_to(count: int) -> int:
    """The next power of two: batches of whole episodes differ in length, and each length is compiled once."""
    return 1 << (count - 1).bit_length()
