"""How long does a plan from images take at the paper's size, step by step and with kernels of our own? (on a GPU)

python benchmarks/fused_images.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from capax.agents.planet import PlanetSettings
from capax.models import imagine, rssm
from capax.models.rssm import Belief, RSSMSettings
from capax.planning import fused_images
from capax.planning.ccem import plan
from capax.workload import CONTROLS, images_plan, made_up

PLANNER, REPEATS = PlanetSettings(), 30
HALF, EXACT = (RSSMSettings(products=products) for products in ("bfloat16", "float32"))


def timed(call: Callable[[], Any]) -> float:
    """Milliseconds, the median of some calls after one that compiles."""
    jax.block_until_ready(call())
    took = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        jax.block_until_ready(call())
        took.append(1e3 * (time.perf_counter() - began))
    return statistics.median(took)


def asked() -> tuple[Any, Belief, Any]:
    """A model, a belief and candidates."""
    net = made_up(rssm.init, 3, CONTROLS, HALF)
    net = jax.tree.map(lambda leaf: leaf if leaf.ndim < 2 else 2.0 * leaf, net)  # candidates differ
    rng = np.random.default_rng(1)
    belief = Belief(*(jnp.asarray(np.tanh(rng.normal(size=size)), jnp.float32) for size in (HALF.deter, HALF.stoch)))
    shape = PLANNER.cem.population, PLANNER.cem.horizon, CONTROLS
    return net, belief, jnp.asarray(rng.uniform(-1.0, 1.0, shape), jnp.float32)


def main() -> None:
    print(f"{jax.devices()[0].device_kind}, JAX {jax.__version__}; differences are means, in deviations of float32's")
    net, belief, actions = asked()
    rollout = {own: jax.jit(partial(imagine.rollout, settings=own)) for own in (HALF, EXACT)}
    nothing = jnp.zeros((PLANNER.cem.horizon, CONTROLS))
    draw = partial(imagine.drawn, horizon=PLANNER.cem.horizon, action_dim=CONTROLS, settings=HALF)
    way = dict(rollout=partial(imagine.imagined, settings=HALF), cem=PLANNER.cem, draw=draw)

    @jax.jit
    def planned(params: Any) -> Any:
        start = imagine.begun(params, belief, PLANNER.cem.widest, HALF)
        return plan(jr.key(3), params, start, nothing, 0.1, 0.0, True, **way)

    with jax.default_matmul_precision("highest"):
        truth = rollout[EXACT](imagine.ready(net, EXACT), belief, actions, jr.key(2))
    print(f"{'':14s} {'plan, ms':>9s} {'rollout, ms':>12s}   {'reward':>8s}  {'cost':>8s}  u", flush=True)
    for name, taken in {"step by step": (), "kernels": (jax.devices()[0].compute_capability,)}.items():
        fused_images.MEASURED = taken  # here, whether it is elsewhere or not
        params = jax.jit(lambda own: imagine.ready(own, HALF))(net)
        found = rollout[HALF](params, belief, actions, jr.key(2))
        apart = [float(jnp.abs(a - b).mean() / b.std()) for a, b in zip(found[:3], truth[:3], strict=True)]
        alone = timed(lambda params=params: rollout[HALF](params, belief, actions, jr.key(2)))
        whole = timed(lambda params=params: planned(params))
        print(f"{name:14s} {whole:9.3f} {alone:12.3f}   {'  '.join(f'{part:8.5f}' for part in apart)}", flush=True)
    whole = timed(images_plan(PLANNER))
    print(f"{'an agent, from the image to the action':40s} {whole:9.3f}", flush=True)


if __name__ == "__main__":
    main()
