"""Which beliefs would candidates of an image model come to, in one GPU kernel? The whole recurrence of `models.imagine`.

A cluster of programs takes a tile of 64 candidates for all H steps. Each of them makes some columns of h and of the prior's
hidden layer, keeps the weights of these on its chip, and sends what it made to the others; s, which needs all of them, every
program makes for itself. So nothing but actions is read from step to step, and a step is two exchanges between neighbours: a
program writes its columns out and has them copied from there to all of them at once, which the chip does in one go. As in
`planning.fused`, biases are rows of the matrices, carried by columns that are always 1; on a CPU the kernel is interpreted, as
one program that makes all columns.
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

from capax.planning.fused import MOST, ON_CHIP, ONES, ROWS, Hands, Interpreted, on_chip, padded, softplus

COLUMNS, PARTS = 32, 8
"""Columns that a program makes, and the most programs of a cluster."""
OPEN = 60.0
"""Logit of a gate that keeps the ones of h what they are."""


class Shape(NamedTuple):
    """Sizes of a packed recurrence."""

    parts: int
    """Programs of a cluster."""
    columns: int
    """Of h and of the hidden layer, that each of them makes."""
    wide: int
    """x, with the ones."""
    stoch: int
    moves: int
    """Actions, with the ones."""

    @classmethod
    def of(cls, deter: int, hidden: int, stoch: int, actions: int, columns: int = COLUMNS) -> Shape:
        parts = -(-(max(deter, hidden) + ONES) // columns)
        return cls(parts, columns, padded(deter + ONES), padded(stoch), padded(actions + ONES))

    @property
    def bytes(self) -> int:
        """On the chip of a program, in bfloat16: weights, then the tile's h and hidden layer."""
        whole, own = self.parts * self.columns, self.columns
        weights = (self.stoch + self.moves + 3 * own) * self.wide + whole * (4 * own + 2 * self.stoch)
        return 2 * (weights + 2 * ROWS * whole)

    def drawn(self, steps: int) -> int:
        """Steps whose noise there is room for beside that, and that one copy can bring: all or one."""
        return steps if steps <= MOST and self.bytes + 4 * steps * self.stoch <= ON_CHIP else 1


class Packed(NamedTuple):
    """A recurrence as the kernel reads it: C parts with P columns each, X columns of x."""

    of_s: Float[Array, "S X"]
    of_move: Float[Array, "M X"]
    of_x: Float[Array, "C X 3*P"]
    """Gates, a part's columns: new, reset, update; the last two halved, for `sigmoid`."""
    of_h: Float[Array, "C C P 3*P"]
    """The same, for each part's columns of h."""
    hidden: Float[Array, "C C P P"]
    prior: Float[Array, "C P 2*S"]
    """Means and raw deviations of s."""

    @property
    def shape(self) -> Shape:
        (S, X), (C, _, _, P) = self.of_s.shape, self.hidden.shape
        return Shape(C, P, X, S, self.of_move.shape[0])


class Begun(NamedTuple):
    """First beliefs as the kernel reads them."""

    h: Float[Array, "C rows P"]
    s: Float[Array, "rows S"]


class Laid(NamedTuple):
    """Beliefs as the kernel lays them out: rows are candidates and what fills the last tile."""

    begun: Float[Array, "C rows P"]
    """The h before the first step."""
    h: Float[Array, "T C rows P"]
    """Of part after part, each with its columns; the ones, then zeros, after h's own."""
    s: Float[Array, "T rows S"]
    moves: Float[Array, "T rows M"]
    """Actions; the last columns are the ones."""


def fits(deter: int, hidden: int, stoch: int, actions: int) -> bool:
    """Whether the chip has room for a model of these sizes."""
    shape = Shape.of(deter, hidden, stoch, actions)
    return shape.parts <= PARTS and shape.wide <= MOST and shape.bytes <= ON_CHIP


