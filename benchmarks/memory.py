"""Measures how far the process of a long run grows after its first fit: 100,000 steps with a small planner.

python benchmarks/memory.py [STEPS]
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import capax

SMALL = {"population": 8, "elites": 2, "iterations": 1, "horizon": 2, "particles": 5}
SMALL |= {"least_updates": 20, "most_updates": 100}


def resident() -> float:
    """Memory of this process now, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def main(steps: int = 100_000) -> None:
    """One run of HalfCheetah: networks and buffer as in the preset `paper`, a planner and fits that do little."""
    from record import save

    sizes: list[float] = []

    def remember_size(row: dict[str, Any]) -> None:
        if row["phase"] == "plan":
            sizes.append(resident())

    start = time.monotonic()
    with tempfile.TemporaryDirectory() as out:
        options: dict[str, Any] = {"preset": "paper", "settings": SMALL, "on_episode": remember_size}
        capax.train("capax/HalfCheetahVelocity-v0", steps=steps, out=out, **options)
    growth, seconds = max(sizes) - sizes[0], time.monotonic() - start
    print(f"{steps} steps in {seconds:.0f} s: {sizes[0]:.0f} MiB after the first fit, at most {growth:.0f} MiB more")
    save("memory", [{"steps": steps, "s": seconds, "MiB after the first fit": sizes[0], "MiB more, at most": growth}])


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
