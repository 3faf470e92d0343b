"""Are the kernels of an image model's plans the plain rollout, whatever the sizes, and are they taken where they should be?

On a CPU they are interpreted; `benchmarks/fused_images.py` compares the compiled ones.
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
from test_fused_latent import SMALL, given, model

from capax.models import imagine
from capax.models.rssm import Belief, RSSMSettings
from capax.planning import fused_heads, fused_images
from capax.planning.fused import padded

KEY = jr.key(4)


def plain(settings: RSSMSettings, net: Any, h: Any, s: Any, actions: Any) -> Any:
    return imagine.rollout((net, None), Belief(h, s), actions, KEY, settings=settings)


def interpreted(settings: RSSMSettings, monkeypatch: pytest.MonkeyPatch, net: Any, h: Any, s: Any, actions: Any) -> Any:
    columns = padded(max(settings.deter, settings.hidden) + 2)
    own = SimpleNamespace(rollout=partial(fused_images.rollout, interpret=InterpretGPUParams()))
    monkeypatch.setattr(imagine, "fused", lambda *sizes: own)
    packed = fused_images.pack(net, jnp.float32, columns)
    return imagine.rollout((None, packed), Belief(h, s), actions, KEY, settings=settings)


@pytest.mark.parametrize(("changes", "actions", "candidates", "programs"), [
    ({"deter": 40, "hidden": 30, "stoch": 17, "members": 3}, 1, 70, 4),  # programs with several tiles, the last one twice
    ({"hidden": 14, "members": 1, "floor": 0.0}, 3, 3, 132),  # fewer tiles than programs; one member has no variance
])  # fmt: skip
def test_it_is_the_plain_rollout(changes, actions, candidates, programs, monkeypatch):
    monkeypatch.setattr(fused_heads, "PROGRAMS", programs)
    settings = RSSMSettings(**{**vars(SMALL), **changes})
    net, (h, s, moves, _) = model(settings, actions), given(settings, actions, candidates)
    wanted = plain(settings, net, h, s, moves)
    assert float(wanted.reward.std()) > 0.01 and float(wanted.cost.std()) > 0.01  # candidates differ
    found = interpreted(settings, monkeypatch, net, h, s, moves)
    for one, other in zip(wanted, found, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_they_are_understood_by_the_compiler_for_gpus():
    # as far as a machine without one can tell: what Mosaic does not take (sizes, operations, layouts) fails here
    settings = RSSMSettings()
    asked = jax.eval_shape(lambda: (model(settings, 3), *given(settings, 3, 1000)))
    device = jax.sharding.AbstractDevice("NVIDIA H200", None, "gpu")  # JAX 0.11 asks which

    def made(net: Any, h: Any, s: Any, *asked: Any) -> Any:
        packed = fused_images.pack(net)
        return fused_images.rollout(
            packed, fused_images.begin(packed, h, s, 1000), *asked, min_sd=0.1, members=5, stoch=30
        )

    several = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2, *leaf.shape), leaf.dtype), asked)
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((1,), ("x",), abstract_device=device)):
        for call, arguments in ((made, asked), (jax.vmap(made), several)):
            text = jax.jit(call).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
            assert text.count("mosaic_gpu") >= 3


def test_sizes_that_have_room():
    assert fused_images.fits(200, 200, 30, 3, 5)  # the paper's
    assert not fused_images.fits(200, 200, 30, 3, 9)  # too many members for one product
    assert not fused_images.fits(255, 200, 30, 3, 5) and not fused_images.fits(200, 255, 30, 3, 5)


def test_they_are_taken_where_they_are_measured(monkeypatch):
    assert imagine.fused(RSSMSettings(), 3) is None and imagine.ready(model(), SMALL)[1] is None
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(compute_capability="9.0")])
    assert imagine.fused(RSSMSettings(), 3) is fused_images
    assert imagine.fused(RSSMSettings(products="float32"), 3) is imagine.fused(RSSMSettings(deter=300), 3) is None
    assert imagine.fused(RSSMSettings(floor=0.0), 3) is None
    assert imagine.ready(model(), SMALL)[1] is not None
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(compute_capability="8.0")])
    assert imagine.fused(RSSMSettings(), 3) is None
