"""Is the kernel of an image model's step the plain step, whatever the sizes, and is it taken where it should be?"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from capax.models import imagine, rssm
from capax.models.rssm import Belief, RSSMSettings
from capax.planning import fused_latent
from capax.planning.ccem import Imagined

SMALL = RSSMSettings(deter=20, stoch=5, hidden=18, depth=1, products="float32")


def asked(settings: RSSMSettings, actions: int, candidates: int, steps: int = 3) -> tuple[Any, ...]:
    """A model whose biases are not 0, a belief, candidates and a key; drawn on the host, where nothing is compiled."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda key: rssm.init(key, 3, actions, settings), jr.key(0))
    net = jax.tree.map(lambda leaf: jnp.asarray(0.2 * rng.normal(size=leaf.shape), leaf.dtype), shapes)
    h, s = (jnp.asarray(np.tanh(rng.normal(size=size)), jnp.float32) for size in (settings.deter, settings.stoch))
    moves = jnp.asarray(rng.uniform(-1.0, 1.0, (candidates, steps, actions)), jnp.float32)
    return (net, None), Belief(h, s), moves, jr.key(1)


def agree(one: Imagined, other: Imagined, tolerance: float) -> None:
    for a, b in zip(one, other, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * float(jnp.abs(b).max()))


def rollouts(settings: RSSMSettings, *given: Any) -> tuple[Imagined, Imagined]:
    kernel = partial(fused_latent.recurrence, interpret=True)
    return tuple(
        jax.jit(partial(imagine.rollout, settings=settings, recurrence=way))(*given)
        for way in (imagine.recurrence, kernel)
    )


@pytest.mark.parametrize(("changes", "actions", "candidates"), [
    ({}, 2, 7),  # a part of a tile
    ({"deter": 64, "hidden": 40}, 1, 70),  # two groups of columns, a tile and a part of one
    ({"deter": 16, "stoch": 16, "hidden": 16}, 4, 3),  # a state beside its action needs more room
])  # fmt: skip
def test_it_is_the_plain_step(changes, actions, candidates):
    settings = RSSMSettings(**{**vars(SMALL), **changes})
    plain, kernel = rollouts(settings, *asked(settings, actions, candidates))
    assert float(plain.reward.std()) > 0.01 and float(plain.cost.std()) > 0.01
    agree(kernel, plain, 1e-4)


def test_half_precision_is_near():
    settings = RSSMSettings(**{**vars(SMALL), "products": "bfloat16"})
    given = asked(SMALL, 2, 30)
    exact, _ = rollouts(SMALL, *given)
    plain, kernel = rollouts(settings, *given)
    for a, b, c in zip(exact[:3], plain[:3], kernel[:3], strict=True):
        assert float(jnp.abs(c - a).mean()) < 2.0 * float(jnp.abs(b - a).mean()) + 1e-6


def test_lanes_are_a_vmap():
    given = [asked(SMALL, 2, 5), (*asked(SMALL, 2, 5)[:3], jr.key(9))]
    kernel = partial(imagine.rollout, settings=SMALL, recurrence=partial(fused_latent.recurrence, interpret=True))
    together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *given)
    made = jax.vmap(lambda own: kernel(*own))(together)
    for lane in (0, 1):
        agree(jax.tree.map(lambda leaf, lane=lane: leaf[lane], made), kernel(*given[lane]), 1e-5)


def test_it_is_understood_by_the_compiler_for_gpus():
    settings = RSSMSettings(products="bfloat16")
    way = partial(imagine.rollout, settings=settings, recurrence=fused_latent.recurrence)
    given = jax.eval_shape(lambda: asked(settings, 3, 1000, 12))
    text = jax.jit(way).trace(*given).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("imagine") >= 12


def test_it_is_taken_where_it_is_measured(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(compute_capability="9.0")])
    monkeypatch.setattr(fused_latent, "MEASURED", ("9.0",))
    assert imagine.way(RSSMSettings()) is fused_latent.recurrence
    assert imagine.way(RSSMSettings(products="float32")) is imagine.way(RSSMSettings(deter=300)) is imagine.recurrence
    monkeypatch.setattr(fused_latent, "MEASURED", ())
    assert imagine.way(RSSMSettings()) is imagine.recurrence


def test_a_cpu_takes_the_plain_step():
    assert imagine.way(RSSMSettings()) is imagine.recurrence
