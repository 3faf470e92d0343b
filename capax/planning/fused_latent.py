"""What would candidates lead to among an image model's beliefs, with one GPU kernel and one product for each step?

A step of `models.rssm` is five small products with something between each two, and as many launches. Here the kernel takes all
of them but the one that needs the whole new h,

    hidden ─ s ─ x ─ gates of x ┐
    gates of h ─────────────────┴─ h'          and then      (gates of h', hidden') = h' W,

and leaves that one to the library. A program of the kernel has a tile of rows (candidates) and some columns of h'; what leads
to them, s and x, every program of the same rows makes for itself. Sizes are padded with zeros to powers of two. On a CPU the
kernel is interpreted, which is slow and there for tests.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Float

from capax.planning.fused import LEAST, exp, softplus

MEASURED: tuple[str, ...] = ()
"""Compute capabilities on which `benchmarks/fused_latent.py` has shown that the kernel agrees and gains; taken there."""
ROWS, COLUMNS, WARPS = 64, 32, 4
"""Of a program."""
MOST = 256
"""Units of h and of a hidden layer that a tile has registers for."""


class Packed(NamedTuple):
    """The recurrence as the kernel reads it: D columns of h, U hidden ones, W of a state beside its action."""

    prior: Float[Array, "2 U W"]
    """Means and raw deviations of s."""
    embed: Float[Array, "W D"]
    gates: Float[Array, "3 D D"]
    """Of x: reset, update, new."""
    after: Float[Array, "D 3*D+U"]
    """What a new h is multiplied with: the gates of h, then the hidden layer of the prior."""
    b_prior: Float[Array, "2 W"]
    b_embed: Float[Array, " D"]
    b_gates: Float[Array, "6 D"]
    """Of x, then of h."""
    b_hidden: Float[Array, " U"]


def width(size: int) -> int:
    return max(LEAST, pl.next_power_of_2(size))


def refused(deter: int, hidden: int) -> bool:
    """Whether a model is too wide for the kernel."""
    return max(width(deter), width(hidden)) > MOST


def pack(net: Any, dtype: Any) -> Packed:
    """Pad and cast once per plan what every step reads."""
    D, U = width(net.gru.h.w.shape[0]), width(net.prior[0].w.shape[1])
    W = width(net.embed.w.shape[0])

    def padded(x: Any, *sizes: int) -> Any:
        return jnp.pad(x, [(0, n - m) for n, m in zip(sizes, x.shape, strict=True)])

    def three(x: Any, *sizes: int) -> list[Any]:
        return [padded(part, *sizes) for part in jnp.split(x, 3, -1)]

    first, second = net.prior
    after = jnp.concatenate([*three(net.gru.h.w, D, D), padded(first.w, D, U)], 1)
    weights = (
        jnp.stack([padded(part, U, W) for part in jnp.split(second.w, 2, -1)]),
        padded(net.embed.w, W, D),
        jnp.stack(three(net.gru.x.w, D, D)),
        after,
    )
    biases = (
        jnp.stack([padded(part, W) for part in jnp.split(second.b, 2, -1)]),
        padded(net.embed.b, D),
        jnp.stack([*three(net.gru.x.b, D), *three(net.gru.h.b, D)]),
        padded(first.b, U),
    )
    return Packed(*(part.astype(dtype) for part in weights), *(part.astype(jnp.float32) for part in biases))


def recurrence(
    net: Any,
    h: Float[Array, "*N H"],
    s: Float[Array, "*N S"],
    actions: Float[Array, "N T A"],
    noise: Float[Array, "T S"],
    *,
    min_sd: float,
    dtype: Any,
    interpret: bool = False,
) -> tuple[Float[Array, "T N H"], Float[Array, "T N S"]]:
    """What `models.imagine.recurrence` returns."""
    packed = pack(net, dtype)
    (N, T, _), S, H = actions.shape, s.shape[-1], h.shape[-1]
    D, W = packed.embed.shape[1], packed.embed.shape[0]
    moves = actions.astype(dtype)
    eps = jnp.pad(noise.astype(jnp.float32), ((0, 0), (0, W - S)))
    now = jnp.pad(jnp.atleast_2d(h), ((0, 0), (0, D - H))).astype(dtype)  # one belief for all, or one for each
    begun = jnp.pad(jnp.atleast_2d(s), ((0, 0), (0, W - S))).astype(jnp.float32)
    hs, ss = [], []
    for t in range(T):
        after = jnp.dot(now, packed.after, preferred_element_type=jnp.float32).astype(dtype)
        shapes = jax.ShapeDtypeStruct((N, D), dtype), jax.ShapeDtypeStruct((N, W), jnp.float32)
        exact = interpret or dtype != jnp.bfloat16
        now, s_now = pl.pallas_call(
            partial(_kernel, t=t, states=S, rows=len(now), count=N, min_sd=min_sd, exact=exact),
            out_shape=shapes,
            grid=(-(-N // ROWS), D // min(COLUMNS, D)),
            compiler_params=plgpu.CompilerParams(num_warps=WARPS, num_stages=1),
            interpret=interpret,
            name="imagine",
        )(*packed, after, now, begun, moves, eps)
        hs.append(now)
        if t > 0:
            ss.append(s_now)
    hidden = jax.nn.relu(now @ packed.after[:, 3 * D :] + packed.b_hidden).astype(dtype)
    mean, raw = (hidden @ packed.prior[i] + packed.b_prior[i] for i in (0, 1))
    ss.append(mean + (jax.nn.softplus(raw) + min_sd) * eps[-1])
    return jnp.stack(hs)[..., :H], jnp.stack(ss)[..., :S].astype(dtype)


def _kernel(*refs: Any, t: int, states: int, rows: int, count: int, min_sd: float, exact: bool) -> None:
    """Some columns of h after a step, for some candidates; s before the step, in the first columns' program."""
    prior, embed, gates, _, b_prior, b_embed, b_gates, b_hidden, after, h, begun, moves, eps, h_out, s_out = refs
    W, D = embed.shape
    U, A, dtype = prior.shape[1], moves.shape[2], embed.dtype
    columns = min(COLUMNS, D)
    row = jnp.minimum(pl.program_id(0) * ROWS + jnp.arange(ROWS), count - 1)  # those beyond repeat the last
    at = jnp.minimum(row, rows - 1)[:, None]
    wide, own = jnp.arange(W), pl.program_id(1) * columns + jnp.arange(columns)

    def dot(x: Any, matrix: Any) -> Any:
        return jnp.dot(x, matrix, preferred_element_type=jnp.float32)

    def same(number: int) -> Any:
        """A fixed index beside others that differ."""
        return jnp.full((1, 1), number)

    if t == 0:
        s = plgpu.load(begun.at[at, wide[None, :]])
    else:
        hidden = plgpu.load(after.at[at, 3 * D + jnp.arange(U)[None, :]]) + b_hidden[:][None, :]
        hidden = jnp.maximum(hidden, 0.0).astype(dtype)
        mean, raw = (dot(hidden, prior[i, :, :]) + b_prior[i, :][None, :] for i in (0, 1))
        s = mean + (softplus(raw, exact) + min_sd) * eps[t - 1, :][None, :]
        plgpu.store(s_out.at[row[:, None], wide[None, :]], s)
    move = plgpu.load(moves.at[row[:, None], same(t), jnp.clip(wide - states, 0, A - 1)[None, :]])
    beside = jnp.where(wide[None, :] < states, s.astype(dtype), move)  # beyond the action, weights are 0
    x = jnp.maximum(dot(beside, embed[:, :]) + b_embed[:][None, :], 0.0).astype(dtype)

    def gate(number: int) -> tuple[Any, Any]:
        """Of x and of h, in the columns that are this program's."""
        of_x = dot(x, plgpu.load(gates.at[same(number), jnp.arange(D)[:, None], own[None, :]]))
        of_h = plgpu.load(after.at[at, number * D + own[None, :]]).astype(jnp.float32)
        biases = (plgpu.load(b_gates.at[same(which), own[None, :]]) for which in (number, 3 + number))
        return tuple(part + bias for part, bias in zip((of_x, of_h), biases, strict=True))

    (r_x, r_h), (z_x, z_h), (n_x, n_h) = (gate(number) for number in range(3))
    r, z = sigmoid(r_x + r_h, exact), sigmoid(z_x + z_h, exact)
    n = 2.0 * sigmoid(2.0 * (n_x + r * n_h), exact) - 1.0
    before = plgpu.load(h.at[at, own[None, :]]).astype(jnp.float32)
    plgpu.store(h_out.at[row[:, None], own[None, :]], ((1.0 - z) * n + z * before).astype(dtype))


def sigmoid(x: Float[Array, ...], exact: bool) -> Float[Array, ...]:
    return 1.0 / (1.0 + exp(-x, exact))
