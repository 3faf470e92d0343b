"""What do policy-gradient methods learn? A Gaussian policy, and what its rewards and its costs will come to."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import Array
from jaxtyping import Float

from capax.models.layers import Dense
from capax.types import Key


class Actor(eqx.Module):
    """Three networks of their own (tanh between layers), and the logarithm of the policy's deviations."""

    policy: tuple[Dense, ...]
    log_sd: Float[Array, " A"]
    value: tuple[Dense, ...]
    """Of what is earned from a state on."""
    cost_value: tuple[Dense, ...]
    """Of what is paid."""


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


def init(key: Key, obs_dim: int, action_dim: int, hidden: int) -> Actor:
    """Orthogonal weights; the policy begins near 0, whatever it sees."""
    keys = iter(jr.split(key, 9))

    def network(out: int, last: float) -> tuple[Dense, ...]:
        sizes = (obs_dim, hidden, hidden, out)
        gains = (np.sqrt(2.0), np.sqrt(2.0), last)
        return tuple(
            Dense(jax.nn.initializers.orthogonal(gain)(next(keys), (i, o)), jnp.zeros(o))
            for (i, o), gain in zip(pairwise(sizes), gains, strict=True)
        )

    return Actor(network(action_dim, 0.01), jnp.full(action_dim, -0.5), network(1, 1.0), network(1, 1.0))


def through(layers: tuple[Dense, ...], x: Float[Array, "... S"]) -> Float[Array, "... O"]:
    *hidden, last = layers
    for layer in hidden:
        x = jnp.tanh(layer(x))
    return last(x)


def policy(net: Actor, x: Float[Array, "... S"]) -> Normal:
    """At normalised observations."""
    return Normal(through(net.policy, x), net.log_sd)


def values(net: Actor, x: Float[Array, "... S"]) -> tuple[Float[Array, ...], Float[Array, ...]]:
    """What is earned and what is paid from here on, discounted."""
    return through(net.value, x)[..., 0], through(net.cost_value, x)[..., 0]
