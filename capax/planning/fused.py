"""What would an ensemble's candidates earn and cost, in one GPU kernel? The whole rollout of `models.ensemble` at once.

A program of the kernel takes one member and two tiles of 64 candidates, each for one particle, and keeps their states in
registers for all H steps. Two groups of warps have a tile each; they go their own ways, so that one has its products made
while the other takes its activations. A third one fetches weights: most matrices have room on the chip and come once, others
pass through it in every step. Noise is drawn outside, as the plain rollout draws it, so that results do not depend on
how the work is cut. On a CPU the same kernel is interpreted, which is slow and there for tests.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Float

from capax.planning.ccem import Imagined
from capax.types import Key

CAPABLE = "9.0"
"""The compute capability that the kernel is written for, an H100's and an H200's; `benchmarks/fused.py` compares there."""
TILE, ROWS = 16, 64
"""Sizes are padded to multiples of TILE; ROWS is what a product of an H100 takes."""
WIDEST, MOST = 64, 256
"""Columns of a state with what stands beside it, and units of a hidden layer with the ones, that registers have room for."""
ON_CHIP = 224 * 1024
"""Bytes of weights that a program may keep at hand."""
ONES = 2
"""Inputs and units that are always 1, and carry biases: their bfloat16, and what is left of them."""
STAYS = 0.6392322
"""What `swish` makes a 1 of, halved."""
NEVER = -1e4
"""Logit of an end where episodes have none."""
NOTHING = -200.0
"""Log-variance of a column that is no state's: σ is 0 in float32."""
TOLD = 8
"""Columns that a step tells of a row: reward, cost, the end's logit, Σσ², alive; and three that nobody reads."""


