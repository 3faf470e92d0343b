"""A small image model with random parameters, and inputs of its rollouts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from capax.models import rssm
from capax.models.rssm import RSSMSettings

SMALL = RSSMSettings(deter=20, stoch=5, hidden=18, depth=1)
STEPS = 3


def random_model(settings: RSSMSettings = SMALL, actions: int = 2) -> Any:
    """Parameters without zeros, biases included. They are drawn on the host, where nothing is compiled."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda key: rssm.init(key, 3, actions, settings), jr.key(0))
    return jax.tree.map(lambda leaf: jnp.asarray(0.3 * rng.normal(size=leaf.shape), leaf.dtype), shapes)


def random_inputs(
    settings: RSSMSettings = SMALL, actions: int = 2, candidates: int = 7, beliefs: tuple[int, ...] = ()
) -> tuple[Any, Any, Any, Any]:
    """h and s of one belief, or of `beliefs` many, then actions `[N T A]` and noise `[T S]`."""
    rng = np.random.default_rng(1)
    h, s = (np.tanh(rng.normal(size=(*beliefs, size))).astype(np.float32) for size in (settings.deter, settings.stoch))
    moves = rng.uniform(-1.0, 1.0, (candidates, STEPS, actions)).astype(np.float32)
    noise = rng.normal(size=(STEPS, settings.stoch)).astype(np.float32)
    return jnp.asarray(h), jnp.asarray(s), jnp.asarray(moves), jnp.asarray(noise)
