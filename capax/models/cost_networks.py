"""Networks of their own for costs of 0 or 1, which find out what such a cost depends on.

A cost is often decided by few of the observed numbers, such as a place, while the others say in which episode it was. With
some dozen episodes, a network that reads everything remembers episodes. So here inputs compete: after each gradient step
the weights of each input shrink by a fixed length (a group lasso), which only inputs that help all the time make up for.
Costs are rare, so half of a batch are steps with a cost, weighted so that the loss is that of the data.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from capax.core.types import Key

RATE = 3.0
"""Learning rate of these networks, as a multiple of the ensemble's."""
SELECTION = 0.5
"""Length by which the weights of an input shrink in a gradient step, as a multiple of their learning rate."""
SHORTEST = 0.03
"""Length of an input's weights, as a multiple of the root of the hidden units, that the longest keeps. In runs of many fits
later layers would make up for ever shorter ones, until no input is left."""


class CostNetworks(eqx.Module):
    """Parameters of one network for each member, stacked."""

    weights: tuple[Float[Array, "E I O"], ...]
    biases: tuple[Float[Array, "E 1 O"], ...]


class Strata(NamedTuple):
    """The rows of each member's bootstrap, those with a cost first."""

    rows: Int[Array, "E C"]
    with_cost: Int[Array, " E"]
    """How many of them have a cost."""


def init(key: Key, members: int, inputs: int, hidden: int, layers: int) -> CostNetworks:
    """Weights as the ensemble's: truncated normal of standard deviation 1/(2√in), zero biases."""
    sizes = [inputs, *[hidden] * layers, 1]
    keys = jr.split(key, len(sizes) - 1)
    weights = tuple(
        jr.truncated_normal(k, -2.0, 2.0, (members, i, o)) / (2.0 * np.sqrt(i))
        for k, i, o in zip(keys, sizes[:-1], sizes[1:], strict=True)
    )
    return CostNetworks(weights, tuple(jnp.zeros((members, 1, o)) for o in sizes[1:]))


def logits(net: CostNetworks, x: Float[Array, "E B in"]) -> Float[Array, "E B"]:
    """Each member's logit of a cost."""
    h = x
    for w, b in zip(net.weights[:-1], net.biases[:-1], strict=True):
        h = jax.nn.swish(h @ w + b)
    return (jnp.matmul(h, net.weights[-1], preferred_element_type=jnp.float32) + net.biases[-1])[..., 0]


def stratify(resampled: Int[Array, "E C"], cost: Float[Array, " C"], count: Int[Array, ""]) -> Strata:
    """The strata of bootstraps whose first `count` places are used."""
    used = jnp.arange(resampled.shape[1]) < count
    paid = (cost[resampled] > 0.0) & used
    order = jnp.argsort(jnp.where(paid, 0, jnp.where(used, 1, 2)), axis=1)
    return Strata(jnp.take_along_axis(resampled, order, axis=1), paid.sum(1))


def draw(key: Key, strata: Strata, count: Int[Array, ""], batch: int) -> tuple[Int[Array, "E B"], Float[Array, "E B"]]:
    """Rows of a batch, half of them with a cost, and their weights: the share of their kind in the data over that here."""
    half, paid = -(-batch // 2), strata.with_cost[:, None]
    costly = jnp.arange(2 * half) < half
    first, size = jnp.where(costly, 0, paid), jnp.where(costly, paid, count - paid)
    drawn = (jr.uniform(key, size.shape) * size).astype(jnp.int32)
    places = jnp.clip(first + jnp.minimum(drawn, size - 1), 0, count - 1)
    return jnp.take_along_axis(strata.rows, places, axis=1), 2.0 * size / count


def selected(net: CostNetworks, learning_rate: float) -> CostNetworks:
    """The networks after the weights of each input became shorter by SELECTION times their learning rate, down to 0.

    A member's weights stay as they are once the longest is shorter than SHORTEST.
    """
    first = net.weights[0]
    length = jnp.sqrt(jnp.square(first).sum(2, keepdims=True))  # [E I 1]
    left = jnp.maximum(0.0, 1.0 - RATE * learning_rate * SELECTION / jnp.maximum(length, 1e-12))
    long = length.max(1, keepdims=True) > SHORTEST * np.sqrt(first.shape[2])
    return CostNetworks((jnp.where(long, first * left, first), *net.weights[1:]), net.biases)
