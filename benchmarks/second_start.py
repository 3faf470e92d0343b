"""How long after its start does `capax train` plan its first action, and how long in a second start?

python benchmarks/second_start.py            the pendulum, HalfCheetah and the dot
python benchmarks/second_start.py TASK ...   these
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

TASKS = "capax/PendulumSpeed-v0", "capax/HalfCheetahVelocity-v0", "capax/Dot-v0"
TURNS = 4
"""Starts of each task; the first compiles."""
LOOK = 0.01
"""Seconds between two looks at the run folder."""


def begun(out: Path) -> str | None:
    """The phase of the episode that is being played, once it has a step."""
    with suppress(OSError, ValueError):  # it may be renamed or half written
        head, *steps = (out / "running.jsonl").read_text().splitlines()
        return json.loads(head)["phase"] if steps else None
    return None


def start(task: str, cache: str) -> dict[str, float]:
    """Seconds from the start of the process to its first step, and to the first that was planned."""
    with tempfile.TemporaryDirectory() as folder:
        out, seen = Path(folder) / "run", {}
        command = [sys.executable, "-m", "capax.cli", "train", task, "--preset", "fast", "--out", str(out)]
        began = time.monotonic()
        process = subprocess.Popen(
            command,
            env={**os.environ, "XDG_CACHE_HOME": cache},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while "plan" not in seen:
                if process.poll() is not None:
                    raise SystemExit(f"{' '.join(command)} ended before it had planned")
                phase = begun(out)
                if phase is not None:
                    seen.setdefault(phase, time.monotonic() - began)
                time.sleep(LOOK)
        finally:
            process.kill()
            process.wait()
    return seen


def main(*tasks: str) -> None:
    for task in tasks or TASKS:
        with tempfile.TemporaryDirectory() as cache:
            first, *others = (start(task, cache) for _ in range(TURNS))
        least, most = (f(seen["plan"] for seen in others) for f in (min, max))
        stepped = min(seen["random"] for seen in others)
        print(
            f"{task}: planned {first['plan']:.1f} s after a first start, {least:.1f} to {most:.1f} s after "
            f"{len(others)} later ones (whose first random step came after {stepped:.1f} s)",
            flush=True,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
