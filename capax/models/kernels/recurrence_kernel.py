"""GPU kernel for the recurrence of `models.rssm_rollout`: the imagined beliefs of all candidates.

A cluster of programs takes a tile of 64 candidates for all H steps. Each program computes some columns of h and of the
prior's hidden layer, keeps their weights on its chip, and sends its columns to the others. s needs all columns, and
every program computes all of it. So a step reads only actions and noise from memory, and exchanges columns twice: a
program writes its columns to memory, and one copy brings them to all programs of the cluster. As in `ensemble_kernel`,
biases are rows of the matrices, multiplied by columns that are always 1. On a CPU the kernel is interpreted, as one
program that computes all columns.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Float

from capax.models.kernels.ensemble_kernel import (
    BIAS_COLUMNS,
    CHIP_BYTES,
    MAX_UNITS,
    TILE_ROWS,
    InterpretedOps,
    WgmmaOps,
    chip_buffer,
    padded_size,
    softplus,
)

PART_COLUMNS, MAX_PARTS = 32, 8
"""Columns that a program computes, and the most programs of a cluster."""
GATE_KEEP_LOGIT = 60.0
"""Logit of an update gate that keeps the ones of h at 1."""


class Shape(NamedTuple):
    """Sizes of a packed recurrence."""

    parts: int
    """Programs of a cluster."""
    columns: int
    """Columns of h and of the hidden layer that each program computes."""
    x_columns: int
    """Columns of x, the GRU's input, with the ones."""
    stoch: int
    """Columns of s, padded."""
    action_columns: int
    """Columns of an action, with the ones."""

    @classmethod
    def of(cls, deter: int, hidden: int, stoch: int, actions: int, columns: int = PART_COLUMNS) -> Shape:
        parts = -(-(max(deter, hidden) + BIAS_COLUMNS) // columns)
        x_columns, action_columns = padded_size(deter + BIAS_COLUMNS), padded_size(actions + BIAS_COLUMNS)
        return cls(parts, columns, x_columns, padded_size(stoch), action_columns)

    @property
    def bytes(self) -> int:
        """Bytes on the chip of a program, in bfloat16: weights, then the tile's h and hidden layer."""
        all_columns, own_columns = self.parts * self.columns, self.columns
        to_and_from_x = (self.stoch + self.action_columns + 3 * own_columns) * self.x_columns
        from_h_and_hidden = all_columns * (4 * own_columns + 2 * self.stoch)
        return 2 * (to_and_from_x + from_h_and_hidden + 2 * TILE_ROWS * all_columns)

    def noise_steps(self, steps: int) -> int:
        """Steps of noise that are loaded at once: all if one copy can bring them and the chip has room, else one."""
        return steps if steps <= MAX_UNITS and self.bytes + 4 * steps * self.stoch <= CHIP_BYTES else 1


class Packed(NamedTuple):
    """A recurrence as the kernel reads it: C parts with P columns each, X columns of x."""

    s_weights: Float[Array, "S X"]
    action_weights: Float[Array, "M X"]
    x_gates: Float[Array, "C X 3*P"]
    """Gates of a part's columns: new, reset, update. The last two are halved, for σ(x) = ½ + ½ tanh(x/2)."""
    h_gates: Float[Array, "C C P 3*P"]
    """The same gates, for each part's columns of h."""
    hidden: Float[Array, "C C P P"]
    prior: Float[Array, "C P 2*S"]
    """Means and raw standard deviations of s."""

    @property
    def shape(self) -> Shape:
        (S, X), (C, _, _, P) = self.s_weights.shape, self.hidden.shape
        return Shape(C, P, X, S, self.action_weights.shape[0])


class StartBeliefs(NamedTuple):
    """Start beliefs as the kernel reads them."""

    h: Float[Array, "C rows P"]
    s: Float[Array, "rows S"]


class BeliefTiles(NamedTuple):
    """Beliefs in the layout of the kernel. Rows are candidates, padded to whole tiles."""

    h_start: Float[Array, "C rows P"]
    """h before the first step."""
    h: Float[Array, "T C rows P"]
    """The parts one after another, each with its columns. After h's own columns come the ones, then zeros."""
    s: Float[Array, "T rows S"]
    actions: Float[Array, "T rows M"]
    """Actions. The last columns are the ones."""


def fits(deter: int, hidden: int, stoch: int, actions: int) -> bool:
    """Whether the chip has room for a model of these sizes."""
    shape = Shape.of(deter, hidden, stoch, actions)
    return shape.parts <= MAX_PARTS and shape.x_columns <= MAX_UNITS and shape.bytes <= CHIP_BYTES


def pack(net: Any, dtype: Any = jnp.bfloat16, columns: int = PART_COLUMNS) -> Packed:
    """Pad, split and cast the parameters that every step reads, once per fit."""
    (first, second), D, S = net.prior, net.gru.h.w.shape[0], net.prior[1].w.shape[1] // 2
    U, A = first.w.shape[1], net.embed.w.shape[0] - S
    C, P, X, S_padded, M = Shape.of(D, U, S, A, columns)
    all_columns = C * P

    def gates(layer: Any, rows: int, biases: tuple[Any, ...]) -> Any:
        """The matrices new, reset and update, `[rows all_columns]` each, with their biases."""
        r, z, n = jnp.split(layer.w, 3, -1)
        matrices = [pad_float32(part, rows, all_columns) for part in (n, r / 2.0, z / 2.0)]
        return [with_bias_rows(part, bias, D, dtype) for part, bias in zip(matrices, biases, strict=True)]

    def split_into_parts(matrices: list[Any], rows: int) -> Any:
        """`[C rows 3*P]`: for each part, its columns of each matrix side by side."""
        stacked = jnp.stack(matrices, 1).reshape(rows, len(matrices), C, P)
        return stacked.transpose(2, 0, 1, 3).reshape(C, rows, len(matrices) * P)

    (rx, zx, nx), (rh, zh, nh) = (jnp.split(layer.b.astype(jnp.float32), 3) for layer in (net.gru.x, net.gru.h))
    no_bias = jnp.zeros(D)
    x_gates = gates(net.gru.x, X, (nx, (rx + rh) / 2.0, (zx + zh) / 2.0))
    x_gates[2] = keep_ones(x_gates[2], D, D, GATE_KEEP_LOGIT)
    h_gates = gates(net.gru.h, all_columns, (nh, no_bias, no_bias))
    action_matrix = with_bias_rows(pad_float32(net.embed.w[S:], M, X), net.embed.b, M - BIAS_COLUMNS, dtype)
    layer = with_bias_rows(pad_float32(first.w, all_columns, all_columns), first.b, D, dtype)
    heads = [
        with_bias_rows(pad_float32(w, all_columns, S_padded), b, U, dtype)
        for w, b in zip(jnp.split(second.w, 2, -1), jnp.split(second.b, 2), strict=True)
    ]
    packed = Packed(
        pad_float32(net.embed.w[:S], S_padded, X),
        keep_ones(action_matrix, M - BIAS_COLUMNS, D),
        split_into_parts(x_gates, X),
        split_into_parts(h_gates, all_columns).reshape(C, C, P, 3 * P),
        split_into_parts([keep_ones(layer, D, U)], all_columns).reshape(C, C, P, P),
        jnp.concatenate(heads, 1).reshape(C, P, 2 * S_padded),
    )
    return jax.tree.map(lambda part: part.astype(dtype), packed)


def pad_float32(x: Any, *sizes: int) -> Any:
    """x in float32, padded with zeros to these sizes."""
    return jnp.pad(x.astype(jnp.float32), [(0, n - m) for n, m in zip(sizes, x.shape, strict=True)])


def with_bias_rows(matrix: Any, bias: Any, ones_row: int, dtype: Any) -> Any:
    """A matrix with a bias in the rows of the ones: its rounded value and its rounding error."""
    bias = bias.astype(jnp.float32)
    rounded = bias.astype(dtype).astype(jnp.float32)
    return matrix.at[ones_row, : len(bias)].set(rounded).at[ones_row + 1, : len(bias)].set(bias - rounded)


def keep_ones(matrix: Any, row: int, column: int, value: float = 1.0) -> Any:
    """A matrix with entries that map columns of ones to columns of ones."""
    return matrix.at[row, column : column + BIAS_COLUMNS].set(value)


def append_ones(x: Float[Array, "... n"], columns: int, ones: int, dtype: Any) -> Float[Array, "... columns"]:
    """x, columns of ones after it, then zeros."""
    x = jnp.concatenate([x.astype(dtype), jnp.ones((*x.shape[:-1], ones), dtype)], -1)
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, columns - x.shape[-1])])


