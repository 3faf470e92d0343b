"""How long does one plan take at the paper's Car-Racing size, step by step and with a kernel for each step? (on a GPU)

python benchmarks/fused_latent.py

A row for each way: the plan from the image to the action on the host, one rollout alone, and how far its rewards, logits
and uncertainties are from float32's, in the mean and in deviations of these.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.random as jr
import numpy as np
from fused import timed

from capax.agents.planet import PlanetSettings
from capax.models import imagine, rssm
from capax.models.rssm import Belief, RSSMSettings
from capax.planning import fused_latent
from capax.workload import CONTROLS, images_plan

SETTINGS = PlanetSettings()


def main() -> None:
    print(f"{jax.devices()[0].device_kind}, JAX {jax.__version__}", flush=True)
    print(
        f"{'recurrence':12s} {'plan, ms':>9s} {'rollout, ms':>12s} {'compile, s':>10s}   {'reward':>8s}  {'cost':>8s}  u"
    )
    net = rssm.init(jr.key(0), 3, CONTROLS, SETTINGS.rssm)
    k_h, k_s, k_a = jr.split(jr.key(1), 3)
    belief = Belief(jr.normal(k_h, (SETTINGS.rssm.deter,)), jr.normal(k_s, (SETTINGS.rssm.stoch,)))
    actions = jr.uniform(k_a, (SETTINGS.cem.population, SETTINGS.cem.horizon, CONTROLS), minval=-1.0)
    given = (net, None), belief, actions, jr.key(2)
    with jax.default_matmul_precision("highest"):
        truth = jax.jit(partial(imagine.rollout, settings=RSSMSettings(products="float32")))(*given)
    here = getattr(jax.devices()[0], "compute_capability", "")
    for number, (name, known) in enumerate((("step by step", ()), ("kernel", (here,)))):
        fused_latent.MEASURED = known  # what the rollout goes by
        sizes = replace(SETTINGS, start_steps=SETTINGS.start_steps + number)  # others, so that it is compiled anew
        rollout = jax.jit(partial(imagine.rollout, settings=SETTINGS.rssm))
        _, alone = timed(lambda rollout=rollout: rollout(*given))
        compiled, whole = timed(images_plan(sizes))
        pairs = zip(rollout(*given)[:3], truth[:3], strict=True)
        apart = "  ".join(f"{float(np.abs(a - b).mean() / np.std(b)):8.5f}" for a, b in pairs)
        print(f"{name:12s} {whole:9.3f} {alone:12.3f} {compiled:10.1f}   {apart}", flush=True)


if __name__ == "__main__":
    main()
