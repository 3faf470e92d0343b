"""What are imagined beliefs worth, in two GPU kernels? Reward, cost and uncertainty of all that `planning.fused_latent` made.

A program keeps the weights of one head, or of all members, on its chip, and takes tiles of 64 beliefs, one after the other: of
any candidate and step. Biases are rows of the matrices, as there; the members' last two layers are one matrix for all.
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

from capax.planning.fused import MOST, ON_CHIP, ONES, ROWS, on_chip, padded
from capax.planning.fused_latent import Alone, Laid, Neighbours, Shape, carried, placed, stays

PROGRAMS = 132
"""Of a kernel: an H200's, one on each of its processors."""


class Packed(NamedTuple):
    """Heads and members as the kernels read them: W units of a hidden layer with the ones, V outputs of all members."""

    first: Float[Array, "2 C P W"]
    """Of the reward's head and the cost's, for each part's columns of h."""
    of_s: Float[Array, "2 S W"]
    second: Float[Array, "2 W W"]
    last: Float[Array, "2 W"]
    of_h: Float[Array, "C P V"]
    """Of the members."""
    of_move: Float[Array, "3 M V"]
    between: Float[Array, "2 V V"]


def fits(deter: int, hidden: int, stoch: int, actions: int, members: int) -> bool:
    """Whether the chip has room for heads of these sizes, and a kernel for as many members."""
    C, P, _, S, M = Shape.of(deter, hidden, stoch, actions)
    W, V, tile = padded(hidden + ONES), members * S, ROWS * C * P
    heads, all_members = W * (C * P + S + W) + tile + ROWS * S, V * (C * P + 3 * M + 2 * V) + tile
    return max(W, V) <= MOST and 2 * max(heads, all_members) <= ON_CHIP


def pack(net: Any, shape: Shape, dtype: Any = jnp.bfloat16) -> Packed:
    """Pad, cut and cast, once per fit, what every plan reads."""
    C, P, _, S, M = shape
    D, U = net.gru.h.w.shape[0], net.reward[0].w.shape[1]
    E, _, s = net.members.layers[0].w.shape
    W, V = padded(U + ONES), E * S

    def head(layers: Any) -> tuple[Any, ...]:
        one, two, three = layers
        first = stays(carried(placed(one.w[:D], C * P, W), one.b, D, dtype), D, U)
        second = stays(carried(placed(two.w, W, W), two.b, U, dtype), U, U)
        last = placed(three.w[:, 0], W).at[U].set(three.b[0].astype(jnp.float32))
        return first.reshape(C, P, W), placed(one.w[D:], S, W), second, last

    def side_by_side(layer: Any, rows: slice, sizes: int) -> Any:
        """[sizes V]: of each member, its columns."""
        return placed(layer.w[:, rows], E, sizes, S).swapaxes(0, 1).reshape(sizes, V)

    def moves(layer: Any, before: int) -> Any:
        bias = placed(layer.b[:, 0], E, S).reshape(V)
        return carried(side_by_side(layer, slice(before, None), M), bias, M - ONES, dtype)

    def apart(layer: Any) -> Any:
        """[V V]: each member's matrix where its inputs and outputs are, and zeros elsewhere."""
        own = placed(layer.w[:, :s], E, S, S)
        return (own[:, :, None] * jnp.eye(E)[:, None, :, None]).reshape(V, V)

    begin, *others = net.members.layers
    first, of_s, second, last = (jnp.stack(pair) for pair in zip(head(net.reward), head(net.cost), strict=True))
    packed = Packed(
        first, of_s, second, last,
        side_by_side(begin, slice(0, D), C * P).reshape(C, P, V),
        jnp.stack([moves(begin, D), *(moves(layer, s) for layer in others)]),
        jnp.stack([apart(layer) for layer in others]),
    )  # fmt: skip
    return jax.tree.map(lambda part: part.astype(dtype), packed)._replace(last=last)


def worth(
    packed: Packed,
    laid: Laid,
    *,
    members: int,
    stoch: int,
    interpret: Any = None,
) -> tuple[Float[Array, "T rows"], Float[Array, "T rows"], Float[Array, "T rows"]]:
    """Reward, cost (or its logit) and the members' variance u of every step."""
    begun, h, s, moves = laid
    T, C, rows, P = h.shape
    sizes = C, P, s.shape[-1], moves.shape[-1], T, rows
    told = _heads(sizes, packed.second.shape[-1], interpret)(*packed[:4], h, s)
    spread = _members(sizes, members, interpret)(*packed[4:], begun, h, moves)
    return told[0], told[1], spread / (max(members - 1, 1) * stoch)


