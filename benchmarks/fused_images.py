"""Measures a plan from images at the paper's size, step by step and with the fused kernels (on a GPU).

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
from capax.cli.bench_work import CONTROLS, images_plan, random_params
from capax.models import rssm, rssm_rollout
from capax.models.kernels import rssm_kernels
from capax.models.rssm import Belief, RSSMSettings
from capax.planning.ccem import plan
from capax.planning.scoring import Terms

PLANNER, REPEATS = PlanetSettings(), 30
HALF, EXACT = (RSSMSettings(products=products) for products in ("bfloat16", "float32"))


def timed(call: Callable[[], Any]) -> float:
    """Median time of some calls in milliseconds, after one call that compiles."""
    jax.block_until_ready(call())
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def model_and_candidates() -> tuple[Any, Belief, Any]:
    """A model, a belief and candidates."""
    net = random_params(rssm.init, 3, CONTROLS, HALF)
    net = jax.tree.map(lambda leaf: leaf if leaf.ndim < 2 else 2.0 * leaf, net)  # candidates differ
    rng = np.random.default_rng(1)
    belief = Belief(*(jnp.asarray(np.tanh(rng.normal(size=size)), jnp.float32) for size in (HALF.deter, HALF.stoch)))
    shape = PLANNER.cem.population, PLANNER.cem.horizon, CONTROLS
    return net, belief, jnp.asarray(rng.uniform(-1.0, 1.0, shape), jnp.float32)


def main() -> None:
    from record import save

    device = jax.devices()[0].device_kind
    print(f"{device}, JAX {jax.__version__}; differences are means, in standard deviations of float32's")
    net, belief, actions = model_and_candidates()
    rollout = {settings: jax.jit(partial(rssm_rollout.rollout, settings=settings)) for settings in (HALF, EXACT)}
    warm = jnp.zeros((PLANNER.cem.horizon, CONTROLS))
    draw = partial(rssm_rollout.draw_noise, horizon=PLANNER.cem.horizon, action_dim=CONTROLS, settings=HALF)
    planner = dict(rollout=partial(rssm_rollout.imagine, settings=HALF), cem=PLANNER.cem, draw=draw)

    @jax.jit
    def run_plan(params: Any) -> Any:
        start = rssm_rollout.prepare_start(params, belief, PLANNER.cem.max_candidates, HALF)
        return plan(jr.key(3), params, start, warm, Terms(0.1, 0.0, True), **planner)

    with jax.default_matmul_precision("highest"):
        truth = rollout[EXACT](rssm_rollout.prepare_rollout(net, EXACT), belief, actions, jr.key(2))
    print(f"{'':14s} {'plan, ms':>9s} {'rollout, ms':>12s}   {'reward':>8s}  {'cost':>8s}  u", flush=True)
    rows: list[dict[str, Any]] = []
    for name, capabilities in {"step by step": (), "kernels": (jax.devices()[0].compute_capability,)}.items():
        rssm_kernels.MEASURED_CAPABILITIES = capabilities  # forces the choice for this benchmark
        params = jax.jit(lambda net: rssm_rollout.prepare_rollout(net, HALF))(net)
        imagined = rollout[HALF](params, belief, actions, jr.key(2))
        differences = [float(jnp.abs(a - b).mean() / b.std()) for a, b in zip(imagined[:3], truth[:3], strict=True)]
        rollout_ms = timed(lambda params=params: rollout[HALF](params, belief, actions, jr.key(2)))
        plan_ms = timed(lambda params=params: run_plan(params))
        print(
            f"{name:14s} {plan_ms:9.3f} {rollout_ms:12.3f}   {'  '.join(f'{part:8.5f}' for part in differences)}",
            flush=True,
        )
        errors = dict(zip(("reward's error", "cost's error", "u's error"), differences, strict=True))
        rows.append({"rollout": name, "plan, ms": plan_ms, "one rollout, ms": rollout_ms, **errors})
    plan_ms = timed(images_plan(PLANNER))
    print(f"{'an agent, from the image to the action':40s} {plan_ms:9.3f}", flush=True)
    rows.append(dict.fromkeys(rows[0]) | {"rollout": "an agent, from the image to the action", "plan, ms": plan_ms})
    save("fused-images", rows)


if __name__ == "__main__":
    main()
