"""How are images halved and doubled, in a form whose gradient is fast on a CPU too?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def halved(x: Float[Array, "N h w i"], kernel: Float[Array, "4 4 i o"]) -> Float[Array, "N _ _ o"]:
    """A convolution of stride 2 without padding, as one of stride 1 over 2×2 blocks: its gradient has no holes in it,
    which a CPU is slow at."""
    N, h, w, i = x.shape
    h, w = h // 2, w // 2
    blocks = x[:, : 2 * h, : 2 * w].reshape(N, h, 2, w, 2, i).swapaxes(2, 3).reshape(N, h, w, 4 * i)
    o = kernel.shape[-1]
    return _conv(blocks, kernel.reshape(2, 2, 2, 2, i, o).swapaxes(1, 2).reshape(2, 2, 4 * i, o), 0)


def doubled(x: Float[Array, "N h w i"], kernel: Float[Array, "k k i o"]) -> Float[Array, "N _ _ o"]:
    """A transposed convolution of stride 2,  y[2m + p] = Σ_a x[m − a] w[2a + p],  as a convolution for each parity p."""
    N, h, w, i = x.shape
    k, o = kernel.shape[0], kernel.shape[-1]
    whole = jnp.pad(kernel, ((0, 6 - k), (0, 6 - k), (0, 0), (0, 0)))
    taps = whole.reshape(3, 2, 3, 2, i, o)[::-1, :, ::-1].transpose(0, 2, 4, 1, 3, 5).reshape(3, 3, i, 4 * o)
    y = _conv(x, taps, 2).reshape(N, h + 2, w + 2, 2, 2, o).swapaxes(2, 3).reshape(N, 2 * h + 4, 2 * w + 4, o)
    return y[:, : 2 * h - 2 + k, : 2 * w - 2 + k]


def _conv(x: Float[Array, "N h w i"], kernel: Float[Array, "k k i o"], padding: int) -> Float[Array, "N _ _ o"]:
    """A convolution of stride 1; on a CPU with a gradient of our own, since XLA's is slow there."""
    x = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    return (by_images if jax.default_backend() == "cpu" else plain)(x, kernel)


def plain(x: Float[Array, "N h w i"], kernel: Float[Array, "k k i o"]) -> Float[Array, "N _ _ o"]:
    """XLA's convolution of stride 1, without padding."""
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


@jax.custom_vjp
def by_images(x: Float[Array, "N h w i"], kernel: Float[Array, "k k i o"]) -> Float[Array, "N _ _ o"]:
    """`plain`, whose kernel's gradient is summed image by image."""
    return plain(x, kernel)


def _forward(x: Any, kernel: Any) -> tuple[Any, Any]:
    return plain(x, kernel), (x, kernel)


def _backward(seen: Any, g: Float[Array, "N h w o"]) -> tuple[Any, Any]:
    x, kernel = seen
    k, (h, w, _) = kernel.shape[0], g.shape[1:]
    around = jnp.pad(g, ((0, 0), (k - 1, k - 1), (k - 1, k - 1), (0, 0)))

    def patches(image: Any) -> Any:
        return jnp.concatenate([image[a : a + h, b : b + w] for a in range(k) for b in range(k)], -1)

    return plain(around, kernel[::-1, ::-1].swapaxes(2, 3)), summed(patches, x, g).reshape(kernel.shape)


by_images.defvjp(_forward, _backward)


def strided(x: Float[Array, "N h w i"], kernel: Float[Array, "k k i o"]) -> Float[Array, "N _ _ o"]:
    """A convolution of stride 2 without padding, of any kernel; for few channels, where `halved` gains nothing."""
    return (of_stride_2 if jax.default_backend() == "cpu" else by_twos)(x, kernel)


def by_twos(x: Float[Array, "N h w i"], kernel: Float[Array, "k k i o"]) -> Float[Array, "N _ _ o"]:
    """XLA's."""
    return jax.lax.conv_general_dilated(x, kernel, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


@jax.custom_vjp
def of_stride_2(x: Float[Array, "N h w i"], kernel: Float[Array, "k k i o"]) -> Float[Array, "N _ _ o"]:
    """`by_twos`, whose kernel's gradient is summed image by image."""
    return by_twos(x, kernel)


def _of_stride_2(x: Any, kernel: Any) -> tuple[Any, Any]:
    return by_twos(x, kernel), (x, kernel)


def _back_2(seen: Any, g: Float[Array, "N h w o"]) -> tuple[Any, Any]:
    x, kernel = seen
    rows, columns = (slice(2 * n - 1) for n in g.shape[1:3])

    def patches(image: Any) -> Any:
        taps = [image[a:, b:][rows, columns][::2, ::2] for a in range(len(kernel)) for b in range(len(kernel))]
        return jnp.concatenate(taps, -1)

    (towards,) = jax.vjp(lambda x: by_twos(x, kernel), x)[1](g)
    return towards, summed(patches, x, g).reshape(kernel.shape)


of_stride_2.defvjp(_of_stride_2, _back_2)


def summed(patches: Callable[[Any], Any], x: Float[Array, "N ..."], g: Float[Array, "N h w o"]) -> Float[Array, "p o"]:
    """The gradient of a kernel, image by image: the patches of one image stay in the cache."""

    def add(total: Any, at: Any) -> tuple[Any, None]:
        image, slope = at
        flat = patches(image).reshape(slope[..., 0].size, -1)
        return total + flat.T @ slope.reshape(len(flat), -1), None

    size = jax.eval_shape(patches, x[0]).shape[-1]
    return jax.lax.scan(add, jnp.zeros((size, g.shape[-1]), g.dtype), (x, g))[0]