def _heads(sizes: tuple[int, ...], W: int, interpret: Any) -> Any:
    """What makes `[2 T rows]` of two packed heads and beliefs."""
    C, P, S, _, T, rows = sizes
    tiles = T * rows // ROWS

    def programme(first: Any, of_s: Any, second: Any, last: Any, h: Any, s: Any, out: Any) -> None:
        def with_room(w_h: Any, w_s: Any, w_two: Any, h_tile: Any, s_tile: Any, fetched: Any, there: Any) -> None:
            head, hands = lax.axis_index("head"), Alone() if interpret else Neighbours()
            for part in range(C):
                plgpu.copy_gmem_to_smem(first.at[head, part], w_h.at[part], fetched)
            plgpu.copy_gmem_to_smem(of_s.at[head], w_s, fetched)
            plgpu.copy_gmem_to_smem(second.at[head], w_two, fetched)

            def send_for(t: Any, row: Any) -> None:
                for part in range(C):
                    plgpu.copy_gmem_to_smem(h.at[t, part, pl.ds(row, ROWS)], h_tile.at[part], there)
                plgpu.copy_gmem_to_smem(s.at[t, pl.ds(row, ROWS)], s_tile, there)

            def work(t: Any, row: Any, following: Any) -> None:
                plgpu.barrier_wait(there)
                parts = [(h_tile.at[part], w_h.at[part]) for part in range(C)]
                units = hands.half(jnp.maximum(hands.product([*parts, (s_tile, w_s)]), 0.0))
                following()  # its beliefs are on their way while these are judged
                units = jnp.maximum(hands.product([(units, w_two)]), 0.0)
                out[head, t, pl.ds(row, ROWS)] = jnp.sum(units * hands.columns(last.at[head], W), axis=1)

            plgpu.barrier_wait(fetched)
            _in_turn(lax.axis_index("program"), PROGRAMS // 2, (tiles, rows), send_for, work, hands)

        room = partial(on_chip, interpret)
        places = room(C, P, W), room(S, W), room(W, W), room(C, ROWS, P), room(ROWS, S)
        barriers = plgpu.Barrier(num_arrivals=C + 2), plgpu.Barrier(num_arrivals=C + 1)
        pl.run_scoped(with_room, *places, *barriers, collective_axes="group")

    grid = dict(grid=(2, min(PROGRAMS // 2, tiles)), grid_names=("head", "program"))
    return _launch(programme, (2, T, rows), interpret, **grid)


def _members(sizes: tuple[int, ...], E: int, interpret: Any) -> Any:
    """What makes `[T rows]`, Σ (x − mean)² over members and dimensions, of packed members, beliefs and moves."""
    C, P, S, M, T, rows = sizes
    V, tiles = E * S, T * rows // ROWS

    def programme(of_h: Any, of_move: Any, between: Any, begun: Any, h: Any, moves: Any, out: Any) -> None:
        def with_room(w_h: Any, w_move: Any, w_two: Any, h_tile: Any, fetched: Any, there: Any) -> None:
            hands = Alone() if interpret else Neighbours()
            for matrices, places in ((of_h, w_h), (of_move, w_move), (between, w_two)):
                for number in range(matrices.shape[0]):
                    plgpu.copy_gmem_to_smem(matrices.at[number], places.at[number], fetched)

            def send_for(t: Any, row: Any) -> None:
                @pl.when(t == 0)
                def _() -> None:
                    for part in range(C):
                        plgpu.copy_gmem_to_smem(begun.at[part, pl.ds(row, ROWS)], h_tile.at[part], there)

                @pl.when(t > 0)
                def _() -> None:
                    for part in range(C):
                        plgpu.copy_gmem_to_smem(h.at[t - 1, part, pl.ds(row, ROWS)], h_tile.at[part], there)

            def work(t: Any, row: Any, following: Any) -> None:
                move = hands.tile(moves.at[t, pl.ds(row, ROWS)])
                plgpu.barrier_wait(there)
                parts = [(h_tile.at[part], w_h.at[part]) for part in range(C)]
                x = hands.product([*parts, (move, w_move.at[0])])
                following()
                for layer in (1, 2):
                    x = hands.half(jnp.maximum(x, 0.0))
                    x = hands.product([(x, w_two.at[layer - 1]), (move, w_move.at[layer])])
                each = [x[:, at : at + S] for at in range(0, V, S)]
                mean = sum(each[1:], each[0]) / E
                apart = [(one - mean) * (one - mean) for one in each]
                out[t, pl.ds(row, ROWS)] = jnp.sum(sum(apart[1:], apart[0]), axis=1)

            plgpu.barrier_wait(fetched)
            _in_turn(lax.axis_index("program"), PROGRAMS, (tiles, rows), send_for, work, hands)

        room = partial(on_chip, interpret)
        places = room(C, P, V), room(3, M, V), room(2, V, V), room(C, ROWS, P)
        barriers = plgpu.Barrier(num_arrivals=C + 5), plgpu.Barrier(num_arrivals=C)
        pl.run_scoped(with_room, *places, *barriers, collective_axes="group")

    grid = dict(grid=(min(PROGRAMS, tiles),), grid_names=("program",))
    return _launch(programme, (T, rows), interpret, **grid)


def _in_turn(program: Any, programs: int, sizes: tuple[int, int], send_for: Any, work: Any, hands: Any) -> None:
    """A program's tiles; the next one's beliefs are sent for as soon as there is room. The last tile may come twice."""
    tiles, rows = sizes
    programs = min(programs, tiles)
    turns = -(-tiles // programs)

    def place(turn: Any) -> tuple[Any, Any]:
        tile = jnp.minimum(program + turn * programs, tiles - 1)
        return lax.div(tile, rows // ROWS), lax.rem(tile, rows // ROWS) * ROWS

    send_for(*place(0))

    @pl.loop(0, turns)
    def _(turn: Any) -> None:
        def following() -> None:
            hands.together()

            @pl.when(turn + 1 < turns)
            def _() -> None:
                send_for(*place(turn + 1))

        work(*place(turn), following)


def _launch(programme: Any, out: tuple[int, ...], interpret: Any, **grid: Any) -> Any:
    return plgpu.kernel(
        programme,
        out_type=jax.ShapeDtypeStruct(out, jnp.float32),
        **grid,
        num_threads=1,
        thread_name="group",
        compiler_params=plgpu.CompilerParams(approx_math=True, unsafe_no_auto_barriers=True),
        interpret=interpret,
    )
