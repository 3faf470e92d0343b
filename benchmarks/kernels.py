"""Lists the kernels of a plan, and the time that the device is idle between them (on a GPU).

python benchmarks/kernels.py                 a plan at Car-Racing's size, then one at HalfCheetah's
python benchmarks/kernels.py images fit      only these of: images, states, fit (an image agent's fit)

One row for each kind of kernel: launches per plan, and microseconds in all. The last row has the time that the device
was busy, and the time of a plan. On a CPU the same shows the operations of its threads.
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
from capax.cli.bench_work import images_fit, images_plan, states_plan
from capax.runtime import cpu_devices

PLAN_COUNT, MAX_ROWS, FIT_STEPS = 5, 25, 5000
MAX_GAP_US = 100.0
"""A longer gap, in microseconds, is between two plans, or belongs to the host."""
IMAGE_SETTINGS = PlanetSettings()


def workload(name: str) -> Callable[[], Any]:
    """The call that is profiled."""
    if name == "states":
        return states_plan(PetsSettings())
    return images_plan(IMAGE_SETTINGS) if name == "images" else images_fit(IMAGE_SETTINGS, FIT_STEPS)


def traced_events(call: Callable[[], Any], times: int) -> list[dict[str, Any]]:
    """The profiler's events of some calls, after one call that compiles."""
    jax.block_until_ready(call())
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, create_perfetto_trace=True):
            for _ in range(times):
                jax.block_until_ready(call())
        (path,) = Path(folder).rglob("perfetto_trace.json.gz")
        with gzip.open(path) as file:
            trace = json.load(file)
    return trace["traceEvents"] if isinstance(trace, dict) else trace


def on_device(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Events of a GPU's streams, or of a CPU's compiled programs."""
    names = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
    lines = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    gpu = [e for e in events if e.get("ph") == "X" and "GPU" in names.get(e["pid"], "") and
           "Stream" in lines.get((e["pid"], e.get("tid")), "")]  # fmt: skip
    return gpu or [e for e in events if e.get("ph") == "X" and "hlo_op" in e.get("args", {})]


def report(name: str, events: list[dict[str, Any]], times: int) -> dict[str, Any]:
    """Print the kinds of kernels; returns their number, and the time that the device was busy and idle."""
    kinds: dict[str, list[float]] = defaultdict(list)
    for event in events:
        kinds[re.sub(r"[._]?\d+$", "", event["name"])[:70]].append(event["dur"])
    print(f"{name}: {sum(map(len, kinds.values())) / times:.0f} kernels", flush=True)
    for kind, durations in sorted(kinds.items(), key=lambda item: -sum(item[1]))[:MAX_ROWS]:
        print(f"  {len(durations) / times:8.1f} × {np.mean(durations):8.2f} µs = {sum(durations) / times:9.1f}  {kind}")
    ends = sorted((e["ts"], e["ts"] + e["dur"]) for e in events)
    busy, until, gaps = 0.0, -np.inf, []
    for begin, end in ends:
        busy += max(0.0, end - max(begin, until))
        gaps.append(max(0.0, begin - until))
        until = max(until, end)
    plan_us = (until - ends[0][0]) / times if ends else 0.0
    idle_us = sum(gap for gap in gaps if gap < MAX_GAP_US) / times
    print(
        f"  busy {busy / times:.0f} µs of {plan_us:.0f} µs from plan to plan; idle for {idle_us:.0f} µs between kernels",
        flush=True,
    )
    times_ms = {"device busy, ms": 1e-3 * busy / times, "idle between kernels, ms": 1e-3 * idle_us}
    return {"what": name, "kernels": round(sum(map(len, kinds.values())) / times), **times_ms}


def main(chosen: list[str]) -> None:
    from record import save

    cpu_devices.claim()
    print(f"{jax.devices()[0].device_kind}, JAX {jax.__version__}", flush=True)
    rows = []
    for name in chosen or ["images", "states"]:
        times = PLAN_COUNT if name != "fit" else 1
        rows.append(report(name, on_device(traced_events(workload(name), times)), times))
    save("kernels", rows)


if __name__ == "__main__":
    main(sys.argv[1:])
