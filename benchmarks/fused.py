"""How long does one plan take at the paper's HalfCheetah size, with the plain rollout and with the fused one? (on a GPU)

python benchmarks/fused.py                                  the plain rollout, then these tilings, one row each
python benchmarks/fused.py 64,4,1,128,0+-1 128,8,2,128,     tilings of your own: rows, warps, stages, piece, what is kept
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
from capax.planning import fused
from capax.planning.ccem import CEM, plan
from capax.planning.fused import Tiling

S, A = 17, 6
SETTINGS, CANDIDATES = EnsembleSettings(products="bfloat16"), CEM()
TILINGS = (
    "64,4,1,128,0+-1",  # two programs to a multiprocessor
    "128,8,2,128,",  # weights of the next layer on their way
    "128,8,1,128,1+2",  # two layers stay on the chip
    "64,4,1,128,",
    "128,8,1,128,0+-1+1",
    "128,8,1,128,0+-1",
    "64,4,1,64,0+-1",
    "64,4,2,128,",
    "32,4,1,128,0+-1",
)
REPEATS = 30


def tiling_of(text: str) -> Tiling:
    """ "64,4,1,128,0+-1" as a tiling."""
    *sizes, kept = text.split(",")
    rows, warps, stages, piece = map(int, sizes)
    return Tiling(rows, warps, stages, piece, tuple(int(number) for number in kept.split("+") if number))


def made() -> tuple[Any, Any]:
    """An ensemble as it begins, with log-variances of some −4, and units that are none of them 1."""
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
    began = time.perf_counter()
    jax.block_until_ready(call())
    first, took = time.perf_counter() - began, []
    for _ in range(3 + REPEATS):
        began = time.perf_counter()
        jax.block_until_ready(call())
        took.append(1e3 * (time.perf_counter() - began))
    return first, statistics.median(took[3:])


def measured(name: str, ready: Any, rollout: Any, params: Any, other: Any = None) -> Any:
    """Print a row: the whole plan, one rollout alone, and how far the rollout is from another; returns the rollout's."""
    start, warm = jnp.zeros(S), jnp.zeros((CANDIDATES.horizon, A))
    actions = jr.uniform(jr.key(3), (CANDIDATES.population, CANDIDATES.horizon, A), minval=-1.0)

    @jax.jit
    def act(key: Any, params: Any) -> Any:
        return plan(key, ready(params), start, warm, 0.1, 100.0, False, rollout=rollout, cem=CANDIDATES)

    imagine = jax.jit(rollout)
    packed = jax.block_until_ready(jax.jit(ready)(params))
    alone, thought = (
        timed(lambda: imagine(packed, start, actions, jr.key(4)))[1],
        imagine(packed, start, actions, jr.key(4)),
    )
    compiled, whole = timed(lambda: act(jr.key(5), params))
    apart = ""
    if other is not None:
        parts = [float(jnp.abs(a - b).mean() / b.std()) for a, b in zip(thought[:3], other[:3], strict=True)]
        apart = "  ".join(f"{part:8.5f}" for part in parts)
    print(f"{name:24s} {whole:9.3f} {alone:12.3f} {compiled:10.1f}   {apart}", flush=True)
    return thought


def main(texts: list[str]) -> None:
    device = jax.devices()[0]
    print(f"{device.device_kind}, JAX {jax.__version__}; differences are means, in deviations of float32's", flush=True)
    print(
        f"{'rollout':24s} {'plan, ms':>9s} {'rollout, ms':>12s} {'compile, s':>10s}   {'reward':>8s}  {'cost':>8s}  u"
    )
    params = made()
    exact = jax.jit(partial(ensemble.rollout, settings=EnsembleSettings(products="float32")))
    with jax.default_matmul_precision("highest"):
        actions = jr.uniform(jr.key(3), (CANDIDATES.population, CANDIDATES.horizon, A), minval=-1.0)
        truth = exact(params, jnp.zeros(S), actions, jr.key(4))
    sizes = {name: getattr(SETTINGS, name) for name in ("particles", "hidden", "layers", "floor")}
    rows: list[tuple[str, Any, Any]] = []
    for text in texts:
        tiling = tiling_of(text)
        packing = partial(fused.pack, dtype=SETTINGS.products, piece=tiling.piece)
        rows.append(
            (text, lambda p, packing=packing: (packing(*p), p[1]), partial(fused.rollout, tiling=tiling, **sizes))
        )
    rows.insert(1, ("plain", lambda params: params, partial(ensemble.rollout, settings=SETTINGS)))
    for name, ready, rollout in rows:
        try:
            measured(name, ready, rollout, params, truth)
        except Exception as error:  # a tiling that does not fit says so, and the next one is tried
            print(f"{name:24s} {type(error).__name__}: {' '.join(str(error).split())[:300]}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(TILINGS))
