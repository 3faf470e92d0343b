"""Convolutions that halve and double images. Their gradients are fast on a CPU too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def downsample(x: Float[Array, "N h w i"], kernel: Float[Array, "4 4 i o"]) -> Float[Array, "N _ _ o"]:
    """A convolution of stride 2 without padding, as one of stride 1 over 2×2 blocks.

    The gradient of a strided convolution has holes in it, which are slow on a CPU. This form has none.
    """
    return conv(to_blocks(x), block_kernel(kernel), 0)


def to_blocks(x: Float[Array, "N h w i"]) -> Float[Array, "N h/2 w/2 4*i"]:
    """Put the channels of each 2×2 block of pixels into one pixel."""
    N, h, w, i = x.shape
    h, w = h // 2, w // 2
    return x[:, : 2 * h, : 2 * w].reshape(N, h, 2, w, 2, i).swapaxes(2, 3).reshape(N, h, w, 4 * i)


def block_kernel(kernel: Float[Array, "4 4 i o"]) -> Float[Array, "2 2 4*i o"]:
    """The kernel of a convolution over such blocks."""
    *_, i, o = kernel.shape
    return kernel.reshape(2, 2, 2, 2, i, o).swapaxes(1, 2).reshape(2, 2, 4 * i, o)


def downsample_blocked(x: Float[Array, "N h w i"], kernel: Float[Array, "o 2 2 4*i"]) -> Float[Array, "N _ _ o"]:
    """`downsample` with a kernel that is blocked already and has its outputs first.

    A GPU need not transpose such a kernel before each convolution.
    """
    layout = ("NHWC", "OHWI", "NHWC")
    return jax.lax.conv_general_dilated(to_blocks(x), kernel, (1, 1), "VALID", dimension_numbers=layout)


def upsample(x: Float[Array, "N h w i"], kernel: Float[Array, "k k i o"]) -> Float[Array, "N _ _ o"]:
    """A transposed convolution of stride 2, as one convolution for each parity p.

    y[2m + p] = Σ_a x[m − a] w[2a + p]
    """
    N, h, w, i = x.shape
    k, o = kernel.shape[0], kernel.shape[-1]
    padded = jnp.pad(kernel, ((0, 6 - k), (0, 6 - k), (0, 0), (0, 0)))
    taps = padded.reshape(3, 2, 3, 2, i, o)[::-1, :, ::-1].transpose(0, 2, 4, 1, 3, 5).reshape(3, 3, i, 4 * o)
    y = conv(x, taps, 2).reshape(N, h + 2, w + 2, 2, 2, o).swapaxes(2, 3).reshape(N, 2 * h + 4, 2 * w + 4, o)
    return y[:, : 2 * h - 2 + k, : 2 * w - 2 + k]


def conv(x: Float[Array, "N h w i"], kernel: Float[Array, "k k i o"], padding: int) -> Float[Array, "N _ _ o"]:
    """A convolution of stride 1. On a CPU it has its own gradient, since XLA's is slow there."""
    x = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    return (conv_imagewise if jax.default_backend() == "cpu" else xla_conv)(x, kernel)


def xla_conv(x: Float[Array, "N h w i"], kernel: Float[Array, "k k i o"]) -> Float[Array, "N _ _ o"]:
    """XLA's convolution of stride 1, without padding."""
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def xla_conv_stride2(x: Float[Array, "N h w i"], kernel: Float[Array, "k k i o"]) -> Float[Array, "N _ _ o"]:
    """XLA's convolution of stride 2, without padding."""
    return jax.lax.conv_general_dilated(x, kernel, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def conv_stride2(x: Float[Array, "N h w i"], kernel: Float[Array, "k k i o"]) -> Float[Array, "N _ _ o"]:
    """A convolution of stride 2 without padding, with any kernel size.

    For few channels, where `downsample` gains nothing.
    """
    return (conv_stride2_imagewise if jax.default_backend() == "cpu" else xla_conv_stride2)(x, kernel)


def with_imagewise_gradient(convolve: Callable[[Any, Any], Any], stride: int) -> Callable[[Any, Any], Any]:
    """The same convolution with the kernel's gradient summed image by image.

    The patches of one image stay in the CPU's cache.
    """

    @jax.custom_vjp
    def convolution(x: Any, kernel: Any) -> Any:
        return convolve(x, kernel)

    def forward(x: Any, kernel: Any) -> tuple[Any, Any]:
        return convolve(x, kernel), (x, kernel)

    def backward(inputs: Any, g: Float[Array, "N h w o"]) -> tuple[Any, Any]:
        x, kernel = inputs
        k, (h, w, o) = len(kernel), g.shape[1:]
        row_span, column_span = (slice(stride * (n - 1) + 1) for n in (h, w))

        def add(total: Any, image_and_g: Any) -> tuple[Any, None]:
            image, image_g = image_and_g
            taps = [image[a:, b:][row_span, column_span][::stride, ::stride] for a in range(k) for b in range(k)]
            patches = jnp.concatenate(taps, -1).reshape(h * w, -1)
            return total + image_g.reshape(h * w, o).T @ patches, None  # the transposed product is slower

        total, _ = jax.lax.scan(add, jnp.zeros((o, kernel[..., 0].size), g.dtype), (x, g))
        (x_gradient,) = jax.vjp(lambda x: convolve(x, kernel), x)[1](g)
        return x_gradient, total.T.reshape(kernel.shape)

    convolution.defvjp(forward, backward)
    return convolution


conv_imagewise, conv_stride2_imagewise = (
    with_imagewise_gradient(xla_conv, 1),
    with_imagewise_gradient(xla_conv_stride2, 2),
)
