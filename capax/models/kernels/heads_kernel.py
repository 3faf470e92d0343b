"""Two GPU kernels that evaluate imagined beliefs: reward and cost heads, and the members' uncertainty.

A program keeps the weights of one head, or of all members, on its chip. It takes tiles of 64 beliefs one after the
other, of any candidate and step. As in `recurrence_kernel`, biases are rows of the matrices. The members' last two
layers are one block-diagonal matrix for all members.
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
    chip_buffer,
    padded_size,
)
from capax.models.kernels.recurrence_kernel import (
    BeliefTiles,
    ClusterOps,
    Shape,
    SingleProgramOps,
    keep_ones,
    pad_float32,
    with_bias_rows,
)

PROGRAMS = 132
"""Programs of a kernel: one for each processor of an H200."""


class Packed(NamedTuple):
    """Heads and members as the kernels read them: W units of a hidden layer with the ones, V outputs of all members."""

    head_h: Float[Array, "2 C P W"]
    """First layers of the reward and the cost head, for each part's columns of h."""
    head_s: Float[Array, "2 S W"]
    """The same layers, for s."""
    head_second: Float[Array, "2 W W"]
    head_last: Float[Array, "2 W"]
    member_h: Float[Array, "C P V"]
    """First layers of the members, for each part's columns of h."""
    member_action: Float[Array, "3 M V"]
    """Weights of the action in each of the members' layers."""
    member_hidden: Float[Array, "2 V V"]
    """The members' later layers, as block-diagonal matrices."""


def fits(deter: int, hidden: int, stoch: int, actions: int, members: int) -> bool:
    """Whether the chip has room for heads of these sizes, and for all members."""
    C, P, _, S, M = Shape.of(deter, hidden, stoch, actions)
    W, V, tile = padded_size(hidden + BIAS_COLUMNS), members * S, TILE_ROWS * C * P
    heads, all_members = W * (C * P + S + W) + tile + TILE_ROWS * S, V * (C * P + 3 * M + 2 * V) + tile
    return max(W, V) <= MAX_UNITS and 2 * max(heads, all_members) <= CHIP_BYTES


def pack(net: Any, shape: Shape, dtype: Any = jnp.bfloat16) -> Packed:
    """Pad, split and cast the parameters that every plan reads, once per fit."""
    C, P, _, S, M = shape
    D, U = net.gru.h.w.shape[0], net.reward[0].w.shape[1]
    E, _, s = net.members.layers[0].w.shape
    W, V = padded_size(U + BIAS_COLUMNS), E * S

    def head(layers: Any) -> tuple[Any, ...]:
        one, two, three = layers
        first = keep_ones(with_bias_rows(pad_float32(one.w[:D], C * P, W), one.b, D, dtype), D, U)
        second = keep_ones(with_bias_rows(pad_float32(two.w, W, W), two.b, U, dtype), U, U)
        last = pad_float32(three.w[:, 0], W).at[U].set(three.b[0].astype(jnp.float32))
        return first.reshape(C, P, W), pad_float32(one.w[D:], S, W), second, last

    def side_by_side(layer: Any, row_slice: slice, rows: int) -> Any:
        """`[rows V]`: the columns of each member, side by side."""
        return pad_float32(layer.w[:, row_slice], E, rows, S).swapaxes(0, 1).reshape(rows, V)

    def action_matrix(layer: Any, inputs: int) -> Any:
        bias = pad_float32(layer.b[:, 0], E, S).reshape(V)
        return with_bias_rows(side_by_side(layer, slice(inputs, None), M), bias, M - BIAS_COLUMNS, dtype)

    def block_diagonal(layer: Any) -> Any:
        """`[V V]`: each member's matrix at its inputs and outputs, zeros elsewhere."""
        own = pad_float32(layer.w[:, :s], E, S, S)
        return (own[:, :, None] * jnp.eye(E)[:, None, :, None]).reshape(V, V)

    first_layer, *others = net.members.layers
    first, head_s, second, last = (jnp.stack(pair) for pair in zip(head(net.reward), head(net.cost), strict=True))
    packed = Packed(
        first, head_s, second, last,
        side_by_side(first_layer, slice(0, D), C * P).reshape(C, P, V),
        jnp.stack([action_matrix(first_layer, D), *(action_matrix(layer, s) for layer in others)]),
        jnp.stack([block_diagonal(layer) for layer in others]),
    )  # fmt: skip
    return jax.tree.map(lambda part: part.astype(dtype), packed)._replace(head_last=last)


