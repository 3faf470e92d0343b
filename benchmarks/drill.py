"""Kills training again and again, and compares rows, steps and files with those of a run that was never stopped.

    python benchmarks/drill.py [--kills 100] [--seed 0]

Two finite worlds and an ensemble are trained by the command line. Each process gets a kill -9 at a random moment: while
it resumes, learns, plays an episode or writes a checkpoint. The next process resumes. `tests/runs/test_drill.py` runs a
short drill.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

COSTS_FILE = "CAPAX_DRILL_STEPS"
"""Environment variable that names the file to which each step adds its cost."""
POLL_SECONDS = 0.0005
"""Between two looks at a run folder."""
SMALL = ("hidden=16", "layers=1", "members=2", "particles=4", "population=40", "elites=4", "iterations=2", "horizon=6",
         "batch=16", "least_updates=20", "most_updates=60", "start_steps=30", "fit_every=10")  # fmt: skip


class Walk(gym.Env[Any, Any]):
    """A noisy walk on a line. Each step writes its cost to a file before it returns."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,))
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.cost_file = os.open(os.environ[COSTS_FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x = self.np_random.normal(size=2)
        return self.x.copy(), {}

    def step(self, action: Any) -> Any:
        self.x = 0.9 * self.x + 0.3 * float(action[0]) + 0.05 * self.np_random.normal(size=2)
        cost = float(np.abs(self.x).sum())
        os.write(self.cost_file, struct.pack("<d", cost))
        return self.x.copy(), float(self.x[0]), False, False, {"cost": cost}

    def close(self) -> None:
        os.close(self.cost_file)


gym.register(id="DrillWalk-v0", entry_point=Walk, max_episode_steps=10)


class Drill(NamedTuple):
    """A run that is killed."""

    arguments: tuple[str, ...]
    """Arguments of `capax train`."""
    length: int
    """Steps of an episode."""
    episodes: int
    """Episodes per kill: enough that the run is not over before the last kill."""


DRILLS = {
    "cap": Drill(("capax/Gridworld-v0",), 50, 40),
    "calibrated": Drill(("capax/Gridworld-v0", "--method", "calibrated"), 50, 6),
    "ensemble": Drill(("drill:DrillWalk-v0", "--cost-limit", "8", "--preset", "fast", "--set", *SMALL), 10, 8),
}


def shares(kills: int) -> dict[str, int]:
    """The number of kills of each run: a fifth for the ensemble, the rest for the two finite worlds."""
    ensemble = kills // 5
    return {"cap": (kills - ensemble + 1) // 2, "calibrated": (kills - ensemble) // 2, "ensemble": ensemble}


class Report(NamedTuple):
    """The result of a drill."""

    kill_phases: Counter[str]
    """The number of kills in each phase of a process."""
    rows: int
    """Rows that were compared."""
    interrupted: int
    """Episodes that were interrupted."""
    seconds: float
    problems: list[str]


class Failed(Exception):
    """The drill could not be carried out."""


class Processes:
    """Starts capax processes, and waits for them until a deadline."""

    def __init__(self, scratch: Path, limit: float) -> None:
        self.scratch, self.deadline = scratch, time.monotonic() + limit
        self.cost_file, self.errors = scratch / "steps", scratch / "stderr.txt"
        self.env = {
            **os.environ,
            COSTS_FILE: str(self.cost_file),
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(scratch / "xla"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "capax", *map(str, arguments)]
        with self.errors.open("w") as errors:
            return subprocess.Popen(
                command, cwd=Path(__file__).parent, env=self.env, text=True, stdout=subprocess.PIPE, stderr=errors
            )

    def finish(self, *arguments: str | Path) -> str:
        """The standard output of a command, which must succeed."""
        child = self.start(*arguments)
        try:
            output, _ = child.communicate(timeout=max(0.0, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise Failed(f"there was no time left for capax {arguments[0]}") from None
        finally:
            self.kill(child)
        if child.returncode != 0:
            raise Failed(f"capax {arguments[0]} left with {child.returncode}: {self.errors.read_text()[-2000:]}")
        return output

    def wait(self, child: subprocess.Popen[str], happened: Callable[[], bool], what: str) -> None:
        """Wait until something has happened to a process that must be alive."""
        while not happened():
            if child.poll() is not None:
                raise Failed(
                    f"the process left with {child.returncode} before {what}: {self.errors.read_text()[-2000:]}"
                )
            if time.monotonic() > self.deadline:
                raise Failed(f"there was no time left to wait until {what}")
            time.sleep(POLL_SECONDS)

    @staticmethod
    def kill(child: subprocess.Popen[str]) -> bool:
        """Send a kill -9; returns whether the process was still alive."""
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
        return child.returncode == -9


def drill(name: str, kills: int, seed: int, scratch: Path, limit: float) -> Report:
    """Kill a run so many times, let it finish, and compare it with one that was never stopped."""
    start, rng = time.monotonic(), np.random.default_rng([seed, *name.encode()])
    kind, processes = DRILLS[name], Processes(scratch, limit)
    steps = ("--steps", str(kills * kind.episodes * kind.length), "--episode-steps", str(kind.length))
    train = ("train", *kind.arguments, *steps, "--resume", "--out")
    processes.finish(*train, scratch / "whole")
    rows = lines(scratch / "whole" / "episodes.jsonl")
    times = [row["time"]["seconds"] for row in rows]
    episode_seconds = float(np.median(np.diff(times)))
    processes.cost_file.unlink(missing_ok=True)

    run, kill_phases = scratch / "killed", Counter[str]()
    for number in range(kills):
        resumes, before = rng.random() < 0.8 and any(run.glob("checkpoints/episode-*")), time.time()
        child = processes.start("resume", run) if resumes else processes.start(*train, run)
        try:
            await_moment(processes, child, run, rng, episode_seconds, first=number == 0)
        finally:
            was_alive = processes.kill(child)
        if not was_alive:
            raise Failed(f"the run was over before kill {number + 1} of {kills}: give it more episodes")
        kill_phases[phase_of_kill(run, before)] += 1
    # a process that was killed before it wrote config.json has left no run to resume
    processes.finish(*(("resume", run) if (run / "config.json").exists() else (*train, run)))
    problems = differences(rows, run, kills, processes.cost_file)
    files = contents(run)
    output = processes.finish("resume", run)
    if f"{len(rows)} episodes" not in output or contents(run) != files:
        problems.append(f"a complete run was changed by resume: {output}")
    return Report(kill_phases, len(rows), len(lines(run / "interrupted.jsonl")), time.monotonic() - start, problems)


def await_moment(
    processes: Processes,
    child: subprocess.Popen[str],
    run: Path,
    rng: np.random.Generator,
    episode_seconds: float,
    first: bool,
) -> None:
    """Wait until the moment of the kill: between locking the folder and a few episodes later."""
    processes.wait(child, lambda: lock_holder(run) == child.pid, "it locked the folder")
    event = "start" if first else rng.choice(["start", "row", "row", "step", "checkpoint"])
    if event == "start":
        time.sleep(rng.choice([0.02, 0.5]) * rng.random())
        return
    least = row_count(run) + int(rng.integers(1, 4))
    processes.wait(child, lambda: row_count(run) >= least, "it had written a row")
    if event == "row":
        time.sleep(2.0 * episode_seconds * rng.random())
    elif event == "step":
        processes.wait(child, lambda: (run / "running.jsonl").exists(), "it had started an episode")
        time.sleep(rng.choice([0.0, 1.0]) * episode_seconds * rng.random())
    else:
        processes.wait(child, lambda: any(run.glob("checkpoints/.episode-*")), "it had started a checkpoint")
        time.sleep(rng.choice([0.0, 0.002]) * rng.random())


def lock_holder(run: Path) -> int | None:
    """The process that has locked the folder, by its lock file."""
    try:
        return int(json.loads((run / ".lock").read_text())["process"])
    except (OSError, ValueError, KeyError):
        return None


def row_count(run: Path) -> int:
    """Rows so far."""
    path = run / "episodes.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file; none if it does not exist."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def phase_of_kill(run: Path, since: float) -> str:
    """The phase in which a process that began at `since` was killed, by the files that it has left."""
    if any(run.glob("checkpoints/.episode-*")):
        return "checkpoint"
    states = sorted(run.glob("checkpoints/episode-*.safetensors"))
    if not states:
        return "start"
    if int(states[-1].stem.removeprefix("episode-")) != row_count(run):
        return "row"
    journal = run / "running.jsonl"
    if journal.exists() and journal.stat().st_mtime >= since:
        return "episode" if journal.read_bytes().count(b"\n") > 1 else "reset"
    return "learning" if states[-1].stat().st_mtime >= since else "start"


def contents(run: Path) -> dict[Path, bytes]:
    """All files but the lock, which names the last process."""
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}


def timeless(rows: list[dict[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows without what depends on the clock."""
    return [{name: value for name, value in row.items() if name != "time"} for row in rows]


def differences(whole: list[dict[str, Any]], run: Path, kills: int, cost_file: Path) -> list[str]:
    """How a killed run differs from one that was never stopped, and what it has lost, in words."""
    rows, interrupted = lines(run / "episodes.jsonl"), lines(run / "interrupted.jsonl")
    problems = []
    if timeless(rows) != timeless(whole):
        pairs = zip(timeless(rows), timeless(whole), strict=False)
        first = next((n for n, (one, other) in enumerate(pairs) if one != other), min(len(rows), len(whole)))
        problems.append(f"the rows differ from row {first} on ({len(rows)} rows, {len(whole)} without a kill)")
    expected = {".lock", "config.json", "episodes.jsonl", "interrupted.jsonl", "buffer.log", "buffer.parity"}
    expected |= {f"episode-{number:06d}.safetensors" for number in (len(rows) - 1, len(rows))}
    left = sorted(path.name for path in contents(run) if path.name not in expected and ".tfevents" not in path.name)
    if left:
        problems.append(f"files were left over: {', '.join(left)}")
    if len(interrupted) > kills:
        problems.append(f"{len(interrupted)} episodes were interrupted by {kills} kills")
    for row in interrupted:
        number, before = row["episode"], row["steps"]
        if not 0 <= number < len(whole) or before != (whole[number - 1]["steps"] if number else 0):
            problems.append(f"episode {number} after {before} steps was interrupted, but there is none")
        elif not 1 <= row["length"] <= whole[number]["length"]:
            problems.append(f"episode {number} was interrupted after {row['length']} steps")
        if row["reason"] != "killed":
            problems.append(f"episode {number} was interrupted because of something else: {row['reason']}")
    if cost_file.exists():
        costs = np.frombuffer(cost_file.read_bytes(), "<f8")
        counted = rows[-1]["steps"] + sum(row["length"] for row in interrupted)
        paid = sum(row["cost"] for row in (*rows, *interrupted))
        missing = len(costs) - counted
        if not 0 <= missing <= kills:
            problems.append(f"{len(costs)} steps were taken and {counted} counted, with {kills} kills")
        elif not -1e-6 <= costs.sum() - paid <= missing * costs.max() + 1e-6:
            problems.append(f"{costs.sum()} was paid and {paid} counted, with {missing} steps missing")
    return problems


def main() -> None:
    """Run all drills and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=100, help="in all runs; a fifth of them in the ensemble's")
    parser.add_argument("--seed", type=int, default=0, help="decides the moments")
    options = parser.parse_args()
    any_problem = False
    print(f"{'run':10}  {'kills':>5}  {'rows':>5}  {'interrupted':>11}  {'seconds':>7}  result; phases of the kills")
    for name, kills in shares(options.kills).items():
        if not kills:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            try:
                report = drill(name, kills, options.seed, Path(scratch), limit=60.0 + 60.0 * kills)
            except Failed as error:
                report = Report(Counter(), 0, 0, 0.0, [str(error)])
        any_problem = any_problem or bool(report.problems)
        result = "; ".join(report.problems) or "identical"
        phases = ", ".join(f"{count} {place}" for place, count in report.kill_phases.most_common())
        print(
            f"{name:10}  {kills:5}  {report.rows:5}  {report.interrupted:11}  {report.seconds:7.0f}  {result}; {phases}",
            flush=True,
        )
    sys.exit(any_problem)


if __name__ == "__main__":
    main()
