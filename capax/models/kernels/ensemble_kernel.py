"""GPU kernel for the whole rollout of `models.ensemble`: rewards, costs and uncertainty in one launch.

A program of the kernel takes one member and two tiles of 64 candidates, each for one particle, and keeps their states
in registers for all H steps. Two groups of warps have a tile each. They run independently, so that the products of one
overlap with the activations of the other. A third group loads weights: most matrices fit on the chip and are loaded
once, the others are streamed through it in every step. Noise is drawn outside the kernel, as the plain rollout draws
it, so results do not depend on how the work is divided. On a CPU the kernel is interpreted, which is slow and only for
tests.
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

from capax.core.types import Imagined, Key
from capax.models.layers import state_noise

COMPUTE_CAPABILITY = "9.0"
"""Compute capability of H100 and H200, which the kernel is written for. `benchmarks/fused.py` compares there."""
PAD_MULTIPLE, TILE_ROWS = 16, 64
"""Sizes are padded to multiples of PAD_MULTIPLE. TILE_ROWS is the number of rows in a matrix product of an H100."""
MAX_INPUTS, MAX_UNITS = 64, 256
"""Most input columns, and most units of a hidden layer, that fit into registers; both include the columns of ones."""
CHIP_BYTES = 224 * 1024
"""Bytes of weights that a program may keep on the chip (shared memory)."""
BIAS_COLUMNS = 2
"""Inputs and units that are always 1 and carry the biases: first the bias in bfloat16, then its rounding error."""
ONE_BEFORE_SWISH = 0.6392322
"""x/2 where swish(x) = 1. This weight keeps a column of ones at 1."""
NO_END_LOGIT = -1e4
"""Logit of the end where episodes do not terminate."""
UNUSED_LOGVAR = -200.0
"""Log-variance of a column that is not a state: σ is 0 in float32."""
OUTPUT_COLUMNS = 8
"""Columns of a step's output: reward, cost, the end's logit, Σσ², alive, and three that nothing reads."""


class Shape(NamedTuple):
    """Sizes of a packed ensemble."""

    inputs: int
    """Input columns: state, action and the columns of ones."""
    hidden: int
    """Units of a hidden layer, with the columns of ones."""
    heads: int
    """Means of Δs, log-variances of Δs, and the outputs of a step."""
    resident: tuple[int, ...]
    """Matrices between hidden layers that stay on the chip. At most every other one, so that the next streamed one
    is loaded while one is used."""
    streamed: tuple[int, ...]
    """Matrices that are loaded again in every step."""

    @classmethod
    def of(cls, states: int, actions: int, hidden: int, layers: int) -> Shape:
        inputs = padded_size(states + actions + BIAS_COLUMNS)
        hidden = max(2 * PAD_MULTIPLE, padded_size(hidden + BIAS_COLUMNS))  # at least two pieces
        heads = 2 * inputs + PAD_MULTIPLE
        fixed, matrix = hidden * (inputs + heads), hidden * hidden
        spare = max(0, CHIP_BYTES // 2 - fixed - matrix) // matrix
        resident = tuple(range(1, layers - 1, 2))[:spare]
        return cls(inputs, hidden, heads, resident, tuple(n for n in range(layers - 1) if n not in resident))

    @property
    def bytes(self) -> int:
        """Bytes on the chip: the resident matrices and one streamed matrix."""
        return 2 * self.hidden * (self.inputs + self.heads + self.hidden * (1 + len(self.resident)))

    @property
    def pieces(self) -> tuple[tuple[int, int], ...]:
        """Begin and size of the two pieces that a streamed matrix is loaded in."""
        first = padded_size(self.hidden // 2)
        return (0, first), (first, self.hidden - first)


class Packed(NamedTuple):
    """An ensemble as the kernel reads it. Biases are rows of the matrices; states have the units of inputs."""

    inputs: Float[Array, "E W K"]
    hidden: Float[Array, "E L-1 K K"]
    heads: Float[Array, "E K M"]
    units: Float[Array, "4 W"]
    """Largest and smallest log-variance, lowest and highest state."""


def padded_size(size: int) -> int:
    """The next multiple of PAD_MULTIPLE."""
    return -(-size // PAD_MULTIPLE) * PAD_MULTIPLE


def unsupported_reason(
    states: int, actions: int, hidden: int, layers: int, dtype: Any, noise: str = "shared", outcomes: str = "mean"
) -> str:
    """The reason why the kernel cannot run an ensemble of these sizes, or imagine in this way. Empty if it can."""
    if noise != "shared":
        return f"shares its noise between candidates, where noise is {noise}"
    if outcomes != "mean":
        return f"predicts mean rewards and costs, where outcomes is {outcomes}"
    shape = Shape.of(states, actions, hidden, layers)
    if jnp.dtype(dtype) != jnp.bfloat16:
        return f"computes bfloat16 products, where the setting is {jnp.dtype(dtype)}"
    if layers < 2:
        return f"needs at least two hidden layers, where the setting is {layers}"
    if shape.inputs > MAX_INPUTS:
        return f"has room for {MAX_INPUTS - BIAS_COLUMNS} states and actions, where there are {states} and {actions}"
    if shape.hidden > MAX_UNITS:
        return f"has room for {MAX_UNITS - BIAS_COLUMNS} units in a hidden layer, where the setting is {hidden}"
    size = shape.bytes
    return f"needs {size // 1024} KiB on the chip, which has {CHIP_BYTES // 1024}" if size > CHIP_BYTES else ""


def pack(net: Any, scale: Any, *, dtype: Any) -> Packed:
    """Pad, scale and cast the parameters that every plan reads, once per fit. Hidden layers are halved, for `swish`."""
    (E, inputs, units), S = net.weights[0].shape, scale.low.shape[0]
    W, K, M, *_ = Shape.of(S, inputs - S, units, len(net.weights) - 1)
    D, shrink, mean = S + 2, scale.target_sd[:S] / scale.input_sd[:S], scale.target_mean[:S] / scale.input_sd[:S]

    def pad(x: Any, columns: int, fill: float = 0.0) -> Any:
        return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, columns - x.shape[-1])], constant_values=fill)

    def with_biases(weights: Any, bias: Any, rows: int, columns: int, ones_row: int, keep_ones: bool) -> Any:
        """A matrix `[E rows columns]` with its biases in the rows of the ones. `keep_ones` leaves the ones at 1."""
        rounded = bias.astype(dtype).astype(jnp.float32)
        matrix = jnp.zeros((E, rows, columns)).at[:, : weights.shape[1]].set(pad(weights, columns))
        matrix = matrix.at[:, ones_row].set(pad(rounded, columns)).at[:, ones_row + 1].set(pad(bias - rounded, columns))
        if keep_ones:
            matrix = matrix.at[:, ones_row, units : units + BIAS_COLUMNS].set(ONE_BEFORE_SWISH)
        return matrix.astype(dtype)

    def arrange_heads(x: Any) -> Any:
        end = jnp.where(scale.ends, x[..., 2 * D : 2 * D + 1], 0.0)
        scalars = jnp.concatenate([x[..., S:D], end], -1)
        parts = [pad(x[..., :S] * shrink, W), pad(x[..., D : D + S], W), pad(scalars, PAD_MULTIPLE)]
        return jnp.concatenate(parts, -1)

    halves = [(w / 2.0, b[:, 0] / 2.0) for w, b in zip(net.weights[:-1], net.biases[:-1], strict=True)]
    last_bias = arrange_heads(net.biases[-1][:, 0]).at[:, :S].add(mean)
    last_bias = last_bias.at[:, 2 * W + 2].add(jnp.where(scale.ends, 0.0, NO_END_LOGIT))
    bounds = [(bound - scale.input_mean[:S]) / scale.input_sd[:S] for bound in (scale.low, scale.high)]
    return Packed(
        with_biases(*halves[0], W, K, W - BIAS_COLUMNS, True),
        jnp.stack([with_biases(w, b, K, K, units, True) for w, b in halves[1:]], 1),
        with_biases(arrange_heads(net.weights[-1]), last_bias, K, M, units, False),
        jnp.stack(
            [pad(v[:S], W, UNUSED_LOGVAR) for v in (net.max_logvar, net.min_logvar)] + [pad(b, W) for b in bounds]
        ),
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
    sampled: float = 1.0,
    interpret: Any = None,
) -> Imagined:
    """The result of `models.ensemble.rollout`, from a packed ensemble and its scaling."""
    net, scale = params
    E, dtype = net.inputs.shape[0], net.inputs.dtype
    G, S = particles // E, start.shape[0]
    N, H, A = actions.shape
    shape, rows = Shape.of(S, A, hidden, layers), -(-N // TILE_ROWS) * TILE_ROWS
    W, state_padding = shape.inputs, (0, shape.inputs - S)
    noise = state_noise(key, (H, E, 1, G, S), sampled)[:, :, 0] * (scale.target_sd[:S] / scale.input_sd[:S])
    scaled_actions = ((actions - scale.input_mean[S:]) / scale.input_sd[S:]).astype(dtype).swapaxes(0, 1)
    ones = jnp.ones((H, rows, BIAS_COLUMNS), dtype)
    action_padding = [(0, 0), (0, rows - N), (S, W - S - A - BIAS_COLUMNS)]
    scaled_actions = jnp.concatenate([jnp.pad(scaled_actions, action_padding), ones], -1)
    first_state = jnp.pad((start - scale.input_mean[:S]) / scale.input_sd[:S], state_padding)
    noise = jnp.pad(noise, [(0, 0)] * 3 + [state_padding])
    outputs = _kernel(shape, (E, H, G, rows), interpret)(*net, first_state, scaled_actions, noise)
    outputs = outputs[:, :, :, :N].transpose(4, 3, 0, 2, 1)  # [· N E G H]
    reward, cost = (outputs[n] * scale.target_sd[S + n] + scale.target_mean[S + n] for n in (0, 1))
    deviation = jnp.sqrt(outputs[3] + S * floor**2)
    u = jnp.broadcast_to(deviation.max(1, keepdims=True), deviation.shape)
    return Imagined(*(part.reshape(N, particles, H) for part in (reward, cost, u, outputs[4])))


def _kernel(shape: Shape, sizes: tuple[int, int, int, int], interpret: Any) -> Any:
    """The kernel that computes `[E H G rows OUTPUT_COLUMNS]`.

    It reads a packed ensemble, a first state, actions `[H rows W]` and noise `[H E G W]`.
    """
    (W, K, M, resident, _), (E, H, G, rows) = shape, sizes
    tiles = G * rows // TILE_ROWS
    buffer = partial(chip_buffer, interpret)
    loaded = plgpu.Barrier(num_arrivals=2 + len(resident))
    ring_barriers = plgpu.Barrier(num_barriers=2), plgpu.Barrier(num_arrivals=2, num_barriers=2)
    buffers = buffer(W, K), [buffer(K, K) for _ in resident], buffer(K, M), [buffer(n, K) for _, n in shape.pieces]

    def program(inputs: Any, hidden: Any, heads: Any, *arrays: Any) -> None:
        def with_buffers(w_in: Any, w_resident: Any, w_out: Any, ring: Any, loaded: Any, ring_barriers: Any) -> None:
            member, group = lax.axis_index("member"), lax.axis_index("group")

            @pl.when(group == 2)
            def _() -> None:
                plgpu.set_max_registers(40, action="decrease")
                _load_weights(shape, H, [matrix.at[member] for matrix in (inputs, hidden, heads)],
                       [w_in, w_resident, w_out, ring], loaded, ring_barriers)  # fmt: skip

            @pl.when(group < 2)
            def _() -> None:
                plgpu.set_max_registers(232, action="increase")
                tile = jnp.minimum(2 * lax.axis_index("pair") + group, tiles - 1)  # if odd, the last one twice
                particle, row = lax.div(tile, rows // TILE_ROWS), lax.rem(tile, rows // TILE_ROWS) * TILE_ROWS
                plgpu.barrier_wait(loaded)
                ops = InterpretedOps() if interpret else WgmmaOps()
                _imagine(shape, H, (member, particle, row), [w_in, w_resident, w_out, ring], ring_barriers, arrays, ops)

        pl.run_scoped(with_buffers, *buffers, loaded, ring_barriers, collective_axes="group")

    return plgpu.kernel(
        program,
        out_type=jax.ShapeDtypeStruct((E, H, G, rows, OUTPUT_COLUMNS), jnp.float32),
        grid=(E, -(-tiles // 2)),
        grid_names=("member", "pair"),
        num_threads=3,
        thread_name="group",
        compiler_params=plgpu.CompilerParams(approx_math=True, unsafe_no_auto_barriers=True),
        interpret=interpret,
    )


def chip_buffer(interpret: Any, *size: int, tile: int = PAD_MULTIPLE) -> Any:
    """Space on the chip for a matrix, in the layout that products of an H100 read."""
    if interpret:
        return plgpu.SMEM(size, jnp.float32)
    layouts = plgpu.TilingTransform((8, tile)), plgpu.SwizzleTransform(2 * tile)
    return plgpu.SMEM(size, jnp.bfloat16, transforms=layouts)


def _load_weights(shape: Shape, steps: int, matrices: Any, buffers: Any, loaded: Any, ring_barriers: Any) -> None:
    """Load a member's weights: the resident ones once, the streamed ones in every step.

    A piece is loaded as soon as both groups of warps have released the one before it.
    """
    (inputs, hidden, heads), (w_in, w_resident, w_out, ring), (full, free) = matrices, buffers, ring_barriers
    plgpu.copy_gmem_to_smem(inputs, w_in, loaded)
    for number, target in zip(shape.resident, w_resident, strict=True):
        plgpu.copy_gmem_to_smem(hidden.at[number], target, loaded)
    plgpu.copy_gmem_to_smem(heads, w_out, loaded)

    def stream(number: int, first: bool = False) -> None:
        for piece, (begin, size) in enumerate(shape.pieces):
            if not first:
                plgpu.barrier_wait(free.at[piece])
            plgpu.copy_gmem_to_smem(hidden.at[number, pl.ds(begin, size)], ring[piece], full.at[piece])

    for number in shape.streamed:
        stream(number, first=number == shape.streamed[0])

    @pl.loop(1, steps)
    def _(_: Any) -> None:
        for number in shape.streamed:
            stream(number)

    for piece in range(len(shape.pieces)):
        plgpu.barrier_wait(free.at[piece])


def _imagine(shape: Shape, steps: int, tile: Any, matrices: Any, ring_barriers: Any, arrays: Any, ops: Any) -> None:
    """All steps of one tile."""
    (w_in, w_resident, w_out, ring), (full, free) = matrices, ring_barriers
    units, first_state, actions, noise, out = arrays
    (member, particle, row), W = tile, shape.inputs
    pieces = range(len(shape.pieces))

    def hidden(h: Any, layer: int) -> Any:
        if layer in shape.resident:
            return ops.swish(ops.product([(h, w_resident[shape.resident.index(layer)])]))
        parts = [(h[:, begin : begin + size], ring[piece]) for piece, (begin, size) in enumerate(shape.pieces)]
        total = ops.product(parts, [full.at[piece] for piece in pieces])
        for piece in pieces:
            plgpu.barrier_arrive(free.at[piece])
        return ops.swish(total)

    def load_inputs(t: Any) -> tuple[Any, Any]:
        return ops.tile(actions.at[t, pl.ds(row, TILE_ROWS)]), ops.columns(noise.at[t, member, particle], W)

    column = ops.column_numbers()

    def step(t: Any, carry: Any) -> Any:
        state, alive, action, eps = carry
        next_inputs = load_inputs(jnp.minimum(t + 1, steps - 1))  # loaded while this step is computed
        h = ops.swish(ops.product([(state.astype(action.dtype) + action, w_in)]))
        for layer in range(len(shape.resident) + len(shape.streamed)):
            h = hidden(h, layer)
        y = ops.product([(h, w_out)])
        mean, raw, outputs = y[:, :W], y[:, W : 2 * W], y[:, 2 * W : 2 * W + OUTPUT_COLUMNS]
        largest, smallest, low, high = (ops.columns(units.at[n], W) for n in range(4))
        logvar = largest - softplus(largest - raw)
        sigma = jnp.exp(0.5 * (smallest + softplus(logvar - smallest)))
        ended = jnp.sum(jnp.where(column == 2, outputs, 0.0), axis=1)
        outputs = jnp.where(column == 3, ops.rows(jnp.sum(sigma * sigma, axis=1)), outputs)
        out[member, t, particle, pl.ds(row, TILE_ROWS)] = jnp.where(column == 4, ops.rows(alive), outputs)
        next_state = state + mean + sigma * eps
        next_state = jnp.where(next_state < low, low, jnp.where(next_state > high, high, next_state))  # NaN stays NaN
        return next_state, jnp.where(ended > 0.0, 0.0, alive), *next_inputs

    lax.fori_loop(0, steps, step, (ops.columns(first_state, W), ops.ones(), *load_inputs(jnp.int32(0))))


class WgmmaOps:
    """Operations of a group of warps on registers. They tell the compiler the layout of every array."""

    layout = plgpu.Layout.WGMMA

    def tile(self, ref: Any) -> Any:
        """Rows of an array, one for each candidate of the tile."""
        return plgpu.load(ref, (), layout=self.layout, optimized=False)

    def columns(self, ref: Any, width: int) -> Any:
        """A number for each column, the same in all rows."""
        vector = plgpu.load(ref, (), layout=self.layout.reduce(0), optimized=False)
        return plgpu.layout_cast(lax.broadcast_in_dim(vector, (TILE_ROWS, width), [1]), self.layout)

    def rows(self, vector: Any) -> Any:
        """A number for each row, the same in all columns."""
        return plgpu.layout_cast(lax.broadcast_in_dim(vector, (TILE_ROWS, OUTPUT_COLUMNS), [0]), self.layout)

    def ones(self) -> Any:
        """A 1 for each row."""
        return plgpu.layout_cast(jnp.ones(TILE_ROWS, jnp.float32), self.layout.reduce(1))

    def column_numbers(self) -> Any:
        """The number of each output column."""
        return plgpu.broadcasted_iota(jnp.int32, (TILE_ROWS, OUTPUT_COLUMNS), 1, layout=self.layout)

    def product(self, parts: Any, arrivals: Any = ()) -> Any:
        """Σ h W over pieces. Waits for the arrival of each piece that is still being loaded."""

        def accumulate(total: Any) -> Any:
            for number, (h, weights) in enumerate(parts):
                if arrivals:
                    plgpu.barrier_wait(arrivals[number])
                plgpu.wgmma(total, h, weights)
            return total[...]

        return pl.run_scoped(accumulate, plgpu.WGMMAAccumulatorRef((TILE_ROWS, parts[0][1].shape[1]), jnp.float32))

    def swish(self, half: Any) -> Any:
        """x σ(x) = x/2 + x/2 tanh(x/2), from x/2. The hardware's tanh is one instruction, accurate to 2⁻¹¹."""
        return (half + half * jnp.tanh(half)).astype(jnp.bfloat16)


