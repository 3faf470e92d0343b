"""Which layers is the model of images made of, and in which type do models multiply?"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


class Dense(eqx.Module):
    """x W + b."""

    w: Float[Array, "in out"]
    b: Float[Array, " out"]

    def __call__(self, x: Float[Array, "... in"]) -> Float[Array, "... out"]:
        return x @ self.w + self.b


class Conv(eqx.Module):
    """A convolution, or a transposed one, of stride 2 without padding; its kernel is `[k, k, in, out]`."""

    w: Float[Array, "k k in out"]
    b: Float[Array, " out"]


class GRU(eqx.Module):
    """A gated recurrent unit."""

    x: Dense
    h: Dense

    def __call__(self, x: Float[Array, "... X"], h: Float[Array, "... H"]) -> Float[Array, "... H"]:
        return self.mixed(self.x(x), self.h(h), h)

    @staticmethod
    def mixed(
        of_x: Float[Array, "... 3H"], of_h: Float[Array, "... 3H"], h: Float[Array, "... H"]
    ) -> Float[Array, "... H"]:
        """The same, from what its two layers give."""
        (r_x, z_x, n_x), (r_h, z_h, n_h) = (jnp.split(part, 3, -1) for part in (of_x, of_h))
        r, z = jax.nn.sigmoid(r_x + r_h), jax.nn.sigmoid(z_x + z_h)
        n = jnp.tanh(n_x + r * n_h)
        return (1.0 - z) * n + z * h


class Members(eqx.Module):
    """Networks from (h, a) to the next s, stacked; the action enters every layer."""

    layers: tuple[Dense, ...]


def type_of(products: str) -> str:
    """The type that is meant by auto on this machine."""
    return ("bfloat16" if jax.default_backend() == "gpu" else "float32") if products == "auto" else products
