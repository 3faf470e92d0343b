"""Losses of the ensemble, and its fits: each network is trained on its own resampling of the same transitions."""

from __future__ import annotations

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jax import Array
from jaxtyping import Float, Int

from capax.core.types import Key
from capax.data.transitions import TransitionBuffer
from capax.models import cost_networks
from capax.models.cost_networks import CostNetworks
from capax.models.ensemble import Ensemble, Scaling, predict
from capax.models.ensemble_settings import EnsembleSettings
from capax.runtime.lanes import batched


def nll(
    mean: Float[Array, "... D"], logvar: Float[Array, "... D"], target: Float[Array, "... D"]
) -> Float[Array, "... D"]:
    """Twice the negative log-likelihood of a Gaussian, without its constant.

    (μ − y)² e^(−log σ²) + log σ²
    """
    return jnp.square(mean - target) * jnp.exp(-logvar) + logvar


def bce(logit: Float[Array, ...], label: Float[Array, ...]) -> Float[Array, ...]:
    """Negative log-likelihood of a 0/1 label."""
    return jax.nn.softplus(logit) - label * logit


def loss(
    net: Ensemble,
    x: Float[Array, "E B in"],
    y: Float[Array, "E B D"],
    end: Float[Array, "E B"],
    weight: Float[Array, " B"],
    scale: Scaling,
    decays: tuple[float, ...],
    balance: float = 0.0,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The training loss, and the mean over members of their data losses, which is logged.

    The first is the sum over members of each head's loss, averaged over the head's dimensions, plus the terms of the
    log-variance bounds and of the weights. `balance` is described in `EnsembleSettings`.
    """
    p = predict(net, x)
    gaussian = nll(p.mean, p.logvar, y)  # [E B D]
    if balance > 0.0:
        gaussian = gaussian * jax.lax.stop_gradient(jnp.exp(balance * p.logvar))
    logistic = bce(p.mean[..., -1], y[..., -1]) if net.costs is None else 0.0  # or learned by networks of its own
    cost = jnp.where(scale.binary, logistic, gaussian[..., -1])
    head_losses = gaussian[..., :-2].mean(-1) + gaussian[..., -2] + cost + jnp.where(scale.ends, bce(p.end, end), 0.0)
    data = (head_losses * weight).sum(-1) / weight.sum()  # [E]
    bounds = 0.01 * (net.max_logvar - net.min_logvar).sum()
    decay = sum(d * jnp.square(w).sum() / 2.0 for d, w in zip(decays, net.weights, strict=True))
    return data.sum() + bounds + decay, data.mean()


@batched
@partial(jax.jit, static_argnames="settings")
def fit(
    net: Ensemble,
    optimiser: Any,
    scale: Scaling,
    buffer: TransitionBuffer,
    count: Int[Array, ""],
    key: Key,
    settings: EnsembleSettings,
) -> tuple[Ensemble, Any, Float[Array, ""]]:
    """Train on the first `count` rows of a padded buffer. Returns the loss averaged over the last pass.

    Each member resamples the rows with replacement once per fit (a bootstrap). Every batch is drawn with replacement
    from these: a shuffled order would need a sort in every step where several fits run as one. (`batches` can be passes
    over them, in another order each time; the last batch of a pass has what is left.) `count` is traced, so a growing
    buffer compiles nothing.
    """
    adam = optax.adam(settings.learning_rate)
    decays = tuple(settings.decays())
    k_boot, k_batch = jr.split(key)
    resampled = jr.randint(k_boot, (settings.members, buffer.reward.shape[0]), 0, count)
    per_epoch = (count + settings.batch - 1) // settings.batch
    updates = jnp.clip(
        jnp.ceil(settings.epochs * per_epoch).astype(jnp.int32), settings.least_updates, settings.most_updates
    )
    row_weight = (jnp.arange(settings.batch) < count).astype(jnp.float32)  # a small buffer counts about once
    strata = None if net.costs is None else cost_networks.stratify(resampled, jnp.asarray(buffer.cost), count)

    def gradient_step(number: Int[Array, ""], carry: Any, rows: Any, row_weight: Any) -> Any:
        net, optimiser, total = carry
        x, y, end = training_batch(buffer, rows, scale)

        def whole_loss(net: Ensemble) -> tuple[Float[Array, ""], Float[Array, ""]]:
            value, data = loss(net, x, y, end, row_weight, scale, decays, settings.balance)
            if strata is None:
                return value, data
            drawn = cost_networks.draw(jr.fold_in(k_batch, number), strata, count, settings.batch)
            own = jax.lax.cond(
                scale.binary, lambda net: cost_loss(net, buffer, scale, *drawn), lambda net: jnp.zeros(()), net.costs
            )
            return value + own, data + own / settings.members

        (_, data), grads = jax.value_and_grad(whole_loss, has_aux=True)(net)
        steps, optimiser = adam.update(grads, optimiser)
        if strata is not None:
            faster = jax.tree.map(lambda step: cost_networks.RATE * step, steps.costs)
            steps = eqx.tree_at(lambda tree: tree.costs, steps, faster)
        net = optax.apply_updates(net, steps)
        if strata is not None:
            selected = cost_networks.selected(net.costs, settings.learning_rate)
            kept = jax.tree.map(partial(jnp.where, scale.binary), selected, net.costs)
            net = eqx.tree_at(lambda tree: tree.costs, net, kept)
        return net, optimiser, total + jnp.where(number >= updates - per_epoch, data, 0.0)

    def drawn_step(number: Int[Array, ""], carry: Any) -> Any:
        places = jr.randint(jr.fold_in(k_batch, number), (settings.batch,), 0, count)
        return gradient_step(number, carry, resampled[:, places], row_weight)

    def one_pass(number: Int[Array, ""], carry: Any) -> Any:
        first, order = number * per_epoch, pass_order(jr.fold_in(k_batch, number), resampled, count)

        def pass_step(batch: Int[Array, ""], carry: Any) -> Any:
            places = batch * settings.batch + jnp.arange(settings.batch)
            rows = order[:, jnp.minimum(places, count - 1)]
            return gradient_step(first + batch, carry, rows, (places < count).astype(jnp.float32))

        return jax.lax.fori_loop(0, jnp.minimum(per_epoch, updates - first), pass_step, carry)

    loop, turns = (one_pass, -(-updates // per_epoch)) if settings.batches == "passes" else (drawn_step, updates)
    net, optimiser, total = jax.lax.fori_loop(0, turns, loop, (net, optimiser, jnp.zeros(())))
    return net, optimiser, total / jnp.minimum(updates, per_epoch)


def cost_loss(
    net: CostNetworks, buffer: TransitionBuffer, scale: Scaling, rows: Int[Array, "E B"], weight: Float[Array, "E B"]
) -> Float[Array, ""]:
    """The loss of the networks for costs of 0 or 1: the sum over members of their weighted logistic losses."""
    x, y, _ = training_batch(buffer, rows, scale)
    return (weight * bce(cost_networks.logits(net, x), y[..., -1])).mean(1).sum()


def pass_order(key: Key, resampled: Int[Array, "E C"], count: Int[Array, ""]) -> Int[Array, "E C"]:
    """The first `count` rows of each member's bootstrap in a random order, each once; what follows them is not read."""
    place = jnp.where(jnp.arange(resampled.shape[1]) < count, jr.uniform(key, resampled.shape), 2.0)
    return jnp.take_along_axis(resampled, jnp.argsort(place, axis=1), axis=1)


def training_batch(buffer: TransitionBuffer, index: Int[Array, "E B"], scale: Scaling) -> tuple[Any, Any, Any]:
    """Scaled inputs `[E B S+A]`, targets `[E B S+2]` and episode ends `[E B]` of some rows."""
    obs, action, reward, cost, next_obs, end = (jnp.asarray(part)[index] for part in buffer.columns)
    x = (jnp.concatenate([obs, action], -1) - scale.input_mean) / scale.input_sd
    y = jnp.concatenate([next_obs - obs, reward[..., None], cost[..., None]], -1)
    y = (y - scale.target_mean) / scale.target_sd
    return x, y, end
