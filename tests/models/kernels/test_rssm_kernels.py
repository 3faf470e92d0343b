"""The kernels of an image model's plans equal the plain rollout, and are used where they should be.

On a CPU they are interpreted; `benchmarks/fused_images.py` compares the compiled kernels.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams  # has no public name yet
from test_recurrence_kernel import SMALL, random_inputs, random_model

from capax.models import rssm_rollout
from capax.models.kernels import heads_kernel, rssm_kernels
from capax.models.kernels.ensemble_kernel import padded_size
from capax.models.rssm import Belief, RSSMSettings

KEY = jr.key(4)


def plain_rollout(settings: RSSMSettings, net: Any, h: Any, s: Any, actions: Any) -> Any:
    return rssm_rollout.rollout((net, None), Belief(h, s), actions, KEY, settings=settings)


def interpreted_rollout(
    settings: RSSMSettings, monkeypatch: pytest.MonkeyPatch, net: Any, h: Any, s: Any, actions: Any
) -> Any:
    columns = padded_size(max(settings.deter, settings.hidden) + 2)
    kernels = SimpleNamespace(rollout=partial(rssm_kernels.rollout, interpret=InterpretGPUParams()))
    monkeypatch.setattr(rssm_rollout, "fused_kernels", lambda *sizes: kernels)
    packed = rssm_kernels.pack(net, jnp.float32, columns)
    return rssm_rollout.rollout((None, packed), Belief(h, s), actions, KEY, settings=settings)


@pytest.mark.parametrize(("changes", "actions", "candidates", "programs"), [
    ({"deter": 40, "hidden": 30, "stoch": 17, "members": 3}, 1, 70, 4),  # several tiles per program, the last one twice
    ({"hidden": 14, "members": 1, "floor": 0.0}, 3, 3, 132),  # fewer tiles than programs; one member has no variance
])  # fmt: skip
def test_kernels_equal_the_plain_rollout(changes, actions, candidates, programs, monkeypatch):
    monkeypatch.setattr(heads_kernel, "PROGRAMS", programs)
    settings = RSSMSettings(**{**vars(SMALL), **changes})
    net, (h, s, moves, _) = random_model(settings, actions), random_inputs(settings, actions, candidates)
    expected = plain_rollout(settings, net, h, s, moves)
    assert float(expected.reward.std()) > 0.01 and float(expected.cost.std()) > 0.01  # candidates differ
    result = interpreted_rollout(settings, monkeypatch, net, h, s, moves)
    for one, other in zip(expected, result, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_kernels_lower_for_a_gpu():
    # this checks what a machine without a GPU can: sizes, operations and layouts that Mosaic refuses fail here
    settings = RSSMSettings()
    inputs = jax.eval_shape(lambda: (random_model(settings, 3), *random_inputs(settings, 3, 1000)))
    device = jax.sharding.AbstractDevice("NVIDIA H200", None, "gpu")  # JAX 0.11 needs the kind

    def pack_and_rollout(net: Any, h: Any, s: Any, *inputs: Any) -> Any:
        packed = rssm_kernels.pack(net)
        return rssm_kernels.rollout(
            packed, rssm_kernels.prepare_start(packed, h, s, 1000), *inputs, min_sd=0.1, members=5, stoch=30
        )

    stacked = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2, *leaf.shape), leaf.dtype), inputs)
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((1,), ("x",), abstract_device=device)):
        for call, arguments in ((pack_and_rollout, inputs), (jax.vmap(pack_and_rollout), stacked)):
            text = jax.jit(call).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
            assert text.count("mosaic_gpu") >= 3


def test_sizes_that_fit():
    assert rssm_kernels.fits(200, 200, 30, 3, 5)  # the paper's
    assert not rssm_kernels.fits(200, 200, 30, 3, 9)  # too many members for one product
    assert not rssm_kernels.fits(255, 200, 30, 3, 5) and not rssm_kernels.fits(200, 255, 30, 3, 5)


def test_kernels_are_used_only_on_measured_gpus(monkeypatch):
    assert (
        rssm_rollout.fused_kernels(RSSMSettings(), 3) is None
        and rssm_rollout.prepare_rollout(random_model(), SMALL)[1] is None
    )
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(compute_capability="9.0")])
    assert rssm_rollout.fused_kernels(RSSMSettings(), 3) is rssm_kernels
    assert (
        rssm_rollout.fused_kernels(RSSMSettings(products="float32"), 3)
        is rssm_rollout.fused_kernels(RSSMSettings(deter=300), 3)
        is None
    )
    assert rssm_rollout.fused_kernels(RSSMSettings(floor=0.0), 3) is None
    assert rssm_rollout.prepare_rollout(random_model(), SMALL)[1] is not None
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(compute_capability="8.0")])
    assert rssm_rollout.fused_kernels(RSSMSettings(), 3) is None
