"""Compiles plans for an H200 on a machine without one, and counts their kernels.

Needs JAX's CUDA plugin (pip install 'jax[cuda12]'), no GPU and no driver. Products and convolutions are not tuned then,
and this project's own kernels are lowered but not assembled: the result is which kernels are launched and how many, not
how long they take.

python benchmarks/without_gpu.py             plans from states and from images, at the paper's sizes
python benchmarks/without_gpu.py 3 8         also 3 and 8 plans in one call
python benchmarks/without_gpu.py --list      also the name and shape of each kernel
"""

from __future__ import annotations

import os
import re
import sys
from types import SimpleNamespace
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"  # everything else runs on the CPU
os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0"

import jax
import jax.numpy as jnp
import jax.random as jr
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec

from capax.agents.pets import compiled_plan
from capax.agents.planet import compiled_step
from capax.cli.bench_work import ACTIONS, CONTROLS, IMAGE, STATES, transitions
from capax.models import ensemble, rssm
from capax.training.methods import settings_of

H200 = """
platform_name: "CUDA"
device_description_str: "NVIDIA H200"
runtime_version { major: 12 minor: 8 }
dnn_version_info { major: 9 minor: 7 }
gpu_device_info {
  cuda_compute_capability { major: 9 }
  core_count: 132  fpus_per_core: 128  clock_rate_ghz: 1.98
  threads_per_warp: 32  threads_per_block_limit: 1024  threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  registers_per_core_limit: 65536  registers_per_block_limit: 65536
  shared_memory_per_block: 49152  shared_memory_per_block_optin: 232448  shared_memory_per_core: 233472
  l2_cache_size: 52428800  device_memory_size: 149000000000  memory_bandwidth: 4800000000000
}
"""
LAUNCHED = re.compile(r"%([\w.\-]+) = (\(.*?\)|\S+) (?:fusion|custom-call|copy|conditional|sort)\(")


def pretend_gpu() -> NamedSharding:
    """Make JAX report an H200; returns where compiled programs are placed."""
    jax.default_backend = lambda: "gpu"
    device = SimpleNamespace(compute_capability="9.0", device_kind="NVIDIA H200", platform="cpu")  # what computes here
    jax.devices = lambda *_: [device]
    topology = topologies.get_topology_desc(platform="cuda", target_config=H200, topology="1x1x1")
    return NamedSharding(topologies.make_mesh(topology, (1,), ("one",)), PartitionSpec())


def states_plan() -> tuple[Any, Any]:
    """A plan from states, and its arguments."""
    settings = settings_of("cap", "vector", "paper")
    prepare, act = compiled_plan(settings, STATES, ACTIONS)
    scale = ensemble.scaling(transitions(100))
    params = jax.eval_shape(
        lambda key: prepare((ensemble.init(key, STATES, ACTIONS, settings.ensemble), scale)), jr.key(0)
    )
    inputs, warm = jnp.zeros(STATES + 4), jnp.zeros((settings.cem.horizon, ACTIONS))
    return act.__wrapped__, (jr.key(0), params, inputs, warm)


def images_plan() -> tuple[Any, Any]:
    """A plan from an image, and its arguments."""
    settings = settings_of("cap", "image", "paper")
    prepare, step = compiled_step(settings, IMAGE, CONTROLS)
    params = jax.eval_shape(lambda key: prepare(rssm.init(key, IMAGE[-1], CONTROLS, settings.rssm)), jr.key(0))
    inputs = jnp.zeros(IMAGE[0] * IMAGE[1] * IMAGE[2] + 3 * 4, jnp.uint8)
    return step.__wrapped__, (jr.key(0), params, inputs, (rssm.initial_belief((), settings.rssm), jnp.zeros(CONTROLS)))


def compiled_text(function: Any, plan_arguments: Any, lanes: int, sharding: NamedSharding) -> str:
    """The compiler's final text of a program."""
    lane_axis = (lanes,) if lanes > 1 else ()
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((*lane_axis, *x.shape), x.dtype, sharding=sharding), plan_arguments
    )
    traced = jax.jit(jax.vmap(function) if lane_axis else function).trace(*shapes)
    return traced.lower(lowering_platforms=("cuda",)).compile().as_text()


def launches(program: str) -> tuple[list[str], list[str]]:
    """The kernels launched outside the loop over rounds, and those of each round."""
    bodies = {name: body for name, body in re.findall(r"\n(?:ENTRY )?%([\w.\-]+) \((.*?)\n}\n", program, re.DOTALL)}
    (loop,) = re.findall(r" while\(.*?body=%([\w.\-]+)", program)
    (entry,) = re.findall(r"\nENTRY %([\w.\-]+) ", program)
    outside, inside = (
        [f"{name} {re.sub(r'{[0-9,]*}', '', shape)}" for name, shape in LAUNCHED.findall(bodies[part])]
        for part in (entry, loop)
    )
    return outside, inside


def main(arguments: list[str]) -> None:
    from record import save

    sharding, rows = pretend_gpu(), []
    kinds = {
        "states": (states_plan(), settings_of("cap", "vector", "paper")),
        "images": (images_plan(), settings_of("cap", "image", "paper")),
    }
    for kind, (plan, settings) in kinds.items():
        for lanes in (1, *(int(word) for word in arguments if word.isdigit())):
            outside, inside = launches(compiled_text(*plan, lanes, sharding))
            rounds = settings.cem.iterations
            print(
                f"{kind}, {lanes} in one call: {len(outside)} launches and {rounds} rounds of {len(inside)}, "
                f"{len(outside) + rounds * len(inside)} in all",
                flush=True,
            )
            if "--list" in arguments:
                print("\n".join(["outside:", *outside, "in a round:", *inside]))
            counts = {"outside": len(outside), "rounds": rounds, "in a round": len(inside)}
            rows.append(
                {"plan": f"{kind}, {lanes} in one call", **counts, "launches": len(outside) + rounds * len(inside)}
            )
    save("without-gpu", rows)


if __name__ == "__main__":
    main(sys.argv[1:])