def pack(net: Any, dtype: Any = jnp.bfloat16, columns: int = COLUMNS) -> Packed:
    """Pad, cut and cast, once per fit, what every step reads."""
    (first, second), D, S = net.prior, net.gru.h.w.shape[0], net.prior[1].w.shape[1] // 2
    U, A = first.w.shape[1], net.embed.w.shape[0] - S
    C, P, X, wide_s, M = Shape.of(D, U, S, A, columns)
    whole = C * P

    def gates(layer: Any, rows: int, biases: tuple[Any, ...]) -> Any:
        """[rows 3 whole]: new, reset, update."""
        r, z, n = jnp.split(layer.w, 3, -1)
        made = [placed(part, rows, whole) for part in (n, r / 2.0, z / 2.0)]
        return [carried(part, bias, D, dtype) for part, bias in zip(made, biases, strict=True)]

    def shared(matrices: list[Any], rows: int) -> Any:
        """[C rows 3*P]: of each part, its columns of each matrix side by side."""
        stacked = jnp.stack(matrices, 1).reshape(rows, len(matrices), C, P)
        return stacked.transpose(2, 0, 1, 3).reshape(C, rows, len(matrices) * P)

    (rx, zx, nx), (rh, zh, nh) = (jnp.split(layer.b.astype(jnp.float32), 3) for layer in (net.gru.x, net.gru.h))
    none = jnp.zeros(D)
    x_gates = gates(net.gru.x, X, (nx, (rx + rh) / 2.0, (zx + zh) / 2.0))
    x_gates[2] = stays(x_gates[2], D, D, OPEN)
    h_gates = gates(net.gru.h, whole, (nh, none, none))
    moves = carried(placed(net.embed.w[S:], M, X), net.embed.b, M - ONES, dtype)
    layer = carried(placed(first.w, whole, whole), first.b, D, dtype)
    heads = [
        carried(placed(w, whole, wide_s), b, U, dtype)
        for w, b in zip(jnp.split(second.w, 2, -1), jnp.split(second.b, 2), strict=True)
    ]
    packed = Packed(
        placed(net.embed.w[:S], wide_s, X),
        stays(moves, M - ONES, D),
        shared(x_gates, X),
        shared(h_gates, whole).reshape(C, C, P, 3 * P),
        shared([stays(layer, D, U)], whole).reshape(C, C, P, P),
        jnp.concatenate(heads, 1).reshape(C, P, 2 * wide_s),
    )
    return jax.tree.map(lambda part: part.astype(dtype), packed)


def placed(x: Any, *sizes: int) -> Any:
    """In float32, with zeros after it."""
    return jnp.pad(x.astype(jnp.float32), [(0, n - m) for n, m in zip(sizes, x.shape, strict=True)])


def carried(matrix: Any, bias: Any, ones: int, dtype: Any) -> Any:
    """With a bias in the rows of the ones: what it is rounded to, and what is left."""
    bias = bias.astype(jnp.float32)
    rounded = bias.astype(dtype).astype(jnp.float32)
    return matrix.at[ones, : len(bias)].set(rounded).at[ones + 1, : len(bias)].set(bias - rounded)


def stays(matrix: Any, row: int, column: int, value: float = 1.0) -> Any:
    """With columns that make ones of the ones."""
    return matrix.at[row, column : column + ONES].set(value)


def filled(x: Float[Array, "... n"], columns: int, ones: int, dtype: Any) -> Float[Array, "... columns"]:
    """x, ones after it, and zeros."""
    x = jnp.concatenate([x.astype(dtype), jnp.ones((*x.shape[:-1], ones), dtype)], -1)
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, columns - x.shape[-1])])


def begin(packed: Packed, h: Float[Array, "*N H"], s: Float[Array, "*N S"], candidates: int) -> Begun:
    """One belief for all candidates, or one for each, as one for each row of the tiles."""
    C, P, _, wide_s, _ = packed.shape

    def each(x: Any, columns: int, ones: int) -> Any:
        x = filled(x, columns, ones, packed.of_s.dtype)
        return jnp.pad(jnp.broadcast_to(x, (candidates, columns)), ((0, -candidates % ROWS), (0, 0)))

    return Begun(each(h, C * P, ONES).reshape(-1, C, P).swapaxes(0, 1), each(s, wide_s, 0))