def prepare_start(packed: Packed, h: Float[Array, "*N H"], s: Float[Array, "*N S"], candidates: int) -> StartBeliefs:
    """Start beliefs as rows of the tiles: one belief for all candidates, or one for each."""
    C, P, _, S_padded, _ = packed.shape

    def tile_rows(x: Any, columns: int, ones: int) -> Any:
        x = append_ones(x, columns, ones, packed.s_weights.dtype)
        return jnp.pad(jnp.broadcast_to(x, (candidates, columns)), ((0, -candidates % TILE_ROWS), (0, 0)))

    return StartBeliefs(tile_rows(h, C * P, BIAS_COLUMNS).reshape(-1, C, P).swapaxes(0, 1), tile_rows(s, S_padded, 0))


def pad_noise(noise: Float[Array, "T S"]) -> Float[Array, "T wide"]:
    """Noise padded to the columns that the kernel reads."""
    return append_ones(noise, padded_size(noise.shape[-1]), 0, jnp.float32)


def recurrence(
    packed: Packed,
    starts: StartBeliefs,
    actions: Float[Array, "N T A"],
    noise: Float[Array, "T S"],
    *,
    min_sd: float,
    interpret: Any = None,
) -> BeliefTiles:
    """The beliefs that `models.rssm_rollout.recurrence` returns, from a packed model, with their inputs.

    `starts` may have more rows than there are candidates. Noise may be padded already.
    """
    (N, T, _), M, dtype = actions.shape, packed.shape.action_columns, packed.s_weights.dtype
    rows = -(-N // TILE_ROWS) * TILE_ROWS
    starts = StartBeliefs(starts.h[:, :rows], starts.s[:rows])
    columns = [append_ones(actions, M - BIAS_COLUMNS, 0, dtype), jnp.ones((N, T, BIAS_COLUMNS), dtype)]
    padded_actions = jnp.concatenate(columns, -1)
    padded_actions = jnp.pad(padded_actions, ((0, rows - N), (0, 0), (0, 0))).swapaxes(0, 1)
    hs, ss, _ = _kernel(packed.shape, T, rows, min_sd, interpret)(*packed, *starts, padded_actions, pad_noise(noise))
    return BeliefTiles(starts.h, hs, ss, padded_actions)


def _kernel(shape: Shape, steps: int, rows: int, min_sd: float, interpret: Any) -> Any:
    """The kernel that computes h `[T C rows P]` and s `[T rows S]`.

    It reads a packed recurrence, a first h and s, actions and noise. Its third output `[C rows P]` is where programs
    exchange columns of the hidden layer.
    """
    (C, P, X, S, M), dtype = shape, jnp.float32 if interpret else jnp.bfloat16

    buffer, part_buffer = partial(chip_buffer, interpret), partial(chip_buffer, interpret, tile=P)
    weights = buffer(S, X), buffer(M, X), buffer(X, 3 * P), part_buffer(C, P, 3 * P), part_buffer(C, P, P)
    tile_buffers = (
        part_buffer(C, P, 2 * S),
        part_buffer(C, TILE_ROWS, P),
        part_buffer(C, TILE_ROWS, P),
        plgpu.SMEM((shape.noise_steps(steps), S), jnp.float32),
    )
    free = plgpu.Barrier() if interpret else plgpu.ClusterBarrier(collective_axes=("part",))
    barriers = plgpu.Barrier(num_arrivals=5 + 3 * C), plgpu.Barrier(), plgpu.Barrier(), free

    def program(*refs: Any) -> None:
        def with_buffers(*scratch: Any) -> None:
            part = jnp.int32(0) if interpret else lax.axis_index("part")
            ops = SingleProgramOps() if interpret else ClusterOps()
            _imagine(shape, steps, min_sd, (part, lax.axis_index("tile") * TILE_ROWS), refs, scratch, ops)

        pl.run_scoped(with_buffers, *weights, *tile_buffers, *barriers, collective_axes="group")

    return plgpu.kernel(
        program,
        out_type=[jax.ShapeDtypeStruct(size, dtype) for size in ((steps, C, rows, P), (steps, rows, S), (C, rows, P))],
        grid=(rows // TILE_ROWS,),
        grid_names=("tile",),
        cluster=() if interpret else (C,),
        cluster_names=() if interpret else ("part",),
        num_threads=1,
        thread_name="group",
        compiler_params=plgpu.CompilerParams(approx_math=True, unsafe_no_auto_barriers=True),
        interpret=interpret,
    )


def _imagine(shape: Shape, steps: int, min_sd: float, tile: Any, refs: Any, scratch: Any, ops: Any) -> None:
    """All steps of one tile, for one part's columns."""
    s_weights, action_weights, x_gates, h_gates, hidden, prior, h_start, s_start, actions, noise, *outs = refs
    w_s, w_action, w_x, w_h, w_hidden, w_prior, h_all, u_all, eps, loaded, h_arrived, u_arrived, h_free = scratch
    (h_out, s_out, u_out), (_, P, _, S, _), (part, row) = outs, shape, tile
    all_parts, rows = range(shape.parts), pl.ds(row, TILE_ROWS)
    first_noise = noise.at[pl.ds(0, eps.shape[0])]
    inputs = (
        (s_weights, w_s),
        (action_weights, w_action),
        (x_gates.at[part], w_x),
        (h_start.at[:, rows], h_all),
        (first_noise, eps),
    )
    for source, target in inputs:
        plgpu.copy_gmem_to_smem(source, target, loaded)
    for other in all_parts:
        own = h_gates.at[part, other], hidden.at[part, other], prior.at[other]
        for source, target in zip(own, (w_h, w_hidden, w_prior), strict=True):
            plgpu.copy_gmem_to_smem(source, target.at[other], loaded)
    plgpu.barrier_wait(loaded)

    def product(left: Any, right: Any) -> Any:
        """Σ over the columns of all parts."""
        return ops.product([(left.at[other], right.at[other]) for other in all_parts])

    def step(t: Any, carry: Any) -> Any:
        own, s, from_h, action = carry
        next_action = ops.tile(actions.at[jnp.minimum(t + 1, steps - 1), rows])
        x = ops.narrow(jnp.maximum(ops.product([(ops.narrow(s), w_s), (action, w_action)]), 0.0))
        from_x = ops.product([(x, w_x)])
        r, z = (0.5 + 0.5 * jnp.tanh(from_x[:, at : at + P] + from_h[:, at : at + P]) for at in (P, 2 * P))
        new = jnp.tanh(from_x[:, :P] + r * from_h[:, :P])
        own = new + z * (own - new)
        plgpu.barrier_wait(h_free)  # no program still reads the old h
        ops.send(part, ops.narrow(own), h_all, h_out.at[t, :, rows], h_arrived)
        plgpu.barrier_wait(h_arrived)
        ops.send(part, ops.narrow(jnp.maximum(product(h_all, w_hidden), 0.0)), u_all, u_out.at[:, rows], u_arrived)
        from_h = product(h_all, w_h)  # while the hidden layer's columns arrive
        plgpu.barrier_arrive(h_free)
        plgpu.barrier_wait(u_arrived)
        y = product(u_all, w_prior)
        s = y[:, :S] + (softplus(y[:, S:]) + min_sd) * ops.columns((eps if eps.shape[0] == steps else noise).at[t], S)

        @pl.when(part == 0)
        def _() -> None:
            s_out[t, rows] = ops.narrow(s)

        return own, s, from_h, next_action

    from_h = product(h_all, w_h)
    plgpu.barrier_arrive(h_free)
    own, s = (ops.widen(ops.tile(ref)) for ref in (h_start.at[part, rows], s_start.at[rows]))
    lax.fori_loop(0, steps, step, (own, s, from_h, ops.tile(actions.at[0, rows])))
    plgpu.barrier_wait(h_free)


class ClusterOps(WgmmaOps):
    """Operations of a program of a cluster."""

    def narrow(self, x: Any) -> Any:
        """The type that products read."""
        return x.astype(jnp.bfloat16)

    def widen(self, x: Any) -> Any:
        """The type that sums are kept in."""
        return x.astype(jnp.float32)

    def finish_reads(self) -> None:
        """Wait until all warps have finished their reads."""
        plgpu.commit_smem()

    def send(self, part: Any, value: Any, tiles: Any, out: Any, barrier: Any) -> None:
        """Send a part's columns to the tiles of every program of the cluster, by way of `out`."""
        tiles[part] = value
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(tiles.at[part], out.at[part])
        plgpu.wait_smem_to_gmem(0)
        plgpu.copy_gmem_to_smem(out, tiles, barrier, collective_axes="part")  # each sends the part that it wrote


class SingleProgramOps(InterpretedOps):
    """The same operations in one program that computes all columns."""

    def narrow(self, x: Any) -> Any:
        return x

    widen = narrow

    def finish_reads(self) -> None:
        pass

    def send(self, part: Any, value: Any, tiles: Any, out: Any, barrier: Any) -> None:
        tiles[part] = value
        out[part] = value
        plgpu.barrier_arrive(barrier)
