"""What would an ensemble's candidates earn and cost, in one GPU kernel? The whole rollout of `models.ensemble` at once.

A program of the kernel takes one member and a tile of its rows (candidate × particle). It keeps their states on the chip for
all H steps, so that nothing but the member's weights, which stay in the cache, is read again from step to step. Sizes are
padded with zeros to what matrix units take; the noise is drawn outside, as the plain rollout draws it, so that results do
not depend on the tiling. On a CPU the same kernel is interpreted, which is slow and there for tests.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Float

from capax.planning.ccem import Imagined
from capax.types import Key

MEASURED: tuple[str, ...] = ("9.0",)
"""Compute capabilities ("9.0" is an H100 and an H200) on which `benchmarks/fused.py` has shown that the kernel agrees and
gains; there the setting `auto` takes it."""
LEAST = 16
"""What matrix units take at least, of anything."""
WIDEST, MOST = 64, 256
"""Columns of a state with what stands beside it, and units of a hidden layer, that a tile has registers for."""
ON_CHIP = 227 * 1024
"""Bytes of weights that a program may keep at hand (H100, H200, A100: 163 KiB)."""


class Tiling(NamedTuple):
    """How the work is cut; changes the speed, and results by rounding only."""

    rows: int = 64
    """Rows of a program: a power of two, 16 or more; 64 or more for the fast matrix units of an H100."""
    warps: int = 4
    stages: int = 1
    """Hidden layers whose weights are on their way at once, the one at work included."""
    piece: int = 128
    """The widest piece that a layer is cut into: a power of two."""
    kept: tuple[int, ...] = (0, -1)
    """Matrices, counted from 0 at the inputs, whose weights stay on the chip for all steps. With more than one stage, the
    first (0) and the last (−1) at most."""


USUAL, ROOMY = Tiling(), Tiling(128, 8, kept=(1, 2))
"""Two programs to a multiprocessor of an H100, where the first and the last matrix find room beside what is on its way; and
one of twice the rows, which keeps two hidden layers and is quicker where these find room."""


class Block(NamedTuple):
    """A piece of a matrix: where it begins among the weights, where in the matrix, and its sizes, powers of two."""

    at: int
    top: int
    left: int
    k: int
    n: int


class Shape(NamedTuple):
    """Sizes of a packed ensemble; all but the states' are padded."""

    states: int
    wide: int
    """Columns of a state with room beside it: for the action on the way in; reward, cost and ending on the way out."""
    hidden: int
    layers: int

    @classmethod
    def of(cls, states: int, actions: int, hidden: int, layers: int) -> Shape:
        wide = max(LEAST, pl.next_power_of_2(states + max(actions, 3)))
        return cls(states, wide, -(-hidden // LEAST) * LEAST, layers)

    def blocks(self, piece: int) -> list[list[list[Block]]]:
        """Of each matrix, the blocks of each piece of its columns."""
        cuts, at, matrices = pieces(self.hidden, piece), 0, []
        downs, acrosses = [[self.wide], *[cuts] * self.layers], [*[cuts] * self.layers, [self.wide] * 2]
        for down, across in zip(downs, acrosses, strict=True):
            matrix = []
            for j, n in enumerate(across):
                column = []
                for i, k in enumerate(down):
                    column.append(Block(at, sum(down[:i]), sum(across[:j]), k, n))
                    at += k * n
                matrix.append(column)
            matrices.append(matrix)
        return matrices


class Packed(NamedTuple):
    """An ensemble as the kernel reads it."""

    weights: Float[Array, "E M"]
    """Block after block. Hidden layers are halved, for `swish`; the last one gives the means (of Δs, reward, cost and the
    logit of the end), then the log-variances of Δs."""
    biases: Float[Array, "E B"]
    units: Float[Array, "9 W"]
    """Input mean and deviation, target mean and deviation, low, high, largest and least log-variance, whether it ends."""


def refusal(states: int, actions: int, hidden: int, layers: int, dtype: Any, tiling: Tiling = USUAL) -> str:
    """Why the kernel cannot take an ensemble of these sizes; nothing if it can."""
    shape = Shape.of(states, actions, hidden, layers)
    if shape.wide > WIDEST:
        return f"has room for {WIDEST} states and actions, of which there are {states} and {actions}"
    if shape.hidden > MOST:
        return f"has room for {MOST} units in a hidden layer, which has {hidden}"
    columns = [[sum(b.k * b.n for b in column) for column in matrix] for matrix in shape.blocks(tiling.piece)]
    still = sum(sum(columns[number]) for number in tiling.kept)
    moving = sum(columns[1]) * tiling.stages if tiling.stages > 1 else max(max(sizes) for sizes in columns)
    needed = (still + moving) * jnp.dtype(dtype).itemsize
    return f"needs {needed // 1024} KiB on the chip, which has {ON_CHIP // 1024}" if needed > ON_CHIP else ""


def tiling_for(states: int, actions: int, hidden: int, layers: int, dtype: Any) -> Tiling:
    """The quicker of the two that has room."""
    roomy = layers >= 3 and not refusal(states, actions, hidden, layers, dtype, ROOMY)
    return ROOMY if roomy else USUAL


def pack(net: Any, scale: Any, *, dtype: Any, piece: int = USUAL.piece) -> Packed:
    """Pad, cut and cast once per fit what every plan reads."""
    (E, inputs, hidden), S = net.weights[0].shape, scale.low.shape[0]
    D, shape = S + 2, Shape.of(S, inputs - S, hidden, len(net.weights) - 1)
    W, K = shape.wide, shape.hidden

    def wide(x: Any, *sizes: int, fill: float = 0.0) -> Any:
        beyond = [(0, n - m) for n, m in zip(sizes, x.shape[-len(sizes) :], strict=True)]
        return jnp.pad(x, [(0, 0)] * (x.ndim - len(sizes)) + beyond, constant_values=fill)

    def heads(x: Any) -> Any:
        means = jnp.concatenate([x[..., :D], x[..., 2 * D : 2 * D + 1]], -1)
        return jnp.concatenate([wide(means, W), wide(x[..., D : D + S], W)], -1)

    weights = [wide(net.weights[0], W, K), *(wide(w, K, K) for w in net.weights[1:-1])]
    weights = [*(w / 2.0 for w in weights), wide(heads(net.weights[-1]), K, 2 * W)]
    biases = [*(wide(b[:, 0], K) / 2.0 for b in net.biases[:-1]), heads(net.biases[-1][:, 0])]
    blocks = [
        w[:, b.top : b.top + b.k, b.left : b.left + b.n].reshape(E, b.k * b.n)
        for w, matrix in zip(weights, shape.blocks(piece), strict=True)
        for column in matrix
        for b in column
    ]
    units = [
        wide(scale.input_mean[:S], W),
        wide(scale.input_sd[:S], W, fill=1.0),
        wide(scale.target_mean, W),
        wide(scale.target_sd, W, fill=1.0),
        wide(scale.low, W),
        wide(scale.high, W),
        wide(net.max_logvar[:S], W),
        wide(net.min_logvar[:S], W),
        jnp.full(W, scale.ends, jnp.float32),
    ]
    return Packed(jnp.concatenate(blocks, 1).astype(dtype), jnp.concatenate(biases, 1), jnp.stack(units))


def rollout(
    params: tuple[Packed, Any],
    start: Float[Array, " S"],
    actions: Float[Array, "N H A"],
    key: Key,
    *,
    particles: int,
    hidden: int,
    layers: int,
    floor: float,
    tiling: Tiling = USUAL,
    interpret: bool = False,
) -> Imagined:
    """What `models.ensemble.rollout` returns, of a packed ensemble and its scaling."""
    net, scale = params
    E, dtype = net.weights.shape[0], net.weights.dtype
    G, S = particles // E, start.shape[0]
    N, H, A = actions.shape
    shape = Shape.of(S, A, hidden, layers)
    noise = jr.normal(key, (H, E, 1, G, S))[:, :, 0]
    moves = ((actions - scale.input_mean[S:]) / scale.input_sd[S:]).astype(dtype)
    tiles = -(-N * G // tiling.rows)
    exact = interpret or dtype != jnp.bfloat16
    parts = pl.pallas_call(
        partial(_kernel, shape=shape, floor=floor, tiling=tiling, exact=exact),
        out_shape=[jax.ShapeDtypeStruct((-(-tiles * tiling.rows // G), particles, H), jnp.float32)] * 4,
        grid=(tiles, E),
        compiler_params=plgpu.CompilerParams(num_warps=tiling.warps, num_stages=tiling.stages),
        interpret=interpret,
        name="rollout",
    )(*net, start, moves, noise)
    reward, cost, spread, alive = (part[:N] for part in parts)  # each [N P H]
    u = spread.reshape(N, E, G, H).max(1, keepdims=True)
    return Imagined(reward, cost, jnp.broadcast_to(u, (N, E, G, H)).reshape(spread.shape), alive)


def _kernel(*refs: Any, shape: Shape, floor: float, tiling: Tiling, exact: bool) -> None:
    """One member's rows of one tile, all H steps."""
    weights, biases, units, begin, moves, noise, *outs = refs
    S, W, K, L = shape
    (N, H, A), G, rows, dtype = moves.shape, noise.shape[2], tiling.rows, weights.dtype
    # below a known bound, an address is a register and a constant; without it, a register for each, more than there are
    member = pl.program_id(1) & (pl.next_power_of_2(weights.shape[0]) - 1)
    row, lanes = pl.program_id(0) * rows + jnp.arange(rows), jnp.arange(W)
    candidate, particle = jnp.minimum(row // G, N - 1), row % G  # rows beyond the last candidate repeat it
    column = jax.lax.broadcasted_iota(jnp.int32, (rows, W), 1)
    matrices = shape.blocks(tiling.piece)

    def unit(number: int) -> Any:
        return units[number, :][None, :]

    def read(b: Block, past: Any = 0) -> Any:
        index = b.at + past * K * K + b.n * jnp.arange(b.k)[:, None] + jnp.arange(b.n)[None, :]
        return plgpu.load(weights.at[member, index])

    kept = {b: read(b) for number in tiling.kept for blocks in matrices[number] for b in blocks}

    def dense(h: Any, number: int, blocks: Any, past: Any = 0) -> Any:
        """h W + b, of pieces of h and one piece of the columns of a matrix, or of the one so many after it."""
        parts = [kept[b] if b in kept else read(b, past) for b in blocks]
        total = sum(jnp.dot(x, w, preferred_element_type=jnp.float32) for x, w in zip(h, parts, strict=True))
        return total + biases[member, pl.ds((number + past) * K + blocks[0].left, blocks[0].n)][None, :]

    def layer(h: Any, number: int, past: Any = 0) -> Any:
        return tuple(swish(dense(h, number, blocks, past), exact).astype(dtype) for blocks in matrices[number])

    def step(t: Any, carry: Any) -> Any:
        state, alive = carry
        move = plgpu.load(moves.at[candidate[:, None], t, jnp.clip(lanes - S, 0, A - 1)[None, :]])
        eps = plgpu.load(noise.at[t, member, particle[:, None], jnp.minimum(lanes, S - 1)[None, :]])
        h = layer((jnp.where(column < S, ((state - unit(0)) / unit(1)).astype(dtype), move),), 0)
        if tiling.stages > 1:  # a loop, which is what the compiler fetches ahead in
            h = jax.lax.fori_loop(0, L - 1, lambda past, h: layer(h, 1, past), h)
        else:
            for number in range(1, L):
                h = layer(h, number)
        mean, raw = (dense(h, L, blocks) for blocks in matrices[L])
        logvar = unit(6) - softplus(unit(6) - raw, exact)
        sigma = exp(0.5 * (unit(7) + softplus(logvar - unit(7), exact)), exact)
        y = (mean + jnp.where(column < S, sigma * eps, 0.0)) * unit(3) + unit(2)

        def pick(number: int) -> Any:
            return jnp.sum(jnp.where(column == number, y, 0.0), axis=1)

        spread = jnp.sqrt(jnp.sum(jnp.where(column < S, sigma * sigma + floor**2, 0.0), axis=1))
        for out, told in zip(outs, (pick(S), pick(S + 1), spread, alive), strict=True):
            plgpu.store(out.at[row // G, member * G + particle, t], told)
        moved = state + y
        moved = jnp.where(moved < unit(4), unit(4), jnp.where(moved > unit(5), unit(5), moved))  # keeps what is NaN
        ended = (pick(S + 2) > 0.0) & (units[8, 0] > 0.0)
        return jnp.where(column < S, moved, 0.0), jnp.where(ended, 0.0, alive)

    begun = plgpu.load(begin.at[jnp.minimum(column, S - 1)])
    first = jnp.where(column < S, begun, 0.0), jnp.ones(rows, jnp.float32)
    jax.lax.fori_loop(0, H, step, first)


def pieces(size: int, most: int) -> list[int]:
    """Powers of two, largest first, that make up a multiple of 16:  208 = 128 + 64 + 16."""
    cuts: list[int] = []
    while size:
        cuts.append(min(most, 1 << (size.bit_length() - 1)))
        size -= cuts[-1]
    return cuts


def swish(half: Float[Array, ...], exact: bool) -> Float[Array, ...]:
    """x σ(x) = x/2 + x/2 tanh(x/2), of x/2; the hardware's tanh is one instruction, and right to 2⁻¹¹."""
    return 2.0 * half / (1.0 + jnp.exp(-2.0 * half)) if exact else half + half * plgpu.approx_tanh(half)


def softplus(x: Float[Array, ...], exact: bool) -> Float[Array, ...]:
    beyond = 1.0 + exp(-jnp.abs(x), exact)
    return jnp.maximum(x, 0.0) + (
        jnp.log(beyond) if exact else math.log(2.0) * _instruction("lg2.approx.ftz.f32", beyond)
    )


def exp(x: Float[Array, ...], exact: bool) -> Float[Array, ...]:
    return jnp.exp(x) if exact else _instruction("ex2.approx.ftz.f32", x / math.log(2.0))


def _instruction(name: str, x: Float[Array, ...]) -> Float[Array, ...]:
    """One of the hardware's for every number; these two are right to 2⁻²²."""
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return plgpu.elementwise_inline_asm(
        f"{name} $0, $1;", args=[x], constraints="=f,f", pack=1, result_shape_dtypes=[shape]
    )[0]
