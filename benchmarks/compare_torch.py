"""Compares a plan at the paper's HalfCheetah size with the same arithmetic in plain PyTorch (on a CPU).

python benchmarks/compare_torch.py                 needs torch, which capax itself does not use
python benchmarks/compare_torch.py --repeats 5     how often each side plans, in turn

Both sides have the same networks, candidates and rounds. PyTorch's side is what one would write there: batched products
in float32, without gradients, on as many threads as there are cores. Times are noisy and the sides take turns: read the
ratio. Each line also has the share of the rate of a large float32 product on this machine that plans reach.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import torch

from capax.agents.pets import PetsSettings, compiled_plan
from capax.models import ensemble
from capax.models.ensemble import EnsembleSettings, Scaling
from capax.runtime import cpu_devices
from capax.runtime.cpu_devices import replicate

S, A = 17, 6
SETTINGS = PetsSettings(ensemble=EnsembleSettings(products="float32"))
KAPPA, LIMIT = 0.1, 0.152


def random_ensemble() -> tuple[Any, Any]:
    """A new ensemble, and units of which none is 1."""
    rng = np.random.default_rng(0)
    parts = (
        rng.normal(size=S + A),
        rng.uniform(0.5, 2.0, S + A),
        0.1 * rng.normal(size=S + 2),
        rng.uniform(0.1, 1.0, S + 2),
        np.full(S, -20.0),
        np.full(S, 20.0),
    )
    floats = [jnp.asarray(part, jnp.float32) for part in parts]
    scale = Scaling._make([*floats, jnp.asarray(False), jnp.asarray(False)])
    return ensemble.init(jr.key(0), S, A, SETTINGS.ensemble), scale


def in_jax(params: Any) -> Callable[[], Any]:
    """A plan of the agent."""
    prepare, act = compiled_plan(SETTINGS, S, A)
    inputs = np.array([*np.zeros(S), KAPPA, LIMIT, np.inf, 4], np.float32)
    key, prepared, warm = jr.key(0), prepare(params), replicate(jnp.zeros((SETTINGS.cem.horizon, A)))
    return lambda: np.asarray(act(key, prepared, inputs, warm)[0])


def in_torch(params: Any) -> Callable[[], Any]:
    """The same plan in PyTorch."""
    net, scale = params
    sizes, cem = SETTINGS.ensemble, SETTINGS.cem
    E, P = sizes.members, sizes.particles
    weights, biases = ([torch.from_numpy(np.array(part)) for part in parts] for parts in (net.weights, net.biases))
    mean_in, sd_in, mean_out, sd_out, low, high = (torch.from_numpy(np.array(part)) for part in scale[:6])
    most, least = (torch.from_numpy(np.array(part)) for part in (net.max_logvar, net.min_logvar))
    D, G = S + 2, P // E

    def imagine(actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        N, H, _ = actions.shape
        state = torch.zeros(E, N * G, S)
        moves = ((actions - mean_in[S:]) / sd_in[S:]).repeat_interleave(G, 0)
        noise = torch.randn(H, E, 1, G, S)
        rewards, costs, spreads = [], [], []
        for t in range(H):
            h = torch.cat([(state - mean_in[:S]) / sd_in[:S], moves[:, t].expand(E, -1, -1)], -1)
            for w, b in zip(weights[:-1], biases[:-1], strict=True):
                h = torch.nn.functional.silu(torch.baddbmm(b, h, w))
            out = torch.baddbmm(biases[-1], h, weights[-1])
            logvar = most - torch.nn.functional.softplus(most - out[..., D : 2 * D])
            logvar = least + torch.nn.functional.softplus(logvar - least)
            sd = torch.exp(0.5 * logvar[..., :S])
            spreads.append(torch.sqrt((sd * sd + sizes.floor**2).sum(-1)).amax(0, keepdim=True).expand(E, -1))
            eps = noise[t].expand(E, N, G, S).reshape(E, N * G, S)
            change = (out[..., :S] + sd * eps) * sd_out[:S] + mean_out[:S]
            rewards.append(out[..., S] * sd_out[S] + mean_out[S])
            costs.append(out[..., S + 1] * sd_out[S + 1] + mean_out[S + 1])
            state = torch.clamp(state + change, low, high)
        parts = [torch.stack(part, -1).reshape(E, N, G, H) for part in (rewards, costs, spreads)]
        reward, cost, u = (part.permute(1, 0, 2, 3).reshape(N, P, H) for part in parts)
        return reward, cost, u

    @torch.inference_mode()
    def plan() -> Any:
        mean, var = torch.zeros(cem.horizon, A), torch.full((cem.horizon, A), cem.spread**2)
        for _ in range(cem.iterations):
            room = torch.minimum(mean + 1.0, 1.0 - mean) / 2.0
            noise = torch.nn.init.trunc_normal_(torch.empty(cem.population, cem.horizon, A), 0.0, 1.0, -2.0, 2.0)
            actions = mean + torch.minimum(var.sqrt(), room) * noise
            reward, cost, u = imagine(actions)
            earned, penalised = reward.mean((1, 2)), (cost + KAPPA * u).mean((1, 2))
            feasible = penalised <= LIMIT
            score = torch.where(feasible, earned, -torch.inf) if feasible.sum() >= cem.elites else -penalised
            elites = actions[score.topk(cem.elites).indices]
            mean = cem.smoothing * mean + (1.0 - cem.smoothing) * elites.mean(0)
            var = cem.smoothing * var + (1.0 - cem.smoothing) * elites.var(0, unbiased=False)
        return mean[0].numpy()

    return plan


def seconds(call: Callable[[], Any]) -> float:
    """Seconds of a call."""
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def main() -> None:
    from record import save

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    torch.manual_seed(0)
    cpu_devices.claim()
    params = random_ensemble()
    sides = {"capax": in_jax(params), "PyTorch": in_torch(params)}
    for call in sides.values():
        call()  # compiles, and fills the caches
    durations: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, call in sides.items():
            durations[name].append(seconds(call))
    a = jnp.ones((4096, 4096))
    product = jax.jit(jnp.matmul)
    product(a, a).block_until_ready()
    rate = 2 * 4096**3 / min(seconds(lambda: product(a, a)) for _ in range(3))
    cem, particles = SETTINGS.cem, SETTINGS.ensemble.particles
    evaluations = cem.evaluations * particles * cem.horizon
    widths = [S + A, *[SETTINGS.ensemble.hidden] * SETTINGS.ensemble.layers, 2 * (S + 2) + 1]
    flops = evaluations * sum(2 * i * o for i, o in itertools.pairwise(widths))
    print(f"{cores} cores, JAX {jax.__version__}, PyTorch {torch.__version__}, medians of {repeats}")
    rows = []
    for name, times in durations.items():
        median = statistics.median(times)
        each = {"s per plan": median, "µs per model evaluation": 1e6 * median / evaluations}
        rows.append({"side": name, **each, "% of the rate of a 4096×4096 product": 100 * flops / median / rate})
        print(
            f"{name:8s} {median:6.2f} s per plan, {1e9 * median / evaluations:6.1f} ns per model evaluation, "
            f"{flops / median / rate:.0%} of the rate of a 4096×4096 float32 product ({rate / 1e9:.0f} GFLOP/s)"
        )
    ratios = [torch_time / own for own, torch_time in zip(durations["capax"], durations["PyTorch"], strict=True)]
    print(f"PyTorch takes {statistics.median(ratios):.2f} times as long ({min(ratios):.2f} to {max(ratios):.2f})")
    save("compare-torch", rows)


if __name__ == "__main__":
    main()
