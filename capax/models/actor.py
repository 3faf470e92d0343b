"""What do policy-gradient methods learn? A Gaussian policy, and what its rewards and its costs will come to."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import Array
from jaxtyping import Float

from capax.models.convolution import plain, strided
from capax.models.layers import Conv, Dense
from capax.types import Key

SEEN = 4
"""Images that are seen at once, the present one last: one alone does not show how fast things move."""
LAYERS = ((4, 8), (3, 16), (3, 32), (3, 64), (3, 128))
"""Sizes of the encoder's kernels and its channels; the last has a stride of 1, the others of 2 (paper)."""


class Actor(eqx.Module):
    """Three networks of their own (tanh between layers), and the logarithm of the policy's deviations."""

    policy: tuple[Dense, ...]
    log_sd: Float[Array, " A"]
    value: tuple[Dense, ...]
    """Of what is earned from a state on."""
    cost_value: tuple[Dense, ...]
    """Of what is paid."""
    encoder: tuple[Conv, ...] = ()
    """From images to what the three see; empty where observations are vectors."""


class Normal(NamedTuple):
    """A policy at some states."""

    mean: Float[Array, "... A"]
    log_sd: Float[Array, " A"]

    def log_prob(self, action: Float[Array, "... A"]) -> Float[Array, ...]:
        z = (action - self.mean) / jnp.exp(self.log_sd)
        return -0.5 * (jnp.square(z) + 2.0 * self.log_sd + np.log(2.0 * np.pi)).sum(-1)

    def kl(self, other: Normal) -> Float[Array, ...]:
        """KL(self ‖ other), summed over the dimensions."""
        ratio = jnp.exp(2.0 * (self.log_sd - other.log_sd))
        apart = jnp.square((self.mean - other.mean) / jnp.exp(other.log_sd))
        return 0.5 * (ratio + apart - 1.0 - jnp.log(ratio)).sum(-1)


def init(key: Key, obs: int | tuple[int, ...], action_dim: int, hidden: int) -> Actor:
    """For vectors of a size, or for images. Orthogonal weights; the policy begins near 0, whatever it sees."""
    keys = iter(jr.split(key, 9))
    encoder = () if isinstance(obs, int) else convolutions(jr.fold_in(key, 9), SEEN * obs[-1])
    inputs = obs if isinstance(obs, int) else encoder[-1].b.size

    def network(out: int, last: float) -> tuple[Dense, ...]:
        sizes = (inputs, hidden, hidden, out)
        gains = (np.sqrt(2.0), np.sqrt(2.0), last)
        return tuple(
            Dense(jax.nn.initializers.orthogonal(gain)(next(keys), (i, o)), jnp.zeros(o))
            for (i, o), gain in zip(pairwise(sizes), gains, strict=True)
        )

    nets = network(action_dim, 0.01), jnp.full(action_dim, -0.5), network(1, 1.0), network(1, 1.0)
    return Actor(*nets, encoder)


def convolutions(key: Key, channels: int) -> tuple[Conv, ...]:
    """The encoder of images, as it begins."""
    outs = [channels, *(out for _, out in LAYERS)]
    return tuple(
        Conv(
            jax.nn.initializers.orthogonal(np.sqrt(2.0))(k, (size * size * i, o)).reshape(size, size, i, o),
            jnp.zeros(o),
        )
        for k, (size, _), (i, o) in zip(jr.split(key, len(LAYERS)), LAYERS, pairwise(outs), strict=True)
    )


def through(layers: tuple[Dense, ...], x: Float[Array, "... S"]) -> Float[Array, "... O"]:
    *hidden, last = layers
    for layer in hidden:
        x = jnp.tanh(layer(x))
    return last(x)


def features(net: Actor, x: Any) -> Float[Array, "N F"]:
    """What the three networks see: normalised observations `[N, S]` as they are, images `[N, SEEN, h, w, C]` encoded."""
    if not net.encoder:
        return x
    x = jnp.concatenate(jnp.unstack(x, axis=1), -1).astype(jnp.float32) / 255.0
    *halving, last = net.encoder
    for layer in halving:
        x = jax.nn.relu(strided(x, layer.w) + layer.b)
    return jax.nn.relu(plain(x, last.w) + last.b).reshape(len(x), -1)


def seen(net: Actor, x: Any) -> tuple[Normal, tuple[Float[Array, " N"], Float[Array, " N"]]]:
    """The policy, and what is earned and what is paid from here on, discounted."""
    z = features(net, x)
    return Normal(through(net.policy, z), net.log_sd), (through(net.value, z)[:, 0], through(net.cost_value, z)[:, 0])
