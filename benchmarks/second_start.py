"""Measures the time from the start of `capax train` to its first planned action, in a first and in later starts.

python benchmarks/second_start.py            the pendulum, HalfCheetah and the dot
python benchmarks/second_start.py TASK ...   these tasks
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
POLL_SECONDS = 0.01
"""Between two looks at the run folder."""


def phase_of_running_episode(out: Path) -> str | None:
    """The phase of the episode that is being played, once it has a step."""
    with suppress(OSError, ValueError):  # it may be deleted or half written
        head, *steps = (out / "running.jsonl").read_text().splitlines()
        return json.loads(head)["phase"] if steps else None
    return None


def first_steps(task: str, cache: str) -> dict[str, float]:
    """Seconds from the start of the process to the first step of each phase, `random` and `plan`."""
    with tempfile.TemporaryDirectory() as folder:
        out, seconds = Path(folder) / "run", {}
        command = [sys.executable, "-m", "capax", "train", task, "--preset", "fast", "--out", str(out)]
        start = time.monotonic()
        process = subprocess.Popen(
            command,
            env={**os.environ, "XDG_CACHE_HOME": cache},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while "plan" not in seconds:
                if process.poll() is not None:
                    raise SystemExit(f"{' '.join(command)} ended before its first plan")
                phase = phase_of_running_episode(out)
                if phase is not None:
                    seconds.setdefault(phase, time.monotonic() - start)
                time.sleep(POLL_SECONDS)
        finally:
            process.kill()
            process.wait()
    return seconds


def main(*tasks: str) -> None:
    from record import save

    rows = []
    for task in tasks or TASKS:
        with tempfile.TemporaryDirectory() as cache:
            first, *others = (first_steps(task, cache) for _ in range(TURNS))
        least, most = (f(seconds["plan"] for seconds in others) for f in (min, max))
        first_random = min(seconds["random"] for seconds in others)
        print(
            f"{task}: planned {first['plan']:.1f} s after a first start, {least:.1f} to {most:.1f} s after "
            f"{len(others)} later ones (whose first random step came after {first_random:.1f} s)",
            flush=True,
        )
        rows.append({"task": task, "first start, s": first["plan"], "later starts, s": least, "slowest of them": most})
    save("second-start", rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
