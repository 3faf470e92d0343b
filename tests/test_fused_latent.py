"""Is the kernel of an image model's recurrence the plain one, whatever the sizes?

On a CPU it is interpreted, as one program; `benchmarks/fused_images.py` compares the compiled one.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams  # has no public name yet

from capax.models import imagine, rssm
from capax.models.rssm import RSSMSettings
from capax.planning import fused_latent
from capax.planning.fused import padded
from capax.planning.fused_latent import Shape

SMALL = RSSMSettings(deter=20, stoch=5, hidden=18, depth=1)
STEPS, SD = 3, 0.1


def model(settings: RSSMSettings = SMALL, actions: int = 2) -> Any:
    """None of its biases is 0; drawn on the host, where nothing is compiled."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda key: rssm.init(key, 3, actions, settings), jr.key(0))
    return jax.tree.map(lambda leaf: jnp.asarray(0.3 * rng.normal(size=leaf.shape), leaf.dtype), shapes)


def given(settings: RSSMSettings = SMALL, actions: int = 2, candidates: int = 7, beliefs: tuple[int, ...] = ()) -> Any:
    rng = np.random.default_rng(1)
    h, s = (np.tanh(rng.normal(size=(*beliefs, size))).astype(np.float32) for size in (settings.deter, settings.stoch))
    moves = rng.uniform(-1.0, 1.0, (candidates, STEPS, actions)).astype(np.float32)
    return tuple(map(jnp.asarray, (h, s, moves, rng.normal(size=(STEPS, settings.stoch)).astype(np.float32))))


def plain(net: Any, *asked: Any) -> Any:
    return imagine.recurrence(net, *asked, min_sd=SD, dtype=jnp.float32)


@jax.jit
def kernel(net: Any, *asked: Any) -> Any:
    columns = padded(max(net.gru.h.w.shape[0], net.prior[0].w.shape[1]) + 2)
    packed = fused_latent.pack(net, jnp.float32, columns)
    begun = fused_latent.begin(packed, *asked[:2], len(asked[2]))
    laid = fused_latent.recurrence(packed, begun, *asked[2:], min_sd=SD, interpret=InterpretGPUParams())
    (T, C, rows, P), N, sizes = laid.h.shape, len(asked[2]), [part.shape[-1] for part in asked[:2]]
    return laid.h.swapaxes(1, 2).reshape(T, rows, C * P)[:, :N, : sizes[0]], laid.s[:, :N, : sizes[1]]


def agree(one: Any, other: Any) -> None:
    for a, b in zip(one, other, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize(("changes", "actions", "candidates"), [
    ({}, 2, 7),  # a part of a tile
    ({"deter": 64, "hidden": 40}, 1, 70),  # a tile and a part of one
    ({"deter": 14, "stoch": 16, "hidden": 30}, 4, 3),  # the ones end where the padding does
])  # fmt: skip
def test_it_is_the_plain_recurrence(changes, actions, candidates):
    settings = RSSMSettings(**{**vars(SMALL), **changes})
    net, asked = model(settings, actions), given(settings, actions, candidates)
    one = plain(net, *asked)
    assert all(float(part.std(axis=1).mean()) > 0.03 for part in one)  # candidates differ
    agree(one, kernel(net, *asked))


def test_every_candidate_may_have_a_belief_of_its_own():
    net, asked = model(), given(beliefs=(7,))
    agree(plain(net, *asked), kernel(net, *asked))


def test_lanes_are_a_vmap():
    net, asked = model(), given()
    nets = [net, jax.tree.map(lambda leaf: 0.9 * leaf, net)]
    together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *nets)
    made = jax.vmap(lambda own: kernel(own, *asked))(together)
    for lane in (0, 1):
        agree(plain(nets[lane], *asked), [part[lane] for part in made])


def test_parts_are_the_whole():
    # what a cluster's programs are given, put together again, is what one program has that makes all columns
    net = model()
    one, parts = (fused_latent.pack(net, jnp.float32, columns) for columns in (32, 16))
    assert parts.of_x.shape[0] == 2 and one.of_x.shape[0] == 1
    X = one.of_x.shape[1]
    joined = parts.of_x.reshape(2, X, 3, 16).transpose(1, 2, 0, 3).reshape(X, 96)
    np.testing.assert_array_equal(joined, one.of_x[0])
    joined = parts.of_h.reshape(2, 32, 3, 16).transpose(1, 2, 0, 3).reshape(32, 96)
    np.testing.assert_array_equal(joined, one.of_h[0, 0])
    np.testing.assert_array_equal(parts.hidden.reshape(2, 32, 16).swapaxes(0, 1).reshape(32, 32), one.hidden[0, 0])
    np.testing.assert_array_equal(parts.prior.reshape(32, -1), one.prior[0])


def test_biases_in_bfloat16_lose_nothing():
    net = model()
    packed = fused_latent.pack(net)
    carried = packed.of_x.astype(jnp.float32)[0, SMALL.deter : SMALL.deter + 2].sum(0)
    of_x, of_h = (jnp.split(layer.b, 3) for layer in (net.gru.x, net.gru.h))
    wanted = [of_x[2], (of_x[0] + of_h[0]) / 2.0, (of_x[1] + of_h[1]) / 2.0]
    for at, bias in zip((0, 32, 64), wanted, strict=True):
        np.testing.assert_allclose(carried[at : at + SMALL.deter], bias, rtol=2.0**-15, atol=2.0**-15)


def test_sizes_that_have_room():
    assert Shape.of(200, 200, 30, 3) == (7, 32, 208, 32, 16)  # the paper's
    assert fused_latent.fits(200, 200, 30, 3) and fused_latent.fits(32, 254, 30, 3)
    assert not fused_latent.fits(255, 200, 30, 3) and not fused_latent.fits(200, 255, 30, 3)
    assert not fused_latent.fits(200, 200, 200, 3)
    assert Shape.of(200, 200, 30, 3).drawn(12) == 12 and Shape.of(200, 200, 30, 3).drawn(250) == 1
    assert Shape.of(64, 64, 30, 3).drawn(256) == 256 and Shape.of(64, 64, 30, 3).drawn(257) == 1


def test_noise_that_has_no_room_on_the_chip_is_read_as_it_is_needed(monkeypatch):
    asked = given(SMALL, 2, 5)
    with_room = kernel(model(), *asked)
    monkeypatch.setattr(fused_latent, "ON_CHIP", 0)
    for near, far in zip(with_room, kernel(model(), *asked), strict=True):
        np.testing.assert_array_equal(near, far)
