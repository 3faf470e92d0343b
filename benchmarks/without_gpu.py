"""Do plans compile for an H200 where there is none, and into how many kernels?

Needs JAX's CUDA plugin (pip install 'jax[cuda12]'), no GPU and no driver. Products and convolutions are not tuned then, and a
kernel of our own is lowered but not assembled: it is the number of launches that can be learned here, and what they are, not
how long they take.

python benchmarks/without_gpu.py             plans from states and from images, at the paper's sizes
python benchmarks/without_gpu.py 3 8         also 3 and 8 of them in one call
python benchmarks/without_gpu.py --list      with the name and shape of each kernel
"""

from __future__ import annotations

import os
import re
import sys
from types import SimpleNamespace
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"  # what is not compiled is computed here
os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0"

import jax
import jax.numpy as jnp
import jax.random as jr
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec

from capax.agents.pets import planning
from capax.agents.planet import stepping
from capax.models import ensemble, rssm
from capax.presets import IMAGE_PRESETS, PRESETS
from capax.workload import ACTIONS, CONTROLS, IMAGE, STATES, transitions

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


def pretend() -> NamedSharding:
    """From here on capax finds an H200; the place on it."""
    jax.default_backend = lambda: "gpu"
    jax.devices = lambda *_: [SimpleNamespace(compute_capability="9.0", device_kind="NVIDIA H200")]
    topology = topologies.get_topology_desc(platform="cuda", target_config=H200, topology="1x1x1")
    return NamedSharding(topologies.make_mesh(topology, (1,), ("one",)), PartitionSpec())


def states() -> tuple[Any, Any]:
    """A plan from states, and what it is asked with."""
    settings = PRESETS["paper"]
    ready, act = planning(settings, STATES, ACTIONS)
    scale = ensemble.scaling(transitions(100))
    params = jax.eval_shape(
        lambda key: ready((ensemble.init(key, STATES, ACTIONS, settings.ensemble), scale)), jr.key(0)
    )
    told, warm = jnp.zeros(STATES + 2), jnp.zeros((settings.cem.horizon, ACTIONS))
    return act.__wrapped__, (jr.key(0), params, told, warm)


def images() -> tuple[Any, Any]:
    """A plan from an image."""
    settings = IMAGE_PRESETS["paper"]
    ready, step = stepping(settings, IMAGE, CONTROLS)
    params = jax.eval_shape(lambda key: ready(rssm.init(key, IMAGE[-1], CONTROLS, settings.rssm)), jr.key(0))
    told = jnp.zeros(IMAGE[0] * IMAGE[1] * IMAGE[2] + 3 * 4, jnp.uint8)
    return step.__wrapped__, (jr.key(0), params, told, (rssm.start((), settings.rssm), jnp.zeros(CONTROLS)))


def compiled(function: Any, asked: Any, lanes: int, place: NamedSharding) -> str:
    """The program as the compiler leaves it."""
    more = (lanes,) if lanes > 1 else ()
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct((*more, *x.shape), x.dtype, sharding=place), asked)
    traced = jax.jit(jax.vmap(function) if more else function).trace(*shapes)
    return traced.lower(lowering_platforms=("cuda",)).compile().as_text()


def launches(program: str) -> tuple[list[str], list[str]]:
    """What is launched outside of the loop over rounds, and in each of them."""
    parts = {name: body for name, body in re.findall(r"\n(?:ENTRY )?%([\w.\-]+) \((.*?)\n}\n", program, re.DOTALL)}
    (loop,) = re.findall(r" while\(.*?body=%([\w.\-]+)", program)
    (entry,) = re.findall(r"\nENTRY %([\w.\-]+) ", program)
    outside, inside = (
        [f"{name} {re.sub(r'{[0-9,]*}', '', shape)}" for name, shape in LAUNCHED.findall(parts[part])]
        for part in (entry, loop)
    )
    return outside, inside


def main(words: list[str]) -> None:
    place = pretend()
    kinds = {"states": (states(), PRESETS["paper"]), "images": (images(), IMAGE_PRESETS["paper"])}
    for kind, (plan, settings) in kinds.items():
        for lanes in (1, *(int(word) for word in words if word.isdigit())):
            outside, inside = launches(compiled(*plan, lanes, place))
            rounds = settings.cem.iterations
            print(
                f"{kind}, {lanes} in one call: {len(outside)} launches and {rounds} rounds of {len(inside)}, "
                f"{len(outside) + rounds * len(inside)} in all",
                flush=True,
            )
            if "--list" in words:
                print("\n".join(["outside:", *outside, "in a round:", *inside]))


if __name__ == "__main__":
    main(sys.argv[1:])
