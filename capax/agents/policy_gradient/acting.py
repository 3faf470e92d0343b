"""Policies that act: a network of vectors runs on the host, a network of images on the device."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from capax.models.actor_critic import ActorCritic, policy_and_values
from capax.runtime.lanes import batched


class HostPolicy(NamedTuple):
    """A policy of vectors on the host. An action takes a tenth of the time of a compiled call."""

    layers: tuple[tuple[Any, Any], ...]
    """Weights and biases."""
    sd: Any
    """Standard deviations `[A]`."""

    @classmethod
    def from_network(cls, net: ActorCritic) -> HostPolicy:
        layers = tuple((np.asarray(layer.w), np.asarray(layer.b)) for layer in net.policy)
        return cls(layers, np.exp(np.asarray(net.log_sd)))

    def mean(self, x: Any) -> Any:
        """Mean actions `[N, A]` at normalised observations `[N, S]`."""
        *hidden, (w, b) = self.layers
        for w_hidden, b_hidden in hidden:
            x = np.tanh(x @ w_hidden + b_hidden)
        return x @ w + b


class DevicePolicy(NamedTuple):
    """A policy of images on the device."""

    net: ActorCritic
    sd: Any
    """Standard deviations `[A]`."""

    @classmethod
    def from_network(cls, net: ActorCritic) -> DevicePolicy:
        return cls(net, np.exp(np.asarray(net.log_sd)))

    def mean(self, x: Any) -> Any:
        """Mean actions `[N, A]` at stacked images `[N, K, h, w, C]`."""
        return np.asarray(mean_action(self.net, x))


@batched
@jax.jit
def mean_action(net: ActorCritic, x: Any) -> Float[jax.Array, "N A"]:
    """Means of the policy at its inputs."""
    return policy_and_values(net, x)[0].mean
