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
from capax.agents.sight import Images, Moments, Vectors
from capax.checks import above_0, between, settle, whole
from capax.errors import TrainingFailed
from capax.kappa import Feedback, Rule
from capax.lanes import shared
from capax.models import actor
from capax.models.actor import Actor, Normal
from capax.types import Episode, Key, Metrics, Spec

MOST = 16
"""Episodes at most that are played side by side."""
PIECE = 256
"""Observations that are judged at once: more images would not fit where a batch is large."""


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

    rows: Any
    """Observations that `here` counts, as a policy sees them."""
    here: Any
    """`[N]`, or `[N, SEEN]` of images."""
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
    """A policy of vectors on the host, where an action takes a tenth of what a compiled call does."""

    layers: tuple[tuple[Any, Any], ...]
    sd: Any

    @classmethod
    def of(cls, net: Actor) -> Acting:
        layers = tuple((np.asarray(layer.w), np.asarray(layer.b)) for layer in net.policy)
        return cls(layers, np.exp(np.asarray(net.log_sd)))

    def mean(self, x: Any) -> Any:
        """At normalised observations `[N, S]`."""
        *hidden, (w, b) = self.layers
        for w_hidden, b_hidden in hidden:
            x = np.tanh(x @ w_hidden + b_hidden)
        return x @ w + b


class Watching(NamedTuple):
    """A policy of images, on the device."""

    net: Actor
    sd: Any

    @classmethod
    def of(cls, net: Actor) -> Watching:
        return cls(net, np.exp(np.asarray(net.log_sd)))

    def mean(self, x: Any) -> Any:
        return np.asarray(watched(self.net, x))


@shared
@jax.jit
def watched(net: Actor, x: Any) -> Float[Array, "N A"]:
    """Means of the policy."""
    return actor.seen(net, x)[0].mean


@shared
@jax.jit
def judged(net: Actor, rows: Any, here: Any, following: Any) -> Any:
    """Means of the policy, and both values here and one step later."""

    def piece(at: Any) -> Any:
        policy, now = actor.seen(net, rows[at[0]])
        return policy.mean, now, actor.seen(net, rows[at[1]])[1]

    size = min(PIECE, len(here))
    cut = [part.reshape(-1, size, *part.shape[1:]) for part in (here, following)]
    return jax.tree.map(lambda part: part.reshape(-1, *part.shape[2:]), jax.lax.map(piece, tuple(cut)))


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
        new, (value, cost_value) = actor.seen(net, batch.rows[rows.here])
        old = Normal(rows.old, batch.old_log_sd)
        ratio, kl = jnp.exp(new.log_prob(rows.action) - old.log_prob(rows.action)), new.kl(old)
        sample = Sample(ratio, kl, rows.advantage, rows.cost_advantage, multiplier)
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
            *(
                part if name in ("rows", "old_log_sd") else part[at]
                for name, part in zip(Batch._fields, batch, strict=True)
            )
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
    sight: Vectors | Images
    action_dim: int
    settings: OnPolicySettings
    surrogate: Surrogate

    @property
    def image(self) -> tuple[int, int, int] | None:
        """Of what it sees; None if these are vectors."""
        return self.sight.shape if isinstance(self.sight, Images) else None

    @property
    def obs_dim(self) -> int:
        """Numbers of an observation; 0 if it is an image."""
        return self.sight.size if isinstance(self.sight, Vectors) else 0

    @cached_property
    def _acting(self) -> Ready:
        return Ready((Acting if self.image is None else Watching).of)

    @property
    def wants(self) -> int:
        """Steps that it waits for before it learns."""
        return self.settings.batch

    @property
    def together(self) -> int:
        """Episodes that are played side by side with one policy: those that make up a batch."""
        return min(MOST, -(-self.settings.batch // (self.spec.episode_steps or self.settings.batch)))

    def init(self, key: Key) -> OnPolicyState:
        net = actor.init(key, self.image or self.obs_dim, self.action_dim, self.settings.hidden)
        return OnPolicyState(net, optimiser(self.settings).init(net), self.sight.begin(), self.rule.init())

    def like(self, key: Key) -> OnPolicyState:
        """A state with the classes and shapes of every one that this agent comes to have."""
        return self.init(key)

    def begin(self, state: OnPolicyState) -> tuple[()]:
        return ()

    def act(self, state: OnPolicyState, carry: Any, obs: Any, key: Key) -> tuple[Any, Any, Metrics]:
        """In one episode."""
        (action,), (carry,) = self.act_all(state, [carry], [obs], [key])
        return action, carry, {}

    def act_all(
        self, state: OnPolicyState, carries: Sequence[Any], obs: Sequence[Any], keys: Sequence[Key]
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """In several: drawn from the policy; the environment cuts what is beyond its range.

        An episode has a generator of its own, which its first key decides.
        """
        policy = self._acting(state.model)
        following = []
        for carry, image, key in zip(carries, obs, keys, strict=True):
            rng, before = carry or (np.random.default_rng(np.asarray(jr.key_data(key))), None)
            following.append((rng, self.sight.look(state.moments, before, image)))
        mean = policy.mean(np.stack([x for _, x in following]))
        noise = np.stack([rng.standard_normal(self.action_dim, np.float32) for rng, _ in following])
        return mean + policy.sd * noise, following

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
        moments = self.sight.learned(state.moments, episodes)
        state = state._replace(model=model, optimiser=memory, moments=moments, improved=state.improved + 1)
        return state, {name: float(value) for name, value in told.items()}

    def batch(self, state: OnPolicyState, episodes: Sequence[Episode]) -> Batch:
        """Advantages and targets of whole episodes, normalised over all of them, and padded with what is there."""
        settings, table = self.settings, self.sight.table(state.moments, episodes)
        count = len(table.here)
        rows = np.arange(padded_to(count)) % count
        seen = table.rows[np.arange(padded_to(len(table.rows))) % len(table.rows)]
        mean, now, later = jax.device_get(judged(state.model, seen, table.here[rows], table.following[rows]))
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
        columns = (action, mean[:count], *scaled, *targets)
        action, mean, *rest = (np.asarray(column, np.float32)[rows] for column in columns)
        return Batch(seen, table.here[rows], action, mean, np.asarray(state.model.log_sd), *rest)

    def adapt(self, state: OnPolicyState, episode: Episode) -> tuple[OnPolicyState, Metrics]:
        """Let what was paid move the multiplier."""
        rule = self.rule.update(state.rule, Feedback(episode.paid, self.spec.limit))
        used = {"multiplier": float(state.rule.kappa), **self.rule.report(state.rule)}
        return state._replace(rule=rule), used


def padded_to(count: int) -> int:
    """The next power of two: batches of whole episodes differ in length, and each length is compiled once."""
    return 1 << (count - 1).bit_length()
