"""Layers of the models, and the type that their matrix products are computed in."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax import Array
from jaxtyping import Float

from capax.core.types import Key


class Dense(eqx.Module):
    """x W + b."""

    w: Float[Array, "in out"]
    b: Float[Array, " out"]

    def __call__(self, x: Float[Array, "... in"]) -> Float[Array, "... out"]:
        return x @ self.w + self.b


class Conv(eqx.Module):
    """Kernel `[k, k, in, out]` and bias of a convolution, or of a transposed one, without padding."""

    w: Float[Array, "k k in out"]
    b: Float[Array, " out"]


class GRU(eqx.Module):
    """A gated recurrent unit."""

    x: Dense
    """Reads the input."""
    h: Dense
    """Reads the state."""

    def __call__(self, x: Float[Array, "... X"], h: Float[Array, "... H"]) -> Float[Array, "... H"]:
        return self.combine(self.x(x), self.h(h), h)

    @staticmethod
    def combine(
        x_gates: Float[Array, "... 3H"], h_gates: Float[Array, "... 3H"], h: Float[Array, "... H"]
    ) -> Float[Array, "... H"]:
        """The next state, from the outputs of the two layers."""
        (r_x, z_x, n_x), (r_h, z_h, n_h) = (jnp.split(part, 3, -1) for part in (x_gates, h_gates))
        r, z = jax.nn.sigmoid(r_x + r_h), jax.nn.sigmoid(z_x + z_h)
        n = jnp.tanh(n_x + r * n_h)
        return (1.0 - z) * n + z * h


class Members(eqx.Module):
    """Networks that predict the next s from (h, a), stacked along E. The action enters every layer."""

    layers: tuple[Dense, ...]


def product_dtype(products: str) -> str:
    """The type of the matrix products. `auto` is bfloat16 on a GPU and float32 elsewhere."""
    return ("bfloat16" if jax.default_backend() == "gpu" else "float32") if products == "auto" else products


def state_noise(key: Key, shape: tuple[int, ...], sampled: float) -> Float[Array, "H ..."]:
    """Noise of imagined states: normal in the first share of the steps, 0 after it."""
    noise = jr.normal(key, shape)
    steps = round(sampled * shape[0])
    return noise if steps >= shape[0] else noise.at[steps:].set(0.0)
