"""Writes what a benchmark has measured as JSON, with the machine, the commit and the command.

    from record import save
    save("tabular", {"seconds": 9.4})        # runs/benchmarks/tabular.json

A file that a page quotes is copied to `results/speed/` and committed; `make figures` reads it there.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from capax.core.version import commit

FOLDER = Path("runs/benchmarks")
PACKAGES = ("jax", "numpy", "torch", "stable-baselines3")


def save(name: str, figures: Any) -> Path:
    """Write `runs/benchmarks/NAME.json`."""
    table = {
        "command": shlex.join(["python", *sys.argv]),
        "commit": commit(),
        "changed": has_changes(),
        "machine": machine(),
        "transcribed": False,
        "figures": figures,
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps(table, indent=2, ensure_ascii=False) + "\n")
    print(f"written to {path}", file=sys.stderr)
    return path


def has_changes() -> bool | None:
    """Whether the source differs from its commit; None where git cannot tell."""
    command = ["git", "-C", str(Path(__file__).parent), "status", "--porcelain", "--untracked-files=no"]
    try:
        return bool(subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout)
    except (OSError, subprocess.SubprocessError):
        return None


def machine() -> dict[str, Any]:
    """The processor, its free cores, the load of others, the accelerator and the versions that compute."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        "accelerator": accelerator(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def processor() -> str:
    """The name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def accelerator() -> str | None:
    """The first device of JAX that is no CPU, if this process has started JAX."""
    if "jax" not in sys.modules:
        return None
    kinds = [device.device_kind for device in sys.modules["jax"].devices() if device.platform != "cpu"]
    return kinds[0] if kinds else None
