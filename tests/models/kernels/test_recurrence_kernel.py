"""The kernel of an image model's recurrence equals the plain recurrence for all sizes.

On a CPU it is interpreted as one program; `benchmarks/fused_images.py` compares the compiled kernel.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams  # has no public name yet
from support.rssm_model import SMALL, random_inputs, random_model

from capax.models import rssm_rollout
from capax.models.kernels import recurrence_kernel
from capax.models.kernels.ensemble_kernel import padded_size
from capax.models.kernels.recurrence_kernel import Shape
from capax.models.rssm import RSSMSettings

SD = 0.1


def plain_recurrence(net: Any, *inputs: Any) -> Any:
    return rssm_rollout.recurrence(net, *inputs, min_sd=SD, dtype=jnp.float32)


@jax.jit
def kernel_recurrence(net: Any, *inputs: Any) -> Any:
    columns = padded_size(max(net.gru.h.w.shape[0], net.prior[0].w.shape[1]) + 2)
    packed = recurrence_kernel.pack(net, jnp.float32, columns)
    starts = recurrence_kernel.prepare_start(packed, *inputs[:2], len(inputs[2]))
    tiles = recurrence_kernel.recurrence(packed, starts, *inputs[2:], min_sd=SD, interpret=InterpretGPUParams())
    (T, C, rows, P), N, sizes = tiles.h.shape, len(inputs[2]), [part.shape[-1] for part in inputs[:2]]
    return tiles.h.swapaxes(1, 2).reshape(T, rows, C * P)[:, :N, : sizes[0]], tiles.s[:, :N, : sizes[1]]


def assert_close(one: Any, other: Any) -> None:
    for a, b in zip(one, other, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize(("changes", "actions", "candidates"), [
    ({}, 2, 7),  # less than a tile
    ({"deter": 64, "hidden": 40}, 1, 70),  # one full tile and a partial one
    ({"deter": 14, "stoch": 16, "hidden": 30}, 4, 3),  # the columns of ones end where the padding ends
])  # fmt: skip
def test_kernel_equals_the_plain_recurrence(changes, actions, candidates):
    settings = RSSMSettings(**{**vars(SMALL), **changes})
    net, inputs = random_model(settings, actions), random_inputs(settings, actions, candidates)
    one = plain_recurrence(net, *inputs)
    assert all(float(part.std(axis=1).mean()) > 0.03 for part in one)  # candidates differ
    assert_close(one, kernel_recurrence(net, *inputs))


def test_each_candidate_can_have_its_own_belief():
    net, inputs = random_model(), random_inputs(beliefs=(7,))
    assert_close(plain_recurrence(net, *inputs), kernel_recurrence(net, *inputs))


def test_vmap_over_lanes_equals_single_calls():
    net, inputs = random_model(), random_inputs()
    nets = [net, jax.tree.map(lambda leaf: 0.9 * leaf, net)]
    stacked_nets = jax.tree.map(lambda *leaves: jnp.stack(leaves), *nets)
    results = jax.vmap(lambda net: kernel_recurrence(net, *inputs))(stacked_nets)
    for lane in (0, 1):
        assert_close(plain_recurrence(nets[lane], *inputs), [part[lane] for part in results])


def test_parts_join_to_the_matrices_of_one_program():
    # the columns of a cluster's programs, joined, are those of one program that computes all columns
    net = random_model()
    one, parts = (recurrence_kernel.pack(net, jnp.float32, columns) for columns in (32, 16))
    assert parts.x_gates.shape[0] == 2 and one.x_gates.shape[0] == 1
    X = one.x_gates.shape[1]
    joined = parts.x_gates.reshape(2, X, 3, 16).transpose(1, 2, 0, 3).reshape(X, 96)
    np.testing.assert_array_equal(joined, one.x_gates[0])
    joined = parts.h_gates.reshape(2, 32, 3, 16).transpose(1, 2, 0, 3).reshape(32, 96)
    np.testing.assert_array_equal(joined, one.h_gates[0, 0])
    np.testing.assert_array_equal(parts.hidden.reshape(2, 32, 16).swapaxes(0, 1).reshape(32, 32), one.hidden[0, 0])
    np.testing.assert_array_equal(parts.prior.reshape(32, -1), one.prior[0])


def test_bfloat16_biases_keep_their_precision():
    net = random_model()
    packed = recurrence_kernel.pack(net)
    bias_sum = packed.x_gates.astype(jnp.float32)[0, SMALL.deter : SMALL.deter + 2].sum(0)
    of_x, of_h = (jnp.split(layer.b, 3) for layer in (net.gru.x, net.gru.h))
    expected = [of_x[2], (of_x[0] + of_h[0]) / 2.0, (of_x[1] + of_h[1]) / 2.0]
    for at, bias in zip((0, 32, 64), expected, strict=True):
        np.testing.assert_allclose(bias_sum[at : at + SMALL.deter], bias, rtol=2.0**-15, atol=2.0**-15)


def test_sizes_that_fit():
    assert Shape.of(200, 200, 30, 3) == (7, 32, 208, 32, 16)  # the paper's
    assert recurrence_kernel.fits(200, 200, 30, 3) and recurrence_kernel.fits(32, 254, 30, 3)
    assert not recurrence_kernel.fits(255, 200, 30, 3) and not recurrence_kernel.fits(200, 255, 30, 3)
    assert not recurrence_kernel.fits(200, 200, 200, 3)
    assert Shape.of(200, 200, 30, 3).noise_steps(12) == 12 and Shape.of(200, 200, 30, 3).noise_steps(250) == 1
    assert Shape.of(64, 64, 30, 3).noise_steps(256) == 256 and Shape.of(64, 64, 30, 3).noise_steps(257) == 1


def test_noise_that_does_not_fit_on_the_chip_is_read_step_by_step(monkeypatch):
    net, inputs = random_model(), random_inputs(SMALL, 2, 5)
    loaded_at_once = kernel_recurrence(net, *inputs)
    monkeypatch.setattr(recurrence_kernel, "CHIP_BYTES", 0)
    step_by_step = jax.jit(lambda *arguments: kernel_recurrence.__wrapped__(*arguments))(net, *inputs)  # traced again
    for one, other in zip(loaded_at_once, step_by_step, strict=True):
        np.testing.assert_array_equal(one, other)
