"""Fits an image model to random pieces of the recorded episodes.

The host draws the pieces. If the images fit on a GPU they stay there, and all steps are one compiled call. Otherwise
the host assembles each batch.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from capax.core.types import Key
from capax.data.device_cache import ImageCache, gather_chunks
from capax.data.image_episodes import ImageBatch, ImageBuffer, ImageEpisode, SequenceIndex
from capax.models import rssm, rssm_rollout
from capax.models.rssm import RSSM, Losses, RSSMSettings
from capax.runtime.lanes import batched

MARGIN_BATCHES = 10
"""Batches that are predicted once more after a fit."""

MARGIN_HORIZON = 12
"""Most steps of an imagined stretch: the paper's horizon. A stretch is at most half of a piece."""


def fit(
    net: RSSM,
    optimiser_state: Any,
    cache: ImageCache,
    buffer: ImageBuffer,
    pieces: SequenceIndex,
    binary: bool,
    key: Key,
    settings: RSSMSettings,
) -> tuple[RSSM, Any, Losses, tuple[Any, Any, Any, Any]]:
    """One gradient step for each row of `pieces`.

    Returns the parameters, the state of the optimiser, the losses averaged over the steps, and `margin_samples` of the
    last pieces.
    """
    weights, anywhere = bootstrap_weights(pieces, buffer, key, settings), settings.pieces == "anywhere"
    cached = cache.sync(buffer)
    if cached is not None:
        rows, first_rows = cached
        which, place, last = buffer.rows(pieces, settings.chunk, anywhere)
        at = (first_rows[which] + place).astype(np.int32)
        net, optimiser_state, all_losses, samples = fit_on_device(
            net,
            optimiser_state,
            rows,
            at,
            (weights, last if anywhere else None),
            np.bool_(binary),
            key,
            settings=settings,
        )
        return net, optimiser_state, Losses(*(np.mean(part) for part in jax.device_get(all_losses))), samples
    losses = []
    for number in range(len(pieces.first)):
        batch = buffer.take(SequenceIndex(*(part[number] for part in pieces)), settings.chunk, anywhere)
        batch = batch._replace(weight=None if weights is None else weights[number])
        net, optimiser_state, step_losses = rssm.update(
            net, optimiser_state, batch, np.bool_(binary), jr.fold_in(key, number), settings
        )
        losses.append(step_losses)
    last_batches = (
        buffer.take(SequenceIndex(*(part[-number] for part in pieces)), settings.chunk, anywhere)
        for number in range(1, 1 + min(MARGIN_BATCHES, len(losses)))
    )
    samples = [margin_samples(net, batch, key, settings) for batch in last_batches]
    joined = jax.tree.map(lambda *parts: np.concatenate(parts), *samples)
    return net, optimiser_state, Losses(*(np.mean(part) for part in zip(*losses, strict=True))), joined


def bootstrap_weights(
    pieces: SequenceIndex, buffer: ImageBuffer, key: Key, settings: RSSMSettings
) -> Float[np.ndarray, "U B E"] | None:
    """How often each piece counts for each one-step model. `settings.bootstrap` says what is resampled.

    An episode's counts are drawn once: they depend on its place in the run alone.
    """
    if settings.bootstrap == "none":
        return None
    E, (U, B) = settings.members, pieces.first.shape
    if settings.bootstrap == "batch":
        rng = np.random.default_rng(np.asarray(jr.key_data(key)))
        return np.moveaxis(rng.multinomial(B, np.full(B, 1.0 / B), (U, E)), 1, 2).astype(np.float32)
    steps = np.array([len(episode.reward) for episode in buffer.episodes])
    places = buffer.added - np.cumsum(steps[::-1])[::-1]
    table = np.stack([np.random.default_rng(int(place)).poisson(1.0, E) for place in places])
    return table[pieces.episode].astype(np.float32)


@batched
@partial(jax.jit, static_argnames="settings")
def fit_on_device(
    net: RSSM,
    optimiser_state: Any,
    rows: ImageEpisode,
    at: Int[Array, "U B L+1"],
    extras: tuple[Float[Array, "U B E"] | None, Bool[Array, "U B L"] | None],
    binary: Bool[Array, ""],
    key: Key,
    settings: RSSMSettings,
) -> tuple[RSSM, Any, Losses, Any]:
    """U gradient steps on the pieces whose images are these rows, with the `weight` and `last` of an `ImageBatch`.

    Returns the losses of each step, and `margin_samples` of the last pieces.
    """

    def step(carry: tuple[RSSM, Any], inputs: Any) -> tuple[tuple[RSSM, Any], Losses]:
        number, at, (weight, last) = inputs
        batch = gather_chunks(rows, at)._replace(weight=weight, last=last)
        net, optimiser_state, losses = rssm.update(*carry, batch, binary, jr.fold_in(key, number), settings)
        return (net, optimiser_state), losses

    (net, optimiser_state), losses = jax.lax.scan(step, (net, optimiser_state), (jnp.arange(len(at)), at, extras))
    last_ones = jax.tree.map(lambda part: part[-MARGIN_BATCHES:][::-1], (at, extras[1]))
    samples = jax.lax.map(
        lambda one: margin_samples(net, gather_chunks(rows, one[0])._replace(last=one[1]), key, settings), last_ones
    )
    return net, optimiser_state, losses, jax.tree.map(jnp.ravel, samples)


@partial(jax.jit, static_argnames="settings")
def margin_samples(net: RSSM, batch: ImageBatch, key: Key, settings: RSSMSettings) -> tuple[Any, Any, Any, Any]:
    """Predictions for stretches of recorded pieces, imagined with the recorded actions.

    Returns, for `kappa.binary.safety_margins`, logit and uncertainty of the step of each stretch that a growing κ flags
    first, whether any of its steps had a cost, and its reward. A belief needs some images before it, so no stretch begins
    with the first ones.
    """
    _, _, belief, _, _ = rssm.infer_beliefs(net, batch, key, settings)
    B, L = batch.reward.shape
    horizon = min(MARGIN_HORIZON, (L + 1) // 2)
    first = jnp.arange(horizon // 2, L - horizon + 1)  # [T]
    steps = first[:, None] + jnp.arange(horizon)  # [T W]
    start = rssm.Belief(*(part[first].reshape(first.size * B, -1) for part in belief))
    action, reward, cost = (
        jnp.moveaxis(jnp.asarray(part)[:, steps], 1, 0).reshape(first.size * B, horizon, *part.shape[2:])
        for part in (batch.action, batch.reward, batch.cost)
    )
    params = rssm_rollout.prepare_rollout(net, settings)
    imagined = rssm_rollout.rollout(params, start, action, key, settings=settings)
    logit, u = imagined.cost[:, 0], imagined.uncertainty[:, 0]
    worst = jnp.argmax(logit / u, axis=1)[:, None]
    logit, u = (jnp.take_along_axis(part, worst, 1)[:, 0] for part in (logit, u))
    return logit, u, cost.max(1), reward.sum(1)