class Shape(NamedTuple):
    """Sizes of a packed ensemble."""

    wide: int
    """Inputs, with the ones: a state and the action beside it."""
    hidden: int
    """Units of a hidden layer, with the ones."""
    heads: int
    """Means of Δs, log-variances of Δs, and what is told of a step."""
    kept: tuple[int, ...]
    """Matrices between hidden layers that stay on the chip, every other one at most: the next passes while one is at work."""
    moving: tuple[int, ...]
    """Those that are fetched again in every step."""

    @classmethod
    def of(cls, states: int, actions: int, hidden: int, layers: int) -> Shape:
        wide, hidden = padded(states + actions + ONES), max(2 * TILE, padded(hidden + ONES))  # has two pieces
        heads = 2 * wide + TILE
        still, one = hidden * (wide + heads), hidden * hidden
        room = max(0, ON_CHIP // 2 - still - one) // one
        kept = tuple(range(1, layers - 1, 2))[:room]
        return cls(wide, hidden, heads, kept, tuple(n for n in range(layers - 1) if n not in kept))

    @property
    def bytes(self) -> int:
        """On the chip: what stays, and one matrix that passes."""
        return 2 * self.hidden * (self.wide + self.heads + self.hidden * (1 + len(self.kept)))

    @property
    def cuts(self) -> tuple[tuple[int, int], ...]:
        """Begin and size of the two pieces that a matrix passes in."""
        half = padded(self.hidden // 2)
        return (0, half), (half, self.hidden - half)


class Packed(NamedTuple):
    """An ensemble as the kernel reads it: biases are rows of the matrices, and states are in the units of inputs."""

    inputs: Float[Array, "E W K"]
    hidden: Float[Array, "E L-1 K K"]
    heads: Float[Array, "E K M"]
    units: Float[Array, "4 W"]
    """Largest and least log-variance, lowest and highest state."""


def padded(size: int) -> int:
    return -(-size // TILE) * TILE


def refusal(states: int, actions: int, hidden: int, layers: int, dtype: Any) -> str:
    """Why the kernel cannot take an ensemble of these sizes; nothing if it can."""
    shape = Shape.of(states, actions, hidden, layers)
    if jnp.dtype(dtype) != jnp.bfloat16:
        return f"makes bfloat16 products, where {jnp.dtype(dtype)} is asked for"
    if layers < 2:
        return f"takes two hidden layers or more, of which there is {layers}"
    if shape.wide > WIDEST:
        return f"has room for {WIDEST - ONES} states and actions, of which there are {states} and {actions}"
    if shape.hidden > MOST:
        return f"has room for {MOST - ONES} units in a hidden layer, which has {hidden}"
    needed = shape.bytes
    return f"needs {needed // 1024} KiB on the chip, which has {ON_CHIP // 1024}" if needed > ON_CHIP else ""


def pack(net: Any, scale: Any, *, dtype: Any) -> Packed:
    """Pad, scale and cast once per fit what every plan reads. Hidden layers are halved, for `swish`."""
    (E, inputs, units), S = net.weights[0].shape, scale.low.shape[0]
    W, K, M, *_ = Shape.of(S, inputs - S, units, len(net.weights) - 1)
    D, shrink, mean = S + 2, scale.target_sd[:S] / scale.input_sd[:S], scale.target_mean[:S] / scale.input_sd[:S]

    def wide(x: Any, columns: int, fill: float = 0.0) -> Any:
        return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, columns - x.shape[-1])], constant_values=fill)

    def laid(weights: Any, bias: Any, rows: int, columns: int, ones: int, stay: bool) -> Any:
        """A matrix `[E rows columns]` with its biases in the rows of the ones, which stay what they are."""
        rounded = bias.astype(dtype).astype(jnp.float32)
        whole = jnp.zeros((E, rows, columns)).at[:, : weights.shape[1]].set(wide(weights, columns))
        whole = whole.at[:, ones].set(wide(rounded, columns)).at[:, ones + 1].set(wide(bias - rounded, columns))
        return (whole.at[:, ones, units : units + ONES].set(STAYS) if stay else whole).astype(dtype)

    def heads(x: Any) -> Any:
        end = jnp.where(scale.ends, x[..., 2 * D : 2 * D + 1], 0.0)
        told = jnp.concatenate([x[..., S:D], end], -1)
        return jnp.concatenate([wide(x[..., :S] * shrink, W), wide(x[..., D : D + S], W), wide(told, TILE)], -1)

    halves = [(w / 2.0, b[:, 0] / 2.0) for w, b in zip(net.weights[:-1], net.biases[:-1], strict=True)]
    last = heads(net.biases[-1][:, 0]).at[:, :S].add(mean)
    last = last.at[:, 2 * W + 2].add(jnp.where(scale.ends, 0.0, NEVER))
    bounds = [(bound - scale.input_mean[:S]) / scale.input_sd[:S] for bound in (scale.low, scale.high)]
    return Packed(
        laid(*halves[0], W, K, W - ONES, True),
        jnp.stack([laid(w, b, K, K, units, True) for w, b in halves[1:]], 1),
        laid(heads(net.weights[-1]), last, K, M, units, False),
        jnp.stack([wide(v[:S], W, NOTHING) for v in (net.max_logvar, net.min_logvar)] + [wide(b, W) for b in bounds]),
    )


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
    interpret: Any = None,
) -> Imagined:
    """What `models.ensemble.rollout` returns, of a packed ensemble and its scaling."""
    net, scale = params
    E, dtype = net.inputs.shape[0], net.inputs.dtype
    G, S = particles // E, start.shape[0]
    N, H, A = actions.shape
    shape, rows = Shape.of(S, A, hidden, layers), -(-N // ROWS) * ROWS
    W, beside = shape.wide, (0, shape.wide - S)
    noise = jr.normal(key, (H, E, 1, G, S))[:, :, 0] * (scale.target_sd[:S] / scale.input_sd[:S])
    moves = ((actions - scale.input_mean[S:]) / scale.input_sd[S:]).astype(dtype).swapaxes(0, 1)
    ones = jnp.ones((H, rows, ONES), dtype)
    moves = jnp.concatenate([jnp.pad(moves, [(0, 0), (0, rows - N), (S, W - S - A - ONES)]), ones], -1)
    begin = jnp.pad((start - scale.input_mean[:S]) / scale.input_sd[:S], beside)
    told = _kernel(shape, (E, H, G, rows), interpret)(*net, begin, moves, jnp.pad(noise, [(0, 0)] * 3 + [beside]))
    told = told[:, :, :, :N].transpose(4, 3, 0, 2, 1)  # [· N E G H]
    reward, cost = (told[n] * scale.target_sd[S + n] + scale.target_mean[S + n] for n in (0, 1))
    spread = jnp.sqrt(told[3] + S * floor**2)
    u = jnp.broadcast_to(spread.max(1, keepdims=True), spread.shape)
    return Imagined(*(part.reshape(N, particles, H) for part in (reward, cost, u, told[4])))


def _kernel(shape: Shape, sizes: tuple[int, int, int, int], interpret: Any) -> Any:
    """What makes `[E H G rows TOLD]` of a packed ensemble, a first state, moves `[H rows W]` and noise `[H E G W]`."""
    (W, K, M, kept, _), (E, H, G, rows) = shape, sizes
    tiles = G * rows // ROWS
    room = partial(on_chip, interpret)
    fetched = plgpu.Barrier(num_arrivals=2 + len(kept))
    passing = plgpu.Barrier(num_barriers=2), plgpu.Barrier(num_arrivals=2, num_barriers=2)
    places = room(W, K), [room(K, K) for _ in kept], room(K, M), [room(n, K) for _, n in shape.cuts]

    def programme(inputs: Any, hidden: Any, heads: Any, *others: Any) -> None:
        def with_room(w_in: Any, w_kept: Any, w_out: Any, ring: Any, fetched: Any, passing: Any) -> None:
            member, group = lax.axis_index("member"), lax.axis_index("group")

            @pl.when(group == 2)
            def _() -> None:
                plgpu.set_max_registers(40, action="decrease")
                _fetch(shape, H, [part.at[member] for part in (inputs, hidden, heads)],
                       [w_in, w_kept, w_out, ring], fetched, passing)  # fmt: skip

            @pl.when(group < 2)
            def _() -> None:
                plgpu.set_max_registers(232, action="increase")
                tile = jnp.minimum(2 * lax.axis_index("pair") + group, tiles - 1)  # of an odd number, the last twice
                particle, row = lax.div(tile, rows // ROWS), lax.rem(tile, rows // ROWS) * ROWS
                plgpu.barrier_wait(fetched)
                hands = Interpreted() if interpret else Hands()
                _imagine(shape, H, (member, particle, row), [w_in, w_kept, w_out, ring], passing, others, hands)

        pl.run_scoped(with_room, *places, fetched, passing, collective_axes="group")

    return plgpu.kernel(
        programme,
        out_type=jax.ShapeDtypeStruct((E, H, G, rows, TOLD), jnp.float32),
        grid=(E, -(-tiles // 2)),
        grid_names=("member", "pair"),
        num_threads=3,
        thread_name="group",
        compiler_params=plgpu.CompilerParams(approx_math=True, unsafe_no_auto_barriers=True),
        interpret=interpret,
    )


def on_chip(interpret: Any, *size: int, tile: int = TILE) -> Any:
    """Room for a matrix, laid out as products of an H100 read it."""
    if interpret:
        return plgpu.SMEM(size, jnp.float32)
    layouts = plgpu.TilingTransform((8, tile)), plgpu.SwizzleTransform(2 * tile)
    return plgpu.SMEM(size, jnp.bfloat16, transforms=layouts)


def _fetch(shape: Shape, steps: int, matrices: Any, places: Any, fetched: Any, passing: Any) -> None:
    """Bring a member's weights: once what is kept, in every step what is not, a piece as soon as both groups let go of it."""
    (inputs, hidden, heads), (w_in, w_kept, w_out, ring), (full, done) = matrices, places, passing
    plgpu.copy_gmem_to_smem(inputs, w_in, fetched)
    for number, place in zip(shape.kept, w_kept, strict=True):
        plgpu.copy_gmem_to_smem(hidden.at[number], place, fetched)
    plgpu.copy_gmem_to_smem(heads, w_out, fetched)

    def send(number: int, first: bool = False) -> None:
        for piece, (at, size) in enumerate(shape.cuts):
            if not first:
                plgpu.barrier_wait(done.at[piece])
            plgpu.copy_gmem_to_smem(hidden.at[number, pl.ds(at, size)], ring[piece], full.at[piece])

    for number in shape.moving:
        send(number, first=number == shape.moving[0])

    @pl.loop(1, steps)
    def _(_: Any) -> None:
        for number in shape.moving:
            send(number)

    for piece in range(len(shape.cuts)):
        plgpu.barrier_wait(done.at[piece])


def _imagine(shape: Shape, steps: int, place: Any, matrices: Any, passing: Any, others: Any, hands: Any) -> None:
    """All steps of one tile."""
    (w_in, w_kept, w_out, ring), (full, done) = matrices, passing
    units, begin, moves, noise, out = others
    (member, particle, row), W = place, shape.wide
    pieces = range(len(shape.cuts))

    def hidden(h: Any, number: int) -> Any:
        if number in shape.kept:
            return hands.swish(hands.product([(h, w_kept[shape.kept.index(number)])]))
        parts = [(h[:, at : at + size], ring[piece]) for piece, (at, size) in enumerate(shape.cuts)]
        total = hands.product(parts, [full.at[piece] for piece in pieces])
        for piece in pieces:
            plgpu.barrier_arrive(done.at[piece])
        return hands.swish(total)

    def given(t: Any) -> tuple[Any, Any]:
        return hands.tile(moves.at[t, pl.ds(row, ROWS)]), hands.columns(noise.at[t, member, particle], W)

    number = hands.numbers()

    def step(t: Any, carry: Any) -> Any:
        state, alive, move, eps = carry
        ahead = given(jnp.minimum(t + 1, steps - 1))  # on its way while this step is made
        h = hands.swish(hands.product([(state.astype(move.dtype) + move, w_in)]))
        for layer in range(len(shape.kept) + len(shape.moving)):
            h = hidden(h, layer)
        y = hands.product([(h, w_out)])
        mean, raw, told = y[:, :W], y[:, W : 2 * W], y[:, 2 * W : 2 * W + TOLD]
        largest, least, low, high = (hands.columns(units.at[n], W) for n in range(4))
        logvar = largest - softplus(largest - raw)
        sigma = jnp.exp(0.5 * (least + softplus(logvar - least)))
        ended = jnp.sum(jnp.where(number == 2, told, 0.0), axis=1)
        told = jnp.where(number == 3, hands.rows(jnp.sum(sigma * sigma, axis=1)), told)
        out[member, t, particle, pl.ds(row, ROWS)] = jnp.where(number == 4, hands.rows(alive), told)
        moved = state + mean + sigma * eps
        moved = jnp.where(moved < low, low, jnp.where(moved > high, high, moved))  # keeps what is NaN
        return moved, jnp.where(ended > 0.0, 0.0, alive), *ahead

    lax.fori_loop(0, steps, step, (hands.columns(begin, W), hands.ones(), *given(jnp.int32(0))))


class Hands:
    """What a group of warps does with registers, which the compiler has to be told the layout of."""

    layout = plgpu.Layout.WGMMA

    def tile(self, ref: Any) -> Any:
        return plgpu.load(ref, (), layout=self.layout, optimized=False)

    def columns(self, ref: Any, wide: int) -> Any:
        """A number for each column, the same in all rows."""
        vector = plgpu.load(ref, (), layout=self.layout.reduce(0), optimized=False)
        return plgpu.layout_cast(lax.broadcast_in_dim(vector, (ROWS, wide), [1]), self.layout)

    def rows(self, vector: Any) -> Any:
        """A number for each row, the same in all columns."""
        return plgpu.layout_cast(lax.broadcast_in_dim(vector, (ROWS, TOLD), [0]), self.layout)

    def ones(self) -> Any:
        return plgpu.layout_cast(jnp.ones(ROWS, jnp.float32), self.layout.reduce(1))

    def numbers(self) -> Any:
        """Of the columns that are told."""
        return plgpu.broadcasted_iota(jnp.int32, (ROWS, TOLD), 1, layout=self.layout)

    def product(self, parts: Any, arrivals: Any = ()) -> Any:
        """Σ h W over pieces; where these are on their way, each is waited for."""

        def made(total: Any) -> Any:
            for number, (h, weights) in enumerate(parts):
                if arrivals:
                    plgpu.barrier_wait(arrivals[number])
                plgpu.wgmma(total, h, weights)
            return total[...]

        return pl.run_scoped(made, plgpu.WGMMAAccumulatorRef((ROWS, parts[0][1].shape[1]), jnp.float32))

    def swish(self, half: Any) -> Any:
        """x σ(x) = x/2 + x/2 tanh(x/2), of x/2; the hardware's tanh is one instruction, and right to 2⁻¹¹."""
        return (half + half * jnp.tanh(half)).astype(jnp.bfloat16)


class Interpreted(Hands):
    """The same without layouts, and exact."""

    def tile(self, ref: Any) -> Any:
        return ref[...]

    def columns(self, ref: Any, wide: int) -> Any:
        return lax.broadcast_in_dim(ref[...], (ROWS, wide), [1])

    def rows(self, vector: Any) -> Any:
        return lax.broadcast_in_dim(vector, (ROWS, TOLD), [0])

    def ones(self) -> Any:
        return jnp.ones(ROWS, jnp.float32)

    def numbers(self) -> Any:
        return lax.broadcasted_iota(jnp.int32, (ROWS, TOLD), 1)

    def product(self, parts: Any, arrivals: Any = ()) -> Any:
        for arrival in arrivals:
            plgpu.barrier_wait(arrival)
        return sum(jnp.dot(h[...], weights[...], preferred_element_type=jnp.float32) for h, weights in parts)

    def swish(self, half: Any) -> Any:
        return half + half * jnp.tanh(half)


def softplus(x: Float[Array, ...]) -> Float[Array, ...]:
    return jnp.maximum(x, 0.0) + jnp.log(1.0 + jnp.exp(-jnp.abs(x)))
