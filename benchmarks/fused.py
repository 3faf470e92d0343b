"""Measures a plan at the paper's HalfCheetah size, with the plain rollout and with the fused one (on a GPU).

python benchmarks/fused.py             both, and several plans in one call with the fused one
python benchmarks/fused.py 2 4 8       these numbers of plans in one call
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from capax.models import ensemble
from capax.models.ensemble import EnsembleSettings, Scaling
from capax.models.kernels import ensemble_kernel
from capax.planning.ccem import CEM, plan
from capax.planning.scoring import Terms

S, A = 17, 6
SETTINGS, CANDIDATES = EnsembleSettings(products="bfloat16"), CEM()
LANES = (2, 3, 8)
REPEATS = 30


def random_ensemble() -> tuple[Any, Any]:
    """A new ensemble with log-variances near −4, and units of which none is 1."""
    rng = np.random.default_rng(0)
    net = ensemble.init(jr.key(0), S, A, SETTINGS)
    last = net.biases[-1].at[..., S + 2 : 2 * (S + 2)].set(-4.0)
    net = ensemble.Ensemble(net.weights, (*net.biases[:-1], last), net.max_logvar, net.min_logvar)
    parts = (
        rng.normal(size=S + A),
        rng.uniform(0.5, 2.0, S + A),
        0.1 * rng.normal(size=S + 2),
        rng.uniform(0.1, 1, S + 2),
    )
    bounds = (np.full(S, -20.0), np.full(S, 20.0))
    floats = [jnp.asarray(part, jnp.float32) for part in (*parts, *bounds)]
    return net, Scaling._make([*floats, jnp.asarray(False), jnp.asarray(False)])


def timed(call: Callable[[], Any]) -> tuple[float, float]:
    """Seconds to compile and run once, then the median of some runs in milliseconds."""
    start = time.perf_counter()
    jax.block_until_ready(call())
    compile_s, times = time.perf_counter() - start, []
    for _ in range(3 + REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(1e3 * (time.perf_counter() - start))
    return compile_s, statistics.median(times[3:])


def print_row(
    name: str, prepare: Any, rollout: Any, params: Any, reference: Any = None, lanes: int = 1
) -> dict[str, Any]:
    """Print and return the time of a plan, of one rollout, and the difference of the rollout from a reference."""
    start, warm = jnp.zeros(S), jnp.zeros((CANDIDATES.horizon, A))
    actions = jr.uniform(jr.key(3), (CANDIDATES.population, CANDIDATES.horizon, A), minval=-1.0)

    def act(key: Any, params: Any) -> Any:
        return plan(key, params, start, warm, Terms(0.1, 100.0, False), rollout=rollout, cem=CANDIDATES)

    def imagine(key: Any, params: Any) -> Any:
        return rollout(params, start, actions, key)

    packed = jax.block_until_ready(jax.jit(prepare)(params))
    keys = jr.key(4) if lanes == 1 else jr.split(jr.key(4), lanes)
    if lanes > 1:
        packed = jax.tree.map(lambda leaf: jnp.stack([leaf] * lanes), packed)
        act, imagine = jax.vmap(act), jax.vmap(imagine)
    act, imagine = jax.jit(act), jax.jit(imagine)
    rollout_ms = timed(lambda: imagine(keys, packed))[1]
    compile_s, plan_ms = timed(lambda: act(keys, packed))
    differences, parts = "", [None] * 3
    if reference is not None:
        imagined = imagine(keys, packed)
        parts = [float(jnp.abs(a - b).mean() / b.std()) for a, b in zip(imagined[:3], reference[:3], strict=True)]
        differences = "  ".join(f"{part:8.5f}" for part in parts)
    print(f"{name:24s} {plan_ms:9.3f} {rollout_ms:12.3f} {compile_s:10.1f}   {differences}", flush=True)
    errors = dict(zip(("reward's error", "cost's error", "u's error"), parts, strict=True))
    return {"rollout": name, "plan, ms": plan_ms, "one rollout, ms": rollout_ms, **errors}


def main(lane_counts: list[int]) -> None:
    from record import save

    device = jax.devices()[0]
    print(
        f"{device.device_kind}, JAX {jax.__version__}; differences are means, in standard deviations of float32's",
        flush=True,
    )
    print(
        f"{'rollout':24s} {'plan, ms':>9s} {'rollout, ms':>12s} {'compile, s':>10s}   {'reward':>8s}  {'cost':>8s}  u"
    )
    params = random_ensemble()
    exact = jax.jit(partial(ensemble.rollout, settings=EnsembleSettings(products="float32")))
    with jax.default_matmul_precision("highest"):
        actions = jr.uniform(jr.key(3), (CANDIDATES.population, CANDIDATES.horizon, A), minval=-1.0)
        truth = exact(params, jnp.zeros(S), actions, jr.key(4))
    sizes = {name: getattr(SETTINGS, name) for name in ("particles", "hidden", "layers", "floor")}
    fused = partial(ensemble_kernel.rollout, **sizes)

    def prepare(params: Any) -> Any:
        return ensemble_kernel.pack(*params, dtype=SETTINGS.products), params[1]

    rows = []
    rows.append(print_row("plain", lambda params: params, partial(ensemble.rollout, settings=SETTINGS), params, truth))
    rows.append(print_row("fused", prepare, fused, params, truth))
    for lanes in lane_counts:
        rows.append(print_row(f"fused, {lanes} plans", prepare, fused, params, lanes=lanes))
    save("fused", rows)


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or list(LANES))
