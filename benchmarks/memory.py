"""Does a long run keep its memory? 100,000 steps with a small planner, and how far the process grows after its first fit."""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

import capax
from capax.runs.live import Live

SMALL = {"population": 8, "elites": 2, "iterations": 1, "horizon": 2, "particles": 5}
SMALL |= {"least_updates": 20, "most_updates": 100}


def resident() -> float:
    """Memory of this process now, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def main(steps: int = 100_000) -> None:
    """One run of HalfCheetah: networks and buffer as in the preset `paper`, a planner and fits that do little."""
    sizes: list[float] = []
    tell = Live.episode

    def watched(self: Live, row: dict) -> None:
        tell(self, row)
        if row["phase"] == "plan":
            sizes.append(resident())

    Live.episode = watched  # type: ignore[assignment,method-assign]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as out:
        capax.train("capax/HalfCheetahVelocity-v0", steps=steps, out=out, settings=SMALL, force=True)
    grown = max(sizes) - sizes[0]
    took = time.monotonic() - began
    print(f"{steps} steps in {took:.0f} s: {sizes[0]:.0f} MiB after the first fit, at most {grown:.0f} MiB more")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
