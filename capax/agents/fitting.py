"""How is a model of images trained on pieces of what was seen?

Which pieces is decided on the host. Where the frames fit on a GPU they stay there, and all steps are one compiled call;
elsewhere each batch is put together on the host.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import Array
from jaxtyping import Bool, Int

from capax.frames import Drawn, Frames, Pieces, Seen
from capax.lanes import shared
from capax.mirror import Mirror, drawn
from capax.models import imagine, rssm
from capax.models.rssm import RSSM, Losses, RSSMSettings
from capax.types import Key

JUDGED = 10
"""Batches that are looked at once more after a fit."""

AHEAD = 12
"""Steps of a stretch that is judged, where a piece has twice as many: the paper's horizon."""


def fit(
    net: RSSM,
    memory: Any,
    mirror: Mirror,
    frames: Frames,
    pieces: Pieces,
    binary: bool,
    key: Key,
    settings: RSSMSettings,
) -> tuple[RSSM, Any, Losses, tuple[Any, Any, Any, Any]]:
    """A gradient step for each row of `pieces`; the losses in the mean over the steps, and the last pieces judged."""
    mirrored = mirror.follow(frames)
    if mirrored is not None:
        rows, begins = mirrored
        at = (begins[pieces.episode] + pieces.first).astype(np.int32)
        net, memory, parts, seen = on_device(net, memory, rows, at, np.bool_(binary), key, settings=settings)
        return net, memory, Losses(*(np.mean(part) for part in jax.device_get(parts))), seen
    told = []
    for number in range(len(pieces.first)):
        data = frames.take(Pieces(*(part[number] for part in pieces)), settings.chunk)
        net, memory, one = rssm.update(net, memory, data, np.bool_(binary), jr.fold_in(key, number), settings)
        told.append(one)
    last = (
        frames.take(Pieces(*(part[-number] for part in pieces)), settings.chunk)
        for number in range(1, 1 + min(JUDGED, len(told)))
    )
    seen = [judged(net, data, key, settings) for data in last]
    together = jax.tree.map(lambda *parts: np.concatenate(parts), *seen)
    return net, memory, Losses(*(np.mean(part) for part in zip(*told, strict=True))), together


@shared
@partial(jax.jit, static_argnames="settings")
def on_device(
    net: RSSM,
    memory: Any,
    rows: Seen,
    begins: Int[Array, "U B"],
    binary: Bool[Array, ""],
    key: Key,
    settings: RSSMSettings,
) -> tuple[RSSM, Any, Losses, Any]:
    """U gradient steps on the pieces that begin at these rows; the losses of each, and the last pieces judged."""

    def one(carry: tuple[RSSM, Any], at: Any) -> tuple[tuple[RSSM, Any], Losses]:
        number, begin = at
        data = drawn(rows, begin, settings.chunk)
        net, memory, parts = rssm.update(*carry, data, binary, jr.fold_in(key, number), settings)
        return (net, memory), parts

    (net, memory), parts = jax.lax.scan(one, (net, memory), (jnp.arange(len(begins)), begins))
    last = begins[-JUDGED:][::-1]
    seen = jax.lax.map(lambda begin: judged(net, drawn(rows, begin, settings.chunk), key, settings), last)
    return net, memory, parts, jax.tree.map(jnp.ravel, seen)


@partial(jax.jit, static_argnames="settings")
def judged(net: RSSM, data: Drawn, key: Key, settings: RSSMSettings) -> tuple[Any, Any, Any, Any]:
    """What a planner would have said of what was done: stretches of some pieces, imagined with the actions that were taken.

    Logit and uncertainty of the step of each that a growing κ flags first; whether any of its steps paid, and what it
    earned. A belief needs some images before it, so the first ones are no beginnings.
    """
    _, _, belief, _, _ = rssm.followed(net, data, key, settings)
    B, L = data.reward.shape
    ahead = min(AHEAD, (L + 1) // 2)
    first = jnp.arange(ahead // 2, L - ahead + 1)  # [T]
    steps = first[:, None] + jnp.arange(ahead)  # [T W]
    start = rssm.Belief(*(part[first].reshape(first.size * B, -1) for part in belief))
    action, reward, cost = (
        jnp.moveaxis(jnp.asarray(part)[:, steps], 1, 0).reshape(first.size * B, ahead, *part.shape[2:])
        for part in (data.action, data.reward, data.cost)
    )
    imagined = imagine.rollout(imagine.ready(net, settings), start, action, key, settings=settings)
    logit, u = imagined.cost[:, 0], imagined.uncertainty[:, 0]
    worst = jnp.argmax(logit / u, axis=1)[:, None]
    logit, u = (jnp.take_along_axis(part, worst, 1)[:, 0] for part in (logit, u))
    return logit, u, cost.max(1), reward.sum(1)
