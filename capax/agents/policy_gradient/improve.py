"""Improvement of the policy and its values: epochs of minibatches, a gradient step each."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jax import Array
from jaxtyping import Float, Int

from capax.agents.policy_gradient.batch import Batch, padded_to
from capax.agents.policy_gradient.settings import PolicyGradientSettings
from capax.agents.policy_gradient.surrogate import Sample, Surrogate
from capax.core.types import Key, Metrics
from capax.models.actor_critic import ActorCritic, Normal, policy_and_values
from capax.runtime.lanes import batched

WHOLE_BATCH_FIELDS = ("observations", "old_log_sd")
"""Fields of a batch that have no row for each step."""


def make_optimiser(settings: PolicyGradientSettings) -> optax.GradientTransformation:
    """Adam on gradients of limited norm."""
    return optax.chain(optax.clip_by_global_norm(settings.gradient), optax.adam(settings.learning_rate, eps=1e-5))


def minibatch_order(key: Key, count: int, settings: PolicyGradientSettings) -> tuple[Int[np.ndarray, "M B"], int]:
    """The steps of each minibatch, padded to few lengths, and the number of minibatches before the padding.

    Every epoch shuffles all `count` steps. Steps that do not fill a whole minibatch are omitted.
    """
    size = min(settings.minibatch, count)
    rng = np.random.default_rng(np.asarray(jr.key_data(key)))
    shuffled = [rng.permutation(count)[: count // size * size] for _ in range(settings.epochs)]
    order = np.concatenate(shuffled).reshape(-1, size).astype(np.int32)
    return np.pad(order, ((0, padded_to(len(order)) - len(order)), (0, 0))), len(order)


@batched
@partial(jax.jit, static_argnames=("settings", "surrogate"))
def improve(
    net: ActorCritic,
    optimiser: Any,
    batch: Batch,
    order: Int[Array, "M B"],
    steps: Int[Array, ""],
    epoch_steps: Int[Array, ""],
    multiplier: Float[Array, ""],
    *,
    settings: PolicyGradientSettings,
    surrogate: Surrogate,
) -> tuple[ActorCritic, Any, Metrics]:
    """The network, the optimiser's state and metrics after a gradient step on each of the first `steps` minibatches.

    An epoch has `epoch_steps` of them. One whose mean divergence exceeds `max_kl` is the last.
    """

    def loss(net: ActorCritic, minibatch: Batch) -> tuple[Any, Any]:
        new, (value, cost_value) = policy_and_values(net, batch.observations[minibatch.obs_index])
        old = Normal(minibatch.old_mean, batch.old_log_sd)
        ratio, kl = jnp.exp(new.log_prob(minibatch.action) - old.log_prob(minibatch.action)), new.kl(old)
        sample = Sample(ratio, kl, minibatch.advantage, minibatch.cost_advantage, multiplier)
        value_loss = (
            jnp.square(value - minibatch.value_target).mean()
            + jnp.square(cost_value - minibatch.cost_value_target).mean()
        )
        squared_params = sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves((net.value, net.cost_value)))
        policy_loss = surrogate(sample, settings).mean()
        total = policy_loss + 0.5 * value_loss + settings.decay * squared_params
        return total, (policy_loss, value_loss, kl.mean())

    def continues(carry: Any) -> Any:
        """Whether minibatches are left, and no epoch has ended beyond `max_kl`."""
        step, kl_sum = carry[0], carry[-1]
        return (step < steps) & ((step % epoch_steps != 0) | (kl_sum <= settings.max_kl * epoch_steps))

    def gradient_step(carry: Any) -> Any:
        step, net, optimiser, _, kl_sum = carry
        rows = order[step]
        minibatch = Batch(
            *(
                part if name in WHOLE_BATCH_FIELDS else part[rows]
                for name, part in zip(Batch._fields, batch, strict=True)
            )
        )
        grads, losses = jax.grad(loss, has_aux=True)(net, minibatch)
        updates, optimiser = make_optimiser(settings).update(grads, optimiser)
        kl_sum = jnp.where(step % epoch_steps == 0, 0.0, kl_sum) + losses[-1]
        return step + 1, optax.apply_updates(net, updates), optimiser, losses, kl_sum

    begin = (jnp.zeros((), jnp.int32), net, optimiser, (jnp.zeros(()),) * 3, jnp.zeros(()))
    step, net, optimiser, losses, _ = jax.lax.while_loop(continues, gradient_step, begin)
    return (
        net,
        optimiser,
        {**dict(zip(("policy_loss", "value_loss", "kl"), losses, strict=True)), "gradient_steps": step},
    )
