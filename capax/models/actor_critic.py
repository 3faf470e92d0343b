"""Networks of policy-gradient methods: a Gaussian policy, the value of its rewards and the value of its costs."""

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

from capax.core.types import Key
from capax.models.convolution import conv_stride2, xla_conv
from capax.models.layers import Conv, Dense

STACKED_IMAGES = 4
"""K: images that the policy reads at once, the latest last. A single image does not show how fast things move."""
ENCODER_LAYERS = ((4, 8), (3, 16), (3, 32), (3, 64), (3, 128))
"""Kernel size and output channels of the encoder's layers. The last has stride 1, the others stride 2 (paper)."""


class ActorCritic(eqx.Module):
    """Three separate networks (tanh between layers), and the logarithm of the policy's standard deviations."""

    policy: tuple[Dense, ...]
    log_sd: Float[Array, " A"]
    value: tuple[Dense, ...]
    """Predicts the discounted reward from a state on."""
    cost_value: tuple[Dense, ...]
    """Predicts the discounted cost from a state on."""
    encoder: tuple[Conv, ...] = ()
    """Turns images into the features that the three networks read. Empty where observations are vectors."""


class Normal(NamedTuple):
    """The Gaussian policy at some states."""

    mean: Float[Array, "... A"]
    log_sd: Float[Array, " A"]

    def log_prob(self, action: Float[Array, "... A"]) -> Float[Array, ...]:
        """Log-density of an action."""
        z = (action - self.mean) / jnp.exp(self.log_sd)
        return -0.5 * (jnp.square(z) + 2.0 * self.log_sd + np.log(2.0 * np.pi)).sum(-1)

    def kl(self, other: Normal) -> Float[Array, ...]:
        """KL(self ‖ other), summed over the dimensions."""
        ratio = jnp.exp(2.0 * (self.log_sd - other.log_sd))
        shift = jnp.square((self.mean - other.mean) / jnp.exp(other.log_sd))
        return 0.5 * (ratio + shift - 1.0 - jnp.log(ratio)).sum(-1)


def init(key: Key, obs: int | tuple[int, ...], action_dim: int, hidden: int) -> ActorCritic:
    """Parameters for vectors of size `obs`, or for images of shape `obs`.

    Weights are orthogonal. The mean of the first policy is near 0 for every input.
    """
    keys = iter(jr.split(key, 9))
    encoder = () if isinstance(obs, int) else init_encoder(jr.fold_in(key, 9), STACKED_IMAGES * obs[-1])
    inputs = obs if isinstance(obs, int) else encoder[-1].b.size

    def network(out: int, last: float) -> tuple[Dense, ...]:
        sizes = (inputs, hidden, hidden, out)
        gains = (np.sqrt(2.0), np.sqrt(2.0), last)
        return tuple(
            Dense(jax.nn.initializers.orthogonal(gain)(next(keys), (i, o)), jnp.zeros(o))
            for (i, o), gain in zip(pairwise(sizes), gains, strict=True)
        )

    parts = network(action_dim, 0.01), jnp.full(action_dim, -0.5), network(1, 1.0), network(1, 1.0)
    return ActorCritic(*parts, encoder)


def init_encoder(key: Key, channels: int) -> tuple[Conv, ...]:
    """Parameters of the image encoder, with orthogonal weights."""
    widths = [channels, *(out for _, out in ENCODER_LAYERS)]
    return tuple(
        Conv(
            jax.nn.initializers.orthogonal(np.sqrt(2.0))(k, (size * size * i, o)).reshape(size, size, i, o),
            jnp.zeros(o),
        )
        for k, (size, _), (i, o) in zip(
            jr.split(key, len(ENCODER_LAYERS)), ENCODER_LAYERS, pairwise(widths), strict=True
        )
    )


def apply_mlp(layers: tuple[Dense, ...], x: Float[Array, "... S"]) -> Float[Array, "... O"]:
    """A network with tanh between its layers."""
    *hidden, last = layers
    for layer in hidden:
        x = jnp.tanh(layer(x))
    return last(x)


def features(net: ActorCritic, x: Any) -> Float[Array, "N F"]:
    """Inputs of the three networks: observations `[N, S]` unchanged, images `[N, K, h, w, C]` encoded."""
    if not net.encoder:
        return x
    x = jnp.concatenate(jnp.unstack(x, axis=1), -1).astype(jnp.float32) / 255.0
    *strided_layers, last = net.encoder
    for layer in strided_layers:
        x = jax.nn.relu(conv_stride2(x, layer.w) + layer.b)
    return jax.nn.relu(xla_conv(x, last.w) + last.b).reshape(len(x), -1)


def policy_and_values(net: ActorCritic, x: Any) -> tuple[Normal, tuple[Float[Array, " N"], Float[Array, " N"]]]:
    """The policy, the discounted reward from here on and the discounted cost from here on."""
    z = features(net, x)
    return Normal(apply_mlp(net.policy, z), net.log_sd), (
        apply_mlp(net.value, z)[:, 0],
        apply_mlp(net.cost_value, z)[:, 0],
    )