class InterpretedOps(WgmmaOps):
    """The same operations without layouts, and exact."""

    def tile(self, ref: Any) -> Any:
        return ref[...]

    def columns(self, ref: Any, width: int) -> Any:
        return lax.broadcast_in_dim(ref[...], (TILE_ROWS, width), [1])

    def rows(self, vector: Any) -> Any:
        return lax.broadcast_in_dim(vector, (TILE_ROWS, OUTPUT_COLUMNS), [0])

    def ones(self) -> Any:
        return jnp.ones(TILE_ROWS, jnp.float32)

    def column_numbers(self) -> Any:
        return lax.broadcasted_iota(jnp.int32, (TILE_ROWS, OUTPUT_COLUMNS), 1)

    def product(self, parts: Any, arrivals: Any = ()) -> Any:
        for arrival in arrivals:
            plgpu.barrier_wait(arrival)
        return sum(jnp.dot(h[...], weights[...], preferred_element_type=jnp.float32) for h, weights in parts)

    def swish(self, half: Any) -> Any:
        return half + half * jnp.tanh(half)


def softplus(x: Float[Array, ...]) -> Float[Array, ...]:
    """log(1 + eˣ), from functions that the kernel has."""
    return jnp.maximum(x, 0.0) + jnp.log(1.0 + jnp.exp(-jnp.abs(x)))
