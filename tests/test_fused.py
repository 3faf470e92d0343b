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
from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams  # has no public name yet

from capax.agents.pets import Pets, PetsSettings
from capax.errors import InputError
from capax.kappa import Fixed
from capax.models import ensemble
from capax.models.ensemble import Ensemble, EnsembleSettings, Scaling
from capax.planning import fused
from capax.planning.ccem import CEM, Imagined, plan
from capax.planning.fused import Shape
from capax.types import Spec

SMALL = EnsembleSettings(members=1, hidden=20, layers=3, particles=2, products="float32")
S, A, N, H = 5, 3, 7, 2


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


@partial(jax.jit, static_argnames="settings")
def kernel(params: Any, *asked: Any, settings: EnsembleSettings = SMALL) -> Imagined:
    packed = fused.pack(*params, dtype=settings.products)
    sizes = {name: getattr(settings, name) for name in ("particles", "hidden", "layers", "floor")}
    return fused.rollout((packed, params[1]), *asked, interpret=InterpretGPUParams(), **sizes)


plain = jax.jit(ensemble.rollout, static_argnames="settings")


def agree(one: Imagined, other: Imagined, tolerance: float = 1e-5) -> None:
    for a, b in zip(one, other, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("states", "actions", "candidates", "changes"), [
    (5, 3, 7, {"particles": 3}),  # three tiles: a pair, and one that is made twice
    (1, 1, 65, {"particles": 1, "layers": 2}),  # two tiles, and no matrix that is kept
    (17, 6, 3, {"members": 2, "particles": 4, "layers": 4}),  # HalfCheetah's
    (16, 9, 2, {"hidden": 14, "layers": 5}),  # two that are kept; the ones end where the padding does
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


def test_without_room_every_matrix_passes(monkeypatch):
    params, asked = model(), given()
    kept = kernel(params, *asked)
    assert Shape.of(S, A, SMALL.hidden, SMALL.layers).kept == (1,)
    monkeypatch.setattr(fused, "ON_CHIP", Shape.of(S, A, SMALL.hidden, SMALL.layers).bytes - 1)
    assert Shape.of(S, A, SMALL.hidden, SMALL.layers).moving == (0, 1)
    agree(kept, kernel.__wrapped__(params, *asked), 1e-6)


def test_biases_in_bfloat16_lose_nothing():
    # the ones carry a bias and what its rounding leaves; weights are rounded as the plain rollout rounds them
    (net, scale), dtype = model(), jnp.bfloat16
    packed = fused.pack(net, scale, dtype=dtype)
    wide, units = Shape.of(S, A, SMALL.hidden, SMALL.layers).wide, SMALL.hidden
    matrices = [packed.inputs, *jnp.moveaxis(packed.hidden, 1, 0)]
    for matrix, bias, at in zip(matrices, net.biases[:-1], (wide - 2, units, units), strict=True):
        carried = matrix[:, at : at + 2, :units].astype(jnp.float32).sum(1)
        np.testing.assert_allclose(carried, bias[:, 0] / 2.0, rtol=2.0**-15)
    one = matrices[0][:, wide - 2, units : units + 2].astype(jnp.float32)
    assert bool(((one + one * jnp.tanh(one)).astype(dtype) == 1.0).all())  # and stay 1 from layer to layer


def test_what_is_not_a_number_stays_so():
    # the planner refuses a candidate by it: a bound that took a number's place would make it look sound again
    (net, scale), (start, actions, key) = model(), given()
    broken = actions.at[2, 1].set(jnp.nan)
    got = kernel((net, scale), start, broken, key)
    for part in got[:2]:
        assert bool(jnp.isnan(part[2, :, 1:]).all()) and bool(jnp.isfinite(part[:2]).all())
        assert bool(jnp.isfinite(part[3:]).all()) and bool(jnp.isfinite(part[2, :, 0]).all())


def test_plans_are_the_plain_ones():
    params, (start, *_) = model(), given()
    cem = CEM(horizon=H, iterations=2, population=20, elites=5)
    asked = (jr.key(0), params, start, jnp.zeros((H, A)), 0.5, jnp.inf, False)
    found = [plan(*asked, rollout=rollout, cem=cem)[0] for rollout in (partial(plain, settings=SMALL), partial(kernel))]
    np.testing.assert_allclose(*found, atol=1e-5)


def test_halves_give_the_same_swish():
    half = jnp.linspace(-20.0, 20.0, 101)
    np.testing.assert_allclose(fused.Interpreted().swish(half), jax.nn.swish(2.0 * half), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("changes", [{}, {"hidden": 254, "layers": 2}, {"layers": 5}])
def test_it_is_understood_by_the_compiler_for_gpus(changes):
    # as far as a machine without one can tell: what Mosaic does not take (sizes, operations, layouts) fails here
    settings = EnsembleSettings(products="bfloat16", **changes)
    params = jax.eval_shape(lambda: (ensemble.init(jr.key(0), 17, 6, settings), model(settings, 17, 6)[1]))
    sizes = {name: getattr(settings, name) for name in ("particles", "hidden", "layers", "floor")}

    def imagine(params: Any, start: Any, actions: Any, key: Any) -> Imagined:
        packed = fused.pack(*params, dtype="bfloat16"), params[1]
        return fused.rollout(packed, start, actions, key, **sizes)

    asked = (jnp.zeros(17), jnp.zeros((500, 30, 6)), jr.key(0))
    device = jax.sharding.AbstractDevice("NVIDIA H200", None, "gpu")  # JAX 0.11 asks which
    many = jax.tree.map(lambda leaf: jnp.zeros((3, *leaf.shape), leaf.dtype), (params, *asked[:2]))
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((1,), ("x",), abstract_device=device)):
        for call, given in ((imagine, (params, *asked)), (jax.vmap(imagine), (*many, jr.split(jr.key(0), 3)))):
            text = jax.jit(call).trace(*given).lower(lowering_platforms=("cuda",)).as_text()
            assert "mosaic_gpu" in text


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
    rollout: Any = ensemble.imagination(EnsembleSettings(**changes), obs_dim, 6)[1]
    return str(getattr(rollout, "__wrapped__", rollout).func.__module__.rpartition(".")[2])


def test_a_cpu_takes_the_plain_rollout():
    assert taken() == taken(rollout="plain") == "ensemble"


def test_fused_without_a_gpu_is_refused():
    with pytest.raises(InputError, match=r"^rollout is fused, and JAX finds no GPU here: choose auto or plain.$"):
        ensemble.imagination(EnsembleSettings(rollout="fused"), 17, 6)
    settings = PetsSettings(ensemble=EnsembleSettings(rollout="fused"))
    with pytest.raises(InputError, match="no GPU"):
        Pets(Spec(limit=1.0, gamma=0.99, episode_steps=10, discounted=False), Fixed(0.0), 17, 6, settings, 512)


def test_auto_takes_the_kernel_where_it_can(gpu, monkeypatch):
    assert taken() == taken(rollout="fused") == "fused" and taken(rollout="plain") == "ensemble"
    assert taken(exact=True) == taken(products="float32") == taken(hidden=300) == taken(obs_dim=70) == "ensemble"
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(compute_capability="8.0")])
    assert taken() == "ensemble"
    with pytest.raises(InputError, match=r"^rollout is fused, which is written for an H100 or H200 .*this GPU has 8.0"):
        taken(rollout="fused")


@pytest.mark.parametrize(("obs_dim", "changes", "said"), [
    (70, {}, "which has room for 62 states and actions, of which there are 70 and 6: choose auto or plain."),
    (17, {"hidden": 300}, "which has room for 254 units in a hidden layer, which has 300: choose auto or plain."),
    (17, {"layers": 1}, "which takes two hidden layers or more, of which there is 1: choose auto or plain."),
    (17, {"products": "float32"}, "which makes bfloat16 products, where float32 is asked for: choose auto or plain."),
    (50, {"hidden": 250}, "which needs 232 KiB on the chip, which has 224: choose auto or plain."),
])  # fmt: skip
def test_what_it_cannot_take_is_refused(gpu, obs_dim, changes, said):
    with pytest.raises(InputError, match=f"^rollout is fused, {said}$"):
        taken(obs_dim, rollout="fused", **changes)


def test_exact_and_fused_exclude_each_other():
    with pytest.raises(InputError, match=r"^rollout is fused, which asks each member about its own particles: leave"):
        EnsembleSettings(rollout="fused", exact=True)
    with pytest.raises(InputError, match=r"^rollout is 'slow': choose auto, plain or fused."):
        EnsembleSettings(rollout="slow")
