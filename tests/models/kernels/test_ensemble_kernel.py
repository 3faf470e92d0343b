"""The ensemble's kernel imagines what the plain rollout does, for all sizes and every division of the work.

On a CPU it is interpreted; `benchmarks/fused.py` compares the compiled kernel.
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
from capax.core.errors import InputError
from capax.core.types import Imagined, Spec
from capax.kappa.fixed import Fixed
from capax.models import ensemble
from capax.models.ensemble import Ensemble, EnsembleSettings, Scaling
from capax.models.kernels import ensemble_kernel
from capax.models.kernels.ensemble_kernel import Shape
from capax.planning.ccem import CEM, plan
from capax.planning.scoring import Terms

SMALL = EnsembleSettings(members=1, hidden=20, layers=3, particles=2, products="float32")
S, A, N, H = 5, 3, 7, 2


def random_model(
    settings: EnsembleSettings = SMALL, states: int = S, actions: int = A, binary: bool = False, ends: bool = False
) -> tuple[Ensemble, Scaling]:
    """No parameter is 0 or 1, and the bounds of the states are near."""
    rng = np.random.default_rng(states)

    def normal(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32)

    sizes = [states + actions, *[settings.hidden] * settings.layers, 2 * (states + 2) + 1]
    E, pairs = settings.members, list(pairwise(sizes))
    weights = tuple(1.2 * normal(E, i, o) / np.float32(np.sqrt(i)) for i, o in pairs)  # outputs depend on inputs
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


def random_inputs(states: int = S, actions: int = A, candidates: int = N) -> tuple[Any, Any, Any]:
    k_start, k_action = jr.split(jr.key(1))
    return jr.normal(k_start, (states,)), jr.uniform(k_action, (candidates, H, actions), minval=-1.0), jr.key(2)


@partial(jax.jit, static_argnames="settings")
def kernel_rollout(params: Any, *inputs: Any, settings: EnsembleSettings = SMALL) -> Imagined:
    packed = ensemble_kernel.pack(*params, dtype=settings.products)
    sizes = {name: getattr(settings, name) for name in ("particles", "hidden", "layers", "floor")}
    return ensemble_kernel.rollout((packed, params[1]), *inputs, interpret=InterpretGPUParams(), **sizes)


plain_rollout = jax.jit(ensemble.rollout, static_argnames="settings")


def assert_close(one: Imagined, other: Imagined, tolerance: float = 1e-5) -> None:
    for a, b in zip(one, other, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("states", "actions", "candidates", "changes"), [
    (5, 3, 7, {"particles": 3}),  # three tiles: a pair, and one that is computed twice
    (1, 1, 65, {"particles": 1, "layers": 2}),  # two tiles, and no resident matrix
    (17, 6, 3, {"members": 2, "particles": 4, "layers": 4}),  # HalfCheetah's
    (16, 9, 2, {"hidden": 14, "layers": 5}),  # two resident matrices; the columns of ones end where the padding ends
])  # fmt: skip
def test_kernel_equals_the_plain_rollout(states, actions, candidates, changes):
    settings = replace(SMALL, **changes)
    params, inputs = random_model(settings, states, actions), random_inputs(states, actions, candidates)
    one, other = plain_rollout(params, *inputs, settings=settings), kernel_rollout(params, *inputs, settings=settings)
    assert float(one.reward.std()) > 0.05 and float(one.uncertainty.std()) > 0.001
    assert_close(one, other)


def test_states_stay_within_their_bounds():
    params, inputs = random_model(), random_inputs()
    unbounded = params[0], params[1]._replace(low=jnp.full(S, -1e6), high=jnp.full(S, 1e6))
    one, other = kernel_rollout(params, *inputs), kernel_rollout(unbounded, *inputs)
    assert float(jnp.abs(one.reward - other.reward).max()) > 0.01
    assert_close(plain_rollout(unbounded, *inputs, settings=SMALL), other)


@pytest.mark.parametrize("binary", [False, True])
def test_ends_and_logits_equal_the_plain_rollout(binary):
    params, inputs = random_model(binary=binary, ends=True), random_inputs()
    one, other = plain_rollout(params, *inputs, settings=SMALL), kernel_rollout(params, *inputs)
    assert 0.1 < float(one.alive.mean()) < 0.9
    assert_close(one, other)
    endless = params[0], params[1]._replace(ends=jnp.asarray(False))
    assert bool((kernel_rollout(endless, *inputs).alive == 1.0).all())


def test_matrices_that_do_not_fit_are_streamed(monkeypatch):
    params, inputs = random_model(), random_inputs()
    with_room = kernel_rollout(params, *inputs)
    assert Shape.of(S, A, SMALL.hidden, SMALL.layers).resident == (1,)
    monkeypatch.setattr(ensemble_kernel, "CHIP_BYTES", Shape.of(S, A, SMALL.hidden, SMALL.layers).bytes - 1)
    assert Shape.of(S, A, SMALL.hidden, SMALL.layers).streamed == (0, 1)
    assert_close(with_room, kernel_rollout.__wrapped__(params, *inputs), 1e-6)


def test_bfloat16_biases_keep_their_precision():
    # the ones carry a bias and what its rounding leaves; weights are rounded as the plain rollout rounds them
    (net, scale), dtype = random_model(), jnp.bfloat16
    packed = ensemble_kernel.pack(net, scale, dtype=dtype)
    inputs, units = Shape.of(S, A, SMALL.hidden, SMALL.layers).inputs, SMALL.hidden
    matrices = [packed.inputs, *jnp.moveaxis(packed.hidden, 1, 0)]
    for matrix, bias, ones_row in zip(matrices, net.biases[:-1], (inputs - 2, units, units), strict=True):
        bias_sum = matrix[:, ones_row : ones_row + 2, :units].astype(jnp.float32).sum(1)
        np.testing.assert_allclose(bias_sum, bias[:, 0] / 2.0, rtol=2.0**-15)
    ones = matrices[0][:, inputs - 2, units : units + 2].astype(jnp.float32)
    assert bool(((ones + ones * jnp.tanh(ones)).astype(dtype) == 1.0).all())  # and stay 1 from layer to layer


def test_nan_stays_nan():
    # the planner refuses a candidate with NaN: clipping NaN to a bound would hide the fault
    (net, scale), (start, actions, key) = random_model(), random_inputs()
    broken_actions = actions.at[2, 1].set(jnp.nan)
    result = kernel_rollout((net, scale), start, broken_actions, key)
    for part in result[:2]:
        assert bool(jnp.isnan(part[2, :, 1:]).all()) and bool(jnp.isfinite(part[:2]).all())
        assert bool(jnp.isfinite(part[3:]).all()) and bool(jnp.isfinite(part[2, :, 0]).all())


def test_plans_equal_the_plain_ones():
    params, (start, *_) = random_model(), random_inputs()
    cem = CEM(horizon=H, iterations=2, population=20, elites=5)
    inputs = (jr.key(0), params, start, jnp.zeros((H, A)), Terms(0.5, jnp.inf, False))
    plans = [
        plan(*inputs, rollout=rollout, cem=cem)[0]
        for rollout in (partial(plain_rollout, settings=SMALL), partial(kernel_rollout))
    ]
    np.testing.assert_allclose(*plans, atol=1e-5)


def test_swish_of_halves():
    half = jnp.linspace(-20.0, 20.0, 101)
    np.testing.assert_allclose(
        ensemble_kernel.InterpretedOps().swish(half), jax.nn.swish(2.0 * half), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("changes", [{}, {"hidden": 254, "layers": 2}, {"layers": 5}])
def test_kernel_lowers_for_a_gpu(changes):
    # this checks what a machine without a GPU can: sizes, operations and layouts that Mosaic refuses fail here
    settings = EnsembleSettings(products="bfloat16", **changes)
    params = jax.eval_shape(lambda: (ensemble.init(jr.key(0), 17, 6, settings), random_model(settings, 17, 6)[1]))
    sizes = {name: getattr(settings, name) for name in ("particles", "hidden", "layers", "floor")}

    def imagine(params: Any, start: Any, actions: Any, key: Any) -> Imagined:
        packed = ensemble_kernel.pack(*params, dtype="bfloat16"), params[1]
        return ensemble_kernel.rollout(packed, start, actions, key, **sizes)

    inputs = (jnp.zeros(17), jnp.zeros((500, 30, 6)), jr.key(0))
    device = jax.sharding.AbstractDevice("NVIDIA H200", None, "gpu")  # JAX 0.11 needs the kind
    stacked = jax.tree.map(lambda leaf: jnp.zeros((3, *leaf.shape), leaf.dtype), (params, *inputs[:2]))
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((1,), ("x",), abstract_device=device)):
        for call, arguments in ((imagine, (params, *inputs)), (jax.vmap(imagine), (*stacked, jr.split(jr.key(0), 3)))):
            text = jax.jit(call).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
            assert "mosaic_gpu" in text


def test_vmap_over_lanes_equals_single_calls():
    # lanes add a dimension to the grid
    one = random_model()
    models = [one, jax.tree.map(lambda leaf: leaf if leaf.dtype == bool else 0.9 * leaf, one)]
    inputs = [random_inputs(), (*random_inputs()[:2], jr.key(7))]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *zip(models, inputs, strict=True))
    results = jax.vmap(lambda pair: kernel_rollout(pair[0], *pair[1]))(stacked)
    for lane in (0, 1):
        assert_close(
            kernel_rollout(models[lane], *inputs[lane]), jax.tree.map(lambda leaf, lane=lane: leaf[lane], results)
        )


# Which rollout is used.


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that seems to have an H200."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(compute_capability="9.0")])


def rollout_module(obs_dim: int = 17, **changes: Any) -> str:
    """The module of the rollout that these settings select."""
    rollout: Any = ensemble.build_rollout(EnsembleSettings(**changes), obs_dim, 6)[1]
    return str(getattr(rollout, "__wrapped__", rollout).func.__module__.rpartition(".")[2])


def test_a_cpu_uses_the_plain_rollout():
    assert rollout_module() == rollout_module(rollout="plain") == "ensemble"


def test_fused_without_a_gpu_is_refused():
    with pytest.raises(InputError, match=r"^rollout is fused, and JAX finds no GPU here: choose auto or plain.$"):
        ensemble.build_rollout(EnsembleSettings(rollout="fused"), 17, 6)
    settings = PetsSettings(ensemble=EnsembleSettings(rollout="fused"))
    with pytest.raises(InputError, match="no GPU"):
        Pets(Spec(limit=1.0, gamma=0.99, episode_steps=10, discounted=False), Fixed(0.0), 17, 6, settings, 512)


def test_auto_uses_the_kernel_where_possible(gpu, monkeypatch):
    assert (
        rollout_module() == rollout_module(rollout="fused") == "ensemble_kernel"
        and rollout_module(rollout="plain") == "ensemble"
    )
    assert (
        rollout_module(exact=True)
        == rollout_module(products="float32")
        == rollout_module(hidden=300)
        == rollout_module(obs_dim=70)
        == "ensemble"
    )
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(compute_capability="8.0")])
    assert rollout_module() == "ensemble"
    with pytest.raises(InputError, match=r"^rollout is fused, which is written for an H100 or H200 .*this GPU has 8.0"):
        rollout_module(rollout="fused")


@pytest.mark.parametrize(("obs_dim", "changes", "reason"), [
    (70, {}, "which has room for 62 states and actions, where there are 70 and 6: choose auto or plain."),
    (17, {"hidden": 300}, "which has room for 254 units in a hidden layer, where the setting is 300: choose"),
    (17, {"layers": 1}, "which needs at least two hidden layers, where the setting is 1: choose auto or plain."),
    (17, {"products": "float32"}, "which computes bfloat16 products, where the setting is float32: choose"),
    (50, {"hidden": 250}, "which needs 232 KiB on the chip, which has 224: choose auto or plain."),
])  # fmt: skip
def test_unsupported_sizes_are_refused(gpu, obs_dim, changes, reason):
    with pytest.raises(InputError, match=f"^rollout is fused, {reason}"):
        rollout_module(obs_dim, rollout="fused", **changes)


def test_exact_and_fused_exclude_each_other():
    with pytest.raises(InputError, match=r"^rollout is fused, which asks each member about its own particles: leave"):
        EnsembleSettings(rollout="fused", exact=True)
    with pytest.raises(InputError, match=r"^rollout is 'slow': choose auto, plain or fused."):
        EnsembleSettings(rollout="slow")