def widened(noise: Float[Array, "T S"]) -> Float[Array, "T wide"]:
    """As the kernel reads it."""
    return filled(noise, padded(noise.shape[-1]), 0, jnp.float32)


def recurrence(
    packed: Packed,
    begun: Begun,
    actions: Float[Array, "N T A"],
    noise: Float[Array, "T S"],
    *,
    min_sd: float,
    interpret: Any = None,
) -> Laid:
    """What `models.imagine.recurrence` returns, of a packed model, and what it was made of. There may be more that begins
    than there are candidates, and noise may be widened already."""
    (N, T, _), M, dtype = actions.shape, packed.shape.moves, packed.of_s.dtype
    rows = -(-N // ROWS) * ROWS
    begun = Begun(begun.h[:, :rows], begun.s[:rows])
    moves = jnp.concatenate([filled(actions, M - ONES, 0, dtype), jnp.ones((N, T, ONES), dtype)], -1)
    moves = jnp.pad(moves, ((0, rows - N), (0, 0), (0, 0))).swapaxes(0, 1)
    hs, ss, _ = _kernel(packed.shape, T, rows, min_sd, interpret)(*packed, *begun, moves, widened(noise))
    return Laid(begun.h, hs, ss, moves)


def _kernel(shape: Shape, steps: int, rows: int, min_sd: float, interpret: Any) -> Any:
    """What makes h `[T C rows P]` and s `[T rows S]` of a packed recurrence, a first h, a first s, moves and noise; and a
    place `[C rows P]` for the hidden layer's columns on their way."""
    (C, P, X, S, M), kind = shape, jnp.float32 if interpret else jnp.bfloat16

    room, wide = partial(on_chip, interpret), partial(on_chip, interpret, tile=P)
    weights = room(S, X), room(M, X), room(X, 3 * P), wide(C, P, 3 * P), wide(C, P, P)
    tiles = wide(C, P, 2 * S), wide(C, ROWS, P), wide(C, ROWS, P), plgpu.SMEM((shape.drawn(steps), S), jnp.float32)
    free = plgpu.Barrier() if interpret else plgpu.ClusterBarrier(collective_axes=("part",))
    barriers = plgpu.Barrier(num_arrivals=5 + 3 * C), plgpu.Barrier(), plgpu.Barrier(), free

    def programme(*refs: Any) -> None:
        def with_room(*scratch: Any) -> None:
            part = jnp.int32(0) if interpret else lax.axis_index("part")
            hands = Alone() if interpret else Neighbours()
            _imagine(shape, steps, min_sd, (part, lax.axis_index("tile") * ROWS), refs, scratch, hands)

        pl.run_scoped(with_room, *weights, *tiles, *barriers, collective_axes="group")

    return plgpu.kernel(
        programme,
        out_type=[jax.ShapeDtypeStruct(size, kind) for size in ((steps, C, rows, P), (steps, rows, S), (C, rows, P))],
        grid=(rows // ROWS,),
        grid_names=("tile",),
        cluster=() if interpret else (C,),
        cluster_names=() if interpret else ("part",),
        num_threads=1,
        thread_name="group",
        compiler_params=plgpu.CompilerParams(approx_math=True, unsafe_no_auto_barriers=True),
        interpret=interpret,
    )


def _imagine(shape: Shape, steps: int, min_sd: float, place: Any, refs: Any, scratch: Any, hands: Any) -> None:
    """All steps of a tile, a part's columns."""
    (of_s, of_move, of_x, of_h, hidden, prior, begun, s_begun, moves, noise, *outs), (part, row) = refs, place
    w_s, w_move, w_x, w_h, w_hidden, w_prior, h_all, u_all, eps, fetched, h_there, u_there, free = scratch
    (h_out, s_out, u_out), (_, P, _, S, _), everyone, here = outs, shape, range(shape.parts), pl.ds(row, ROWS)
    some = noise.at[pl.ds(0, eps.shape[0])]
    given = (of_s, w_s), (of_move, w_move), (of_x.at[part], w_x), (begun.at[:, here], h_all), (some, eps)
    for source, target in given:
        plgpu.copy_gmem_to_smem(source, target, fetched)
    for other in everyone:
        own = of_h.at[part, other], hidden.at[part, other], prior.at[other]
        for source, target in zip(own, (w_h, w_hidden, w_prior), strict=True):
            plgpu.copy_gmem_to_smem(source, target.at[other], fetched)
    plgpu.barrier_wait(fetched)

    def product(left: Any, right: Any) -> Any:
        """Of what all parts made."""
        return hands.product([(left.at[other], right.at[other]) for other in everyone])

    def step(t: Any, carry: Any) -> Any:
        own, s, from_h, move = carry
        ahead = hands.tile(moves.at[jnp.minimum(t + 1, steps - 1), here])
        x = hands.half(jnp.maximum(hands.product([(hands.half(s), w_s), (move, w_move)]), 0.0))
        from_x = hands.product([(x, w_x)])
        r, z = (0.5 + 0.5 * jnp.tanh(from_x[:, at : at + P] + from_h[:, at : at + P]) for at in (P, 2 * P))
        new = jnp.tanh(from_x[:, :P] + r * from_h[:, :P])
        own = new + z * (own - new)
        plgpu.barrier_wait(free)  # nobody reads the h of before any more
        hands.send(part, hands.half(own), h_all, h_out.at[t, :, here], h_there)
        plgpu.barrier_wait(h_there)
        hands.send(part, hands.half(jnp.maximum(product(h_all, w_hidden), 0.0)), u_all, u_out.at[:, here], u_there)
        from_h = product(h_all, w_h)  # while the hidden layer's columns are on their way
        plgpu.barrier_arrive(free)
        plgpu.barrier_wait(u_there)
        y = product(u_all, w_prior)
        s = y[:, :S] + (softplus(y[:, S:]) + min_sd) * hands.columns((eps if eps.shape[0] == steps else noise).at[t], S)

        @pl.when(part == 0)
        def _() -> None:
            s_out[t, here] = hands.half(s)

        return own, s, from_h, ahead

    from_h = product(h_all, w_h)
    plgpu.barrier_arrive(free)
    own, s = (hands.whole(hands.tile(ref)) for ref in (begun.at[part, here], s_begun.at[here]))
    lax.fori_loop(0, steps, step, (own, s, from_h, hands.tile(moves.at[0, here])))
    plgpu.barrier_wait(free)


class Neighbours(Hands):
    """What a program of a cluster does."""

    def half(self, x: Any) -> Any:
        return x.astype(jnp.bfloat16)

    def whole(self, x: Any) -> Any:
        return x.astype(jnp.float32)

    def together(self) -> None:
        """All warps have read what they read."""
        plgpu.commit_smem()

    def send(self, part: Any, value: Any, tiles: Any, out: Any, barrier: Any) -> None:
        """A part's columns to its place among the tiles of every program of the cluster, by way of `out`."""
        tiles[part] = value
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(tiles.at[part], out.at[part])
        plgpu.wait_smem_to_gmem(0)
        plgpu.copy_gmem_to_smem(out, tiles, barrier, collective_axes="part")  # each sends the part that it wrote


class Alone(Interpreted):
    """The same in one program that makes all columns."""

    def half(self, x: Any) -> Any:
        return x

    whole = half

    def together(self) -> None:
        pass

    def send(self, part: Any, value: Any, tiles: Any, out: Any, barrier: Any) -> None:
        tiles[part] = value
        out[part] = value
        plgpu.barrier_arrive(barrier)
