"""Measures how fast the preset `fast` trains on this machine, and how well it learns the pendulum.

python benchmarks/continuous.py             HalfCheetah's steps per second, then the pendulum
python benchmarks/continuous.py cheetah     one of them (also: pendulum)
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import capax
from capax.envs.pendulum import best_return

LAST_EPISODES = 10
"""Episodes that the pendulum's figures are averaged over."""


def cheetah(steps: int = 3300) -> dict[str, Any]:
    """Steps per second of whole episodes, each with its fit; the first planned one compiles and is omitted."""
    with tempfile.TemporaryDirectory() as out:
        run = capax.train("capax/HalfCheetahVelocity-v0", steps=steps, preset="fast", out=out, force=True)
        rates = [row["time"]["steps_per_second"] for row in run.episodes if row["phase"] == "plan"][1:]
    print(f"HalfCheetah, fast: {min(rates):.1f} to {max(rates):.1f} steps/s over {len(rates)} episodes")
    return {
        "what": "HalfCheetah, preset fast, steps/s of episodes with their fits",
        "least": min(rates),
        "most": max(rates),
    }


def pendulum(steps: int = 4500, seed: int = 0) -> dict[str, Any]:
    """Return of the last episodes relative to the most that the limit allows, and their cost."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as out:
        run = capax.train("capax/PendulumSpeed-v0", steps=steps, seed=seed, preset="fast", out=Path(out), force=True)
        rows = run.episodes
    seconds, last, best = time.monotonic() - start, rows[-LAST_EPISODES:], best_return()
    earned, paid = (sum(row[name] for row in last) / len(last) for name in ("return", "cost"))
    planned = [row for row in rows if row["phase"] == "plan"]
    violations = sum(row["violation"] for row in planned)
    print(
        f"Pendulum, fast, seed {seed}: {steps} steps in {seconds:.0f} s; last {len(last)} episodes: return {earned:.0f}, "
        f"{100 * earned / best:.1f} % of the most that the limit allows, cost {paid:.0f} of {rows[0]['limit']:g}, "
        f"at most {max(row['cost'] for row in last):.0f}; {violations} of {len(planned)} planned episodes violated"
    )
    return {"what": f"pendulum, preset fast, seed {seed}, {steps} steps, s", "least": seconds, "most": seconds}


if __name__ == "__main__":
    from record import save

    names = sys.argv[1:] or ("cheetah", "pendulum")
    save("continuous", [{"cheetah": cheetah, "pendulum": pendulum}[name]() for name in names])
