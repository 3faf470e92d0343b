"""Which kernels does a plan consist of, and how long is the device idle between them? (on a GPU)

python benchmarks/kernels.py                 a plan at Car-Racing's size, then one at HalfCheetah's
python benchmarks/kernels.py images fit      only these of: images, states, fit (an image agent's fit)

A row for each kind of kernel: how often in a plan, and microseconds in all; the last says how long the device was busy, and
the plan from begin to end. On a CPU the same shows what its threads were busy with.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from capax.agents.pets import PetsSettings
from capax.agents.planet import PlanetSettings
from capax.workload import images_fit, images_plan, states_plan

PLANS, SHOWN, FRAMES = 5, 25, 5000
LONG = 100.0
"""Microseconds: a longer gap is between two plans, or the host's."""
SIZES = PlanetSettings()


def made(name: str) -> Callable[[], Any]:
    """What is looked at."""
    if name == "states":
        return states_plan(PetsSettings())
    return images_plan(SIZES) if name == "images" else images_fit(SIZES, FRAMES)


def traced(call: Callable[[], Any], times: int) -> list[dict[str, Any]]:
    """What the profiler saw of some calls, after one that compiles."""
    jax.block_until_ready(call())
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, create_perfetto_trace=True):
            for _ in range(times):
                jax.block_until_ready(call())
        (path,) = Path(folder).rglob("perfetto_trace.json.gz")
        with gzip.open(path) as file:
            found = json.load(file)
    return found["traceEvents"] if isinstance(found, dict) else found


def on_device(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Events of the streams of a GPU, or of a CPU's compiled programs."""
    names = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
    lines = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    gpu = [e for e in events if e.get("ph") == "X" and "GPU" in names.get(e["pid"], "") and
           "Stream" in lines.get((e["pid"], e.get("tid")), "")]  # fmt: skip
    return gpu or [e for e in events if e.get("ph") == "X" and "hlo_op" in e.get("args", {})]


def report(name: str, events: list[dict[str, Any]], times: int) -> None:
    kinds: dict[str, list[float]] = defaultdict(list)
    for event in events:
        kinds[re.sub(r"[._]?\d+$", "", event["name"])[:70]].append(event["dur"])
    print(f"{name}: {sum(map(len, kinds.values())) / times:.0f} kernels", flush=True)
    for kind, took in sorted(kinds.items(), key=lambda item: -sum(item[1]))[:SHOWN]:
        print(f"  {len(took) / times:8.1f} × {np.mean(took):8.2f} µs = {sum(took) / times:9.1f}  {kind}")
    ends = sorted((e["ts"], e["ts"] + e["dur"]) for e in events)
    busy, until, gaps = 0.0, -np.inf, []
    for begin, end in ends:
        busy += max(0.0, end - max(begin, until))
        gaps.append(max(0.0, begin - until))
        until = max(until, end)
    whole = (until - ends[0][0]) / times if ends else 0.0
    short = sum(gap for gap in gaps if gap < LONG) / times
    print(
        f"  busy {busy / times:.0f} µs of {whole:.0f} µs from plan to plan; idle for {short:.0f} µs between kernels",
        flush=True,
    )


def main(chosen: list[str]) -> None:
    print(f"{jax.devices()[0].device_kind}, JAX {jax.__version__}", flush=True)
    for name in chosen or ["images", "states"]:
        times = PLANS if name != "fit" else 1
        report(name, on_device(traced(made(name), times)), times)


if __name__ == "__main__":
    main(sys.argv[1:])