def evaluate(
    packed: Packed,
    tiles: BeliefTiles,
    *,
    members: int,
    stoch: int,
    interpret: Any = None,
) -> tuple[Float[Array, "T rows"], Float[Array, "T rows"], Float[Array, "T rows"]]:
    """Reward, cost (or its logit) and the members' variance u of every step."""
    h_start, h, s, actions = tiles
    T, C, rows, P = h.shape
    sizes = C, P, s.shape[-1], actions.shape[-1], T, rows
    reward_and_cost = _heads(sizes, packed.head_second.shape[-1], interpret)(*packed[:4], h, s)
    squares = _members(sizes, members, interpret)(*packed[4:], h_start, h, actions)
    return reward_and_cost[0], reward_and_cost[1], squares / (max(members - 1, 1) * stoch)


def _heads(sizes: tuple[int, ...], W: int, interpret: Any) -> Any:
    """The kernel that computes `[2 T rows]` from two packed heads and beliefs."""
    C, P, S, _, T, rows = sizes
    tiles = T * rows // TILE_ROWS

    def program(head_h: Any, head_s: Any, head_second: Any, head_last: Any, h: Any, s: Any, out: Any) -> None:
        def with_buffers(
            w_h: Any, w_s: Any, w_second: Any, h_tile: Any, s_tile: Any, loaded: Any, arrived: Any
        ) -> None:
            head, ops = lax.axis_index("head"), SingleProgramOps() if interpret else ClusterOps()
            for part in range(C):
                plgpu.copy_gmem_to_smem(head_h.at[head, part], w_h.at[part], loaded)
            plgpu.copy_gmem_to_smem(head_s.at[head], w_s, loaded)
            plgpu.copy_gmem_to_smem(head_second.at[head], w_second, loaded)

            def request(t: Any, row: Any) -> None:
                for part in range(C):
                    plgpu.copy_gmem_to_smem(h.at[t, part, pl.ds(row, TILE_ROWS)], h_tile.at[part], arrived)
                plgpu.copy_gmem_to_smem(s.at[t, pl.ds(row, TILE_ROWS)], s_tile, arrived)

            def process(t: Any, row: Any, request_next: Any) -> None:
                plgpu.barrier_wait(arrived)
                parts = [(h_tile.at[part], w_h.at[part]) for part in range(C)]
                units = ops.narrow(jnp.maximum(ops.product([*parts, (s_tile, w_s)]), 0.0))
                request_next()  # the next beliefs arrive while these are evaluated
                units = jnp.maximum(ops.product([(units, w_second)]), 0.0)
                out[head, t, pl.ds(row, TILE_ROWS)] = jnp.sum(units * ops.columns(head_last.at[head], W), axis=1)

            plgpu.barrier_wait(loaded)
            _loop_tiles(lax.axis_index("program"), PROGRAMS // 2, (tiles, rows), request, process, ops)

        buffer = partial(chip_buffer, interpret)
        buffers = buffer(C, P, W), buffer(S, W), buffer(W, W), buffer(C, TILE_ROWS, P), buffer(TILE_ROWS, S)
        barriers = plgpu.Barrier(num_arrivals=C + 2), plgpu.Barrier(num_arrivals=C + 1)
        pl.run_scoped(with_buffers, *buffers, *barriers, collective_axes="group")

    grid = dict(grid=(2, min(PROGRAMS // 2, tiles)), grid_names=("head", "program"))
    return _launch(program, (2, T, rows), interpret, **grid)


def _members(sizes: tuple[int, ...], E: int, interpret: Any) -> Any:
    """The kernel that computes `[T rows]`, Σ (x − mean)² over members and dimensions.

    It reads packed members, beliefs and actions.
    """
    C, P, S, M, T, rows = sizes
    V, tiles = E * S, T * rows // TILE_ROWS

    def program(
        member_h: Any, member_action: Any, member_hidden: Any, h_start: Any, h: Any, actions: Any, out: Any
    ) -> None:
        def with_buffers(w_h: Any, w_action: Any, w_hidden: Any, h_tile: Any, loaded: Any, arrived: Any) -> None:
            ops = SingleProgramOps() if interpret else ClusterOps()
            for matrices, buffers in ((member_h, w_h), (member_action, w_action), (member_hidden, w_hidden)):
                for number in range(matrices.shape[0]):
                    plgpu.copy_gmem_to_smem(matrices.at[number], buffers.at[number], loaded)

            def request(t: Any, row: Any) -> None:
                @pl.when(t == 0)
                def _() -> None:
                    for part in range(C):
                        plgpu.copy_gmem_to_smem(h_start.at[part, pl.ds(row, TILE_ROWS)], h_tile.at[part], arrived)

                @pl.when(t > 0)
                def _() -> None:
                    for part in range(C):
                        plgpu.copy_gmem_to_smem(h.at[t - 1, part, pl.ds(row, TILE_ROWS)], h_tile.at[part], arrived)

            def process(t: Any, row: Any, request_next: Any) -> None:
                action = ops.tile(actions.at[t, pl.ds(row, TILE_ROWS)])
                plgpu.barrier_wait(arrived)
                parts = [(h_tile.at[part], w_h.at[part]) for part in range(C)]
                x = ops.product([*parts, (action, w_action.at[0])])
                request_next()
                for layer in (1, 2):
                    x = ops.narrow(jnp.maximum(x, 0.0))
                    x = ops.product([(x, w_hidden.at[layer - 1]), (action, w_action.at[layer])])
                predictions = [x[:, at : at + S] for at in range(0, V, S)]
                mean = sum(predictions[1:], predictions[0]) / E
                squared_errors = [(prediction - mean) * (prediction - mean) for prediction in predictions]
                out[t, pl.ds(row, TILE_ROWS)] = jnp.sum(sum(squared_errors[1:], squared_errors[0]), axis=1)

            plgpu.barrier_wait(loaded)
            _loop_tiles(lax.axis_index("program"), PROGRAMS, (tiles, rows), request, process, ops)

        buffer = partial(chip_buffer, interpret)
        buffers = buffer(C, P, V), buffer(3, M, V), buffer(2, V, V), buffer(C, TILE_ROWS, P)
        barriers = plgpu.Barrier(num_arrivals=C + 5), plgpu.Barrier(num_arrivals=C)
        pl.run_scoped(with_buffers, *buffers, *barriers, collective_axes="group")

    grid = dict(grid=(min(PROGRAMS, tiles),), grid_names=("program",))
    return _launch(program, (T, rows), interpret, **grid)


def _loop_tiles(program: Any, programs: int, sizes: tuple[int, int], request: Any, process: Any, ops: Any) -> None:
    """Process a program's tiles in turn. The next tile's beliefs are requested as soon as there is room.

    The last tile may be processed twice.
    """
    tiles, rows = sizes
    programs = min(programs, tiles)
    turns = -(-tiles // programs)

    def tile_position(turn: Any) -> tuple[Any, Any]:
        tile = jnp.minimum(program + turn * programs, tiles - 1)
        return lax.div(tile, rows // TILE_ROWS), lax.rem(tile, rows // TILE_ROWS) * TILE_ROWS

    request(*tile_position(0))

    @pl.loop(0, turns)
    def _(turn: Any) -> None:
        def request_next() -> None:
            ops.finish_reads()

            @pl.when(turn + 1 < turns)
            def _() -> None:
                request(*tile_position(turn + 1))

        process(*tile_position(turn), request_next)


def _launch(program: Any, out: tuple[int, ...], interpret: Any, **grid: Any) -> Any:
    return plgpu.kernel(
        program,
        out_type=jax.ShapeDtypeStruct(out, jnp.float32),
        **grid,
        num_threads=1,
        thread_name="group",
        compiler_params=plgpu.CompilerParams(approx_math=True, unsafe_no_auto_barriers=True),
        interpret=interpret,
    )
