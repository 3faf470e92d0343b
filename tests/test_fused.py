"""Does the kernel imagine what the plain rollout does, at any size and however it is cut?

On a CPU it is interpreted; `benchmarks/fused.py` compares the compiled one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from capax.agents.pets import Pets, PetsSettings
from capax.errors import InputError
from capax.kappa import Fixed
from capax.models import ensemble
from capax.models.ensemble import Ensemble, EnsembleSettings, Scaling
from capax.planning import fused
from capax.planning.ccem import CEM, Imagined, plan
from capax.planning.fused import Shape, Tiling, pieces
from capax.types import Spec

SMALL = EnsembleSettings(members=3, hidden=20, layers=3, particles=9, products="float32")
S, A, N, H = 5, 3, 7, 4
TILE = Tiling(rows=16)


def model(
    settings: EnsembleSettings = SMALL, states: int = S, actions: int = A, binary: bool = False, ends: bool = False
) -> tuple[Ensemble, Scaling]:
    """Nothing in it is 0 or 1, and the bounds of the states are near."""
    rng = np.random.default_rng(states)

    def normal(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32)

    sizes = [states + actions, *[settings.hidden] * settings.layers, 2 * (states + 2) + 1]
    E, pairs = settings.members, list(pairwise(sizes))
    weights = tuple(1.2 * normal(E, i, o) / np.float32(np.sqrt(i)) for i, o in pairs)  # inputs matter to what comes out
    biases = tuple(0.5 * normal(E, 1, o) for _, o in pairs)
    net = Ensemble(weights, biases, normal(states + 2), normal(states + 2) - 4.0)
    target_mean, target_sd = 0.3 * normal(states + 2), np.exp(0.5 * normal(states + 2))
    if binary:
        target_mean[-1], target_sd[-1] = 0.0, 1.0
    low, high = -1.0 - np.abs(normal(states)), 1.0 + np.abs(normal(states))
    scale = Scaling(
        normal(states + actions), np.exp(0.5 * normal(states + actions)), target_mean, target_sd, low, high,
        np.asarray(binary), np.asarray(ends),
    )  # fmt: skip
    return jax.tree.map(jnp.asarray, (net, scale))


def given(states: int = S, actions: int = A, candidates: int = N) -> tuple[Any, Any, Any]:
    k_start, k_action = jr.split(jr.key(1))
    return jr.normal(k_start, (states,)), jr.uniform(k_action, (candidates, H, actions), minval=-1.0), jr.key(2)


@partial(jax.jit, static_argnames=("settings", "tiling"))
def kernel(params: Any, *asked: Any, settings: EnsembleSettings = SMALL, tiling: Tiling = TILE) -> Imagined:
    packed = fused.pack(*params, dtype=settings.products, piece=tiling.piece)
    sizes = {name: getattr(settings, name) for name in ("particles", "hidden", "layers", "floor")}
    return fused.rollout((packed, params[1]), *asked, tiling=tiling, interpret=True, **sizes)


plain = jax.jit(ensemble.rollout, static_argnames="settings")


def agree(one: Imagined, other: Imagined, tolerance: float = 1e-5) -> None:
    for a, b in zip(one, other, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("states", "actions", "candidates", "changes"), [
    (5, 3, 7, {}),  # 21 rows of a member: a tile and a part of one
    (1, 1, 16, {"members": 1, "particles": 1}),  # a tile exactly; reward, cost and end need more room than the action
    (17, 6, 3, {"members": 5, "particles": 20, "layers": 4}),  # HalfCheetah's
    (16, 9, 2, {"hidden": 16, "layers": 2}),
    (3, 13, 5, {"hidden": 33, "layers": 1, "members": 2, "particles": 10}),
])  # fmt: skip
def test_it_is_the_plain_rollout(states, actions, candidates, changes):
    settings = replace(SMALL, **changes)
    params, asked = model(settings, states, actions), given(states, actions, candidates)
    one, other = plain(params, *asked, settings=settings), kernel(params, *asked, settings=settings)
    assert float(one.reward.std()) > 0.05 and float(one.uncertainty.std()) > 0.001
    agree(one, other)


def test_bounds_of_states_are_kept():
    params, asked = model(), given()
    wide = params[0], params[1]._replace(low=jnp.full(S, -1e6), high=jnp.full(S, 1e6))
    one, other = kernel(params, *asked), kernel(wide, *asked)
    assert float(jnp.abs(one.reward - other.reward).max()) > 0.01
    agree(plain(wide, *asked, settings=SMALL), other)


@pytest.mark.parametrize("binary", [False, True])
def test_endings_and_logits(binary):
    params, asked = model(binary=binary, ends=True), given()
    one, other = plain(params, *asked, settings=SMALL), kernel(params, *asked)
    assert 0.1 < float(one.alive.mean()) < 0.9
    agree(one, other)
    never = params[0], params[1]._replace(ends=jnp.asarray(False))
    assert bool((kernel(never, *asked).alive == 1.0).all())


def test_bfloat16_is_near():
    settings = replace(SMALL, products="bfloat16")
    params, asked = model(), given()
    exact, rounded, got = (
        plain(params, *asked, settings=SMALL),
        plain(params, *asked, settings=settings),
        kernel(params, *asked, settings=settings),
    )
    # eight bits: errors of some 2⁻⁸ that grow from step to step, in the kernel no more than in the plain rollout
    for a, b, c in zip(exact[:3], rounded[:3], got[:3], strict=True):
        assert float(jnp.abs(c - a).mean()) < 1.5 * float(jnp.abs(b - a).mean()) + 1e-6
        assert 0.0 < float(jnp.abs(c - a).mean()) < 0.02 * float(jnp.abs(a).mean())


@pytest.mark.parametrize("tiling", [
    Tiling(rows=32), Tiling(rows=64), Tiling(rows=16, stages=2), Tiling(rows=16, stages=2, kept=()),
    Tiling(rows=16, piece=16), Tiling(rows=16, kept=(1, 2)), Tiling(rows=16, kept=()),
])  # fmt: skip
def test_tilings_change_nothing(tiling):
    params, asked = model(ends=True), given()
    agree(kernel(params, *asked), kernel(params, *asked, tiling=tiling), 1e-5)


def test_what_is_not_a_number_stays_so():
    # the planner refuses a candidate by it: a bound that took a number's place would make it look sound again
    (net, scale), (start, actions, key) = model(), given()
    broken = actions.at[2, 1].set(jnp.nan)
    got = kernel((net, scale), start, broken, key)
    for part in got[:2]:
        assert bool(jnp.isnan(part[2, :, 1:]).all()) and bool(jnp.isfinite(part[:2]).all())
        assert bool(jnp.isfinite(part[3:]).all()) and bool(jnp.isfinite(part[2, :, 0]).all())


def test_lanes_are_a_vmap():
    params, (start, actions, key) = model(), given()
    starts = jnp.stack([start, -start])
    both = jax.vmap(lambda s: kernel(params, s, actions, key))(starts)
    for i in range(2):
        agree(jax.tree.map(lambda x, i=i: x[i], both), kernel(params, starts[i], actions, key))


def test_plans_are_the_plain_ones():
    params, (start, *_) = model(), given()
    cem = CEM(horizon=H, iterations=2, population=20, elites=5)
    asked = (jr.key(0), params, start, jnp.zeros((H, A)), 0.5, jnp.inf, False)
    found = [plan(*asked, rollout=rollout, cem=cem)[0] for rollout in (partial(plain, settings=SMALL), partial(kernel))]
    np.testing.assert_allclose(*found, atol=1e-5)


def test_pieces_are_powers_of_two():
    assert pieces(208, 128) == [128, 64, 16] and pieces(208, 64) == [64, 64, 64, 16] and pieces(256, 256) == [256]
    shape = Shape.of(17, 6, 200, 4)
    assert shape == (17, 32, 208, 4)  # 23 inputs; 17 states, reward, cost and the end
    blocks = [b for matrix in shape.blocks(128) for column in matrix for b in column]
    assert len(blocks) == 3 + 3 * 9 + 2 * 3
    ends = [b.at + b.k * b.n for b in blocks]
    assert [b.at for b in blocks] == [0, *ends[:-1]] and ends[-1] == 32 * 208 + 3 * 208**2 + 208 * 64


def test_the_hardwares_tanh_gives_the_same_swish(monkeypatch):
    monkeypatch.setattr(fused.plgpu, "approx_tanh", jnp.tanh)
    half = jnp.linspace(-20.0, 20.0, 101)
    np.testing.assert_allclose(fused.swish(half, exact=False), jax.nn.swish(2.0 * half), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(fused.swish(half, exact=True), jax.nn.swish(2.0 * half), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")  # in JAX 0.11
@pytest.mark.parametrize("products", ["bfloat16", "float32"])
@pytest.mark.parametrize("tiling", [fused.USUAL, fused.ROOMY, Tiling(128, 8, 2, kept=())])
def test_it_is_understood_by_the_compiler_for_gpus(products, tiling):
    # as far as a machine without one can tell: what Triton does not take (sizes, operations, captured arrays) fails here
    settings = EnsembleSettings(products=products)
    params = jax.eval_shape(lambda: (ensemble.init(jr.key(0), 17, 6, settings), model(settings, 17, 6)[1]))

    def imagine(params: Any, start: Any, actions: Any, key: Any) -> Imagined:
        packed = fused.pack(*params, dtype=products, piece=tiling.piece), params[1]
        return fused.rollout(packed, start, actions, key, particles=20, hidden=200, layers=4, floor=0.1, tiling=tiling)

    asked = (jnp.zeros(17), jnp.zeros((500, 30, 6)), jr.key(0))
    device = jax.sharding.AbstractDevice("NVIDIA H200", None, "gpu")  # JAX 0.11 asks which
    many = jax.tree.map(lambda leaf: jnp.zeros((3, *leaf.shape), leaf.dtype), (params, *asked[:2]))
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((1,), ("x",), abstract_device=device)):
        for call, given in ((imagine, (params, *asked)), (jax.vmap(imagine), (*many, jr.split(jr.key(0), 3)))):
            text = jax.jit(call).trace(*given).lower(lowering_platforms=("cuda",)).as_text()
            assert "__gpu$xla.gpu.triton" in text


def test_several_are_made_as_one():
    # what lanes do: one more dimension to the grid
    one = model()
    models = [one, jax.tree.map(lambda leaf: leaf if leaf.dtype == bool else 0.9 * leaf, one)]
    asked = [given(), (*given()[:2], jr.key(7))]
    together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *zip(models, asked, strict=True))
    made = jax.vmap(lambda own: kernel(own[0], *own[1]))(together)
    for lane in (0, 1):
        agree(kernel(models[lane], *asked[lane]), jax.tree.map(lambda leaf, lane=lane: leaf[lane], made))


# Which one is taken.


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that seems to have an H200."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(compute_capability="9.0")])


def taken(obs_dim: int = 17, **changes: Any) -> str:
    return str(ensemble.imagination(EnsembleSettings(**changes), obs_dim, 6)[1].func.__module__.rpartition(".")[2])


def test_a_cpu_takes_the_plain_rollout():
    assert taken() == taken(rollout="plain") == "ensemble"


def test_fused_without_a_gpu_is_refused():
    with pytest.raises(InputError, match=r"^rollout is fused, and JAX finds no GPU here: choose auto or plain.$"):
        ensemble.imagination(EnsembleSettings(rollout="fused"), 17, 6)
    settings = PetsSettings(ensemble=EnsembleSettings(rollout="fused"))
    with pytest.raises(InputError, match="no GPU"):
        Pets(Spec(limit=1.0, gamma=0.99, episode_steps=10, discounted=False), Fixed(0.0), 17, 6, settings, 512)


def test_auto_takes_the_kernel_where_it_is_measured(gpu, monkeypatch):
    monkeypatch.setattr(fused, "MEASURED", ())
    assert taken() == "ensemble" and taken(rollout="fused") == "fused"
    monkeypatch.setattr(fused, "MEASURED", ("9.0",))
    assert taken() == "fused" and taken(rollout="plain") == "ensemble"
    assert taken(exact=True) == taken(products="float32") == taken(hidden=300) == taken(obs_dim=70) == "ensemble"


@pytest.mark.parametrize(("hidden", "layers", "dtype", "tiling"), [
    (200, 4, "bfloat16", fused.ROOMY),
    (200, 4, "float32", fused.USUAL),  # twice the bytes
    (256, 4, "bfloat16", fused.USUAL),
    (200, 2, "bfloat16", fused.USUAL),  # has no two hidden layers to keep
])  # fmt: skip
def test_the_roomy_tiling_is_taken_where_there_is_room(gpu, hidden, layers, dtype, tiling):
    settings = EnsembleSettings(rollout="fused", hidden=hidden, layers=layers, products=dtype)
    assert ensemble.imagination(settings, 17, 6)[1].keywords["tiling"] == tiling


@pytest.mark.parametrize(("obs_dim", "changes", "said"), [
    (70, {}, "which has room for 64 states and actions, of which there are 70 and 6: choose auto or plain."),
    (17, {"hidden": 300}, "which has room for 256 units in a hidden layer, which has 300: choose auto or plain."),
    (40, {"products": "float32", "hidden": 256}, "which needs 320 KiB on the chip, which has 227: choose auto or plain."),
])  # fmt: skip
def test_sizes_without_room_are_refused(gpu, obs_dim, changes, said):
    with pytest.raises(InputError, match=f"^rollout is fused, {said}$"):
        taken(obs_dim, rollout="fused", **changes)


def test_exact_and_fused_exclude_each_other():
    with pytest.raises(InputError, match=r"^rollout is fused, which asks each member about its own particles: leave"):
        EnsembleSettings(rollout="fused", exact=True)
    with pytest.raises(InputError, match=r"^rollout is 'slow': choose auto, plain or fused."):
        EnsembleSettings(rollout="slow")


def test_what_is_taken_is_ready_after_one_call(gpu):
    settings = replace(SMALL, rollout="fused")
    ready, rollout = ensemble.imagination(settings, S, A)
    params, asked = model(), given()
    agree(plain(params, *asked, settings=SMALL), jax.jit(partial(rollout, interpret=True))(ready(params), *asked))
