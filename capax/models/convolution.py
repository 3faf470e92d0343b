"""How are images halved and doubled, in a form whose gradient is fast on a CPU too?"""

from __future__ import annotations

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
    """A convolution of stride 1; on a CPU as a product per tap, since XLA's own has a slow gradient there."""
    if jax.default_backend() != "cpu":
        form = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), [(padding, padding)] * 2, dimension_numbers=form)
    return by_taps(x, kernel, padding)


def by_taps(x: Float[Array, "N h w i"], kernel: Float[Array, "k k i o"], padding: int) -> Float[Array, "N _ _ o"]:
    """Σ over the taps of the shifted image times the tap's matrix."""
    x = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    k = kernel.shape[0]
    h, w = x.shape[1] - k + 1, x.shape[2] - k + 1
    patches = jnp.concatenate([x[:, a : a + h, b : b + w] for a in range(k) for b in range(k)], -1)
    return patches @ kernel.reshape(-1, kernel.shape[-1])
