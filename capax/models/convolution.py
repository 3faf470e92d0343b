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
    return _conv(blocks(x), blocked(kernel), 0)


def blocks(x: Float[Array, "N h w i"]) -> Float[Array, "N h/2 w/2 4*i"]:
    """2×2 pixels as one."""
    N, h, w, i = x.shape
    h, w = h // 2, w // 2
    return x[:, : 2 * h, : 2 * w].reshape(N, h, 2, w, 2, i).swapaxes(2, 3).reshape(N, h, w, 4 * i)


def blocked(kernel: Float[Array, "4 4 i o"]) -> Float[Array, "2 2 4*i o"]:
    """A kernel for such blocks."""
    *_, i, o = kernel.shape
    return kernel.reshape(2, 2, 2, 2, i, o).swapaxes(1, 2).reshape(2, 2, 4 * i, o)


def halved_ready(x: Float[Array, "N h w i"], kernel: Float[Array, "o 2 2 4*i"]) -> Float[Array, "N _ _ o"]:
    """What `halved` makes, of a kernel that is blocked already, with its outputs first: a GPU need not move it before."""
    return jax.lax.conv_general_dilated(blocks(x), kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "OHWI", "NHWC"))


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


def by_twos(x: Float[Array, "N h w i"], kernel: Float[Array, "k k i o"]) -> Float[Array, "N _ _ o"]:
    """XLA's convolution of stride 2, without padding."""
    return jax.lax.conv_general_dilated(x, kernel, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def strided(x: Float[Array, "N h w i"], kernel: Float[Array, "k k i o"]) -> Float[Array, "N _ _ o"]:
    """A convolution of stride 2 without padding, of any kernel; for few channels, where `halved` gains nothing."""
    return (twos_by_images if jax.default_backend() == "cpu" else by_twos)(x, kernel)


def image_by_image(convolve: Callable[[Any, Any], Any], stride: int) -> Callable[[Any, Any], Any]:
    """The same convolution, whose kernel's gradient is summed image by image: the patches of one image stay in the cache."""

    @jax.custom_vjp
    def made(x: Any, kernel: Any) -> Any:
        return convolve(x, kernel)

    def forward(x: Any, kernel: Any) -> tuple[Any, Any]:
        return convolve(x, kernel), (x, kernel)

    def backward(seen: Any, g: Float[Array, "N h w o"]) -> tuple[Any, Any]:
        x, kernel = seen
        k, (h, w, o) = len(kernel), g.shape[1:]
        down, across = (slice(stride * (n - 1) + 1) for n in (h, w))

        def add(total: Any, at: Any) -> tuple[Any, None]:
            image, slope = at
            taps = [image[a:, b:][down, across][::stride, ::stride] for a in range(k) for b in range(k)]
            patches = jnp.concatenate(taps, -1).reshape(h * w, -1)
            return total + slope.reshape(h * w, o).T @ patches, None  # the other way round is slower

        total, _ = jax.lax.scan(add, jnp.zeros((o, kernel[..., 0].size), g.dtype), (x, g))
        (towards,) = jax.vjp(lambda x: convolve(x, kernel), x)[1](g)
        return towards, total.T.reshape(kernel.shape)

    made.defvjp(forward, backward)
    return made


by_images, twos_by_images = image_by_image(plain, 1), image_by_image(by_twos, 2)
