"""Is anything lost when training is killed, again and again? Rows, steps and files beside those of a run never stopped.

    python benchmarks/drill.py [--kills 100] [--seed 0]

Two finite worlds and an ensemble are trained by the command line. Each process gets a kill -9 at a moment of its own: while
it resumes, learns, plays an episode or writes a checkpoint. The next one resumes. `tests/test_drill.py` does a few of them.
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

STEPS = "CAPAX_DRILL_STEPS"
"""Names the file to which each step really taken adds its cost."""
LOOK = 0.0005
"""Seconds between two looks at a run folder."""
SMALL = ("hidden=16", "layers=1", "members=2", "particles=4", "population=40", "elites=4", "iterations=2", "horizon=6",
         "batch=16", "least_updates=20", "most_updates=60", "start_steps=30", "fit_every=10")  # fmt: skip


class Walk(gym.Env[Any, Any]):
    """A noisy walk on a line. What a step costs is on its way to a file before anybody else hears of it."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,))
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.paid = os.open(os.environ[STEPS], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x = self.np_random.normal(size=2)
        return self.x.copy(), {}

    def step(self, action: Any) -> Any:
        self.x = 0.9 * self.x + 0.3 * float(action[0]) + 0.05 * self.np_random.normal(size=2)
        cost = float(np.abs(self.x).sum())
        os.write(self.paid, struct.pack("<d", cost))
        return self.x.copy(), float(self.x[0]), False, False, {"cost": cost}

    def close(self) -> None:
        os.close(self.paid)


gym.register(id="DrillWalk-v0", entry_point=Walk, max_episode_steps=10)


class Drill(NamedTuple):
    """A run that is killed."""

    arguments: tuple[str, ...]
    """Of `capax train`."""
    length: int
    """Steps of an episode."""
    episodes: int
    """There are so many to a kill, so that the run is not over before the last one."""


DRILLS = {
    "cap": Drill(("capax/Gridworld-v0",), 50, 40),
    "calibrated": Drill(("capax/Gridworld-v0", "--method", "calibrated"), 50, 6),
    "ensemble": Drill(("drill:DrillWalk-v0", "--cost-limit", "8", "--preset", "fast", "--set", *SMALL), 10, 8),
}


def shares(kills: int) -> dict[str, int]:
    """How many kills each run gets: a fifth for the ensemble, the rest for the two finite worlds."""
    ensemble = kills // 5
    return {"cap": (kills - ensemble + 1) // 2, "calibrated": (kills - ensemble) // 2, "ensemble": ensemble}


class Report(NamedTuple):
    """What came of a drill."""

    fell: Counter[str]
    """Where the kills fell."""
    rows: int
    """That were compared."""
    cut: int
    """Episodes that were interrupted."""
    seconds: float
    problems: list[str]


class Failed(Exception):
    """The drill itself could not be carried out."""


class Processes:
    """Starts capax, and waits for it no longer than it may take."""

    def __init__(self, scratch: Path, limit: float) -> None:
        self.scratch, self.deadline = scratch, time.monotonic() + limit
        self.steps, self.errors = scratch / "steps", scratch / "stderr.txt"
        self.env = {
            **os.environ,
            STEPS: str(self.steps),
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(scratch / "xla"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "capax.cli", *map(str, arguments)]
        with self.errors.open("w") as errors:
            return subprocess.Popen(
                command, cwd=Path(__file__).parent, env=self.env, text=True, stdout=subprocess.PIPE, stderr=errors
            )

    def finish(self, *arguments: str | Path) -> str:
        """What the command says; it must succeed."""
        child = self.start(*arguments)
        try:
            said, _ = child.communicate(timeout=max(0.0, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise Failed(f"there was no time left for capax {arguments[0]}") from None
        finally:
            self.kill(child)
        if child.returncode != 0:
            raise Failed(f"capax {arguments[0]} left with {child.returncode}: {self.errors.read_text()[-2000:]}")
        return said

    def wait(self, child: subprocess.Popen[str], seen: Callable[[], bool], what: str) -> None:
        """Until something is seen of a process that must live."""
        while not seen():
            if child.poll() is not None:
                raise Failed(
                    f"the process left with {child.returncode} before {what}: {self.errors.read_text()[-2000:]}"
                )
            if time.monotonic() > self.deadline:
                raise Failed(f"there was no time left to wait until {what}")
            time.sleep(LOOK)

    @staticmethod
    def kill(child: subprocess.Popen[str]) -> bool:
        """With a kill -9; whether it still lived."""
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
        return child.returncode == -9


def drill(name: str, kills: int, seed: int, scratch: Path, limit: float) -> Report:
    """Kill a run so many times, let it finish, and compare it with one that was never stopped."""
    began, rng = time.monotonic(), np.random.default_rng([seed, *name.encode()])
    kind, processes = DRILLS[name], Processes(scratch, limit)
    steps = ("--steps", str(kills * kind.episodes * kind.length), "--episode-steps", str(kind.length))
    train = ("train", *kind.arguments, *steps, "--resume", "--out")
    processes.finish(*train, scratch / "whole")
    rows = lines(scratch / "whole" / "episodes.jsonl")
    times = [row["time"]["seconds"] for row in rows]
    pace = float(np.median(np.diff(times)))  # seconds of an episode
    processes.steps.unlink(missing_ok=True)

    run, fell = scratch / "killed", Counter[str]()
    for number in range(kills):
        again, before = rng.random() < 0.8 and any(run.glob("checkpoints/episode-*")), time.time()
        child = processes.start("resume", run) if again else processes.start(*train, run)
        try:
            await_moment(processes, child, run, rng, pace, first=number == 0)
        finally:
            lived = processes.kill(child)
        if not lived:
            raise Failed(f"the run was over before kill {number + 1} of {kills}: give it more episodes")
        fell[where(run, before)] += 1
    processes.finish("resume", run)
    problems = differences(rows, run, kills, processes.steps)
    there = contents(run)
    said = processes.finish("resume", run)
    if f"{len(rows)} episodes" not in said or contents(run) != there:
        problems.append(f"a run that is complete was not left as it is: {said}")
    return Report(fell, len(rows), len(lines(run / "interrupted.jsonl")), time.monotonic() - began, problems)


def await_moment(
    processes: Processes, child: subprocess.Popen[str], run: Path, rng: np.random.Generator, pace: float, first: bool
) -> None:
    """Until the process is to be killed: from the moment it holds the folder to a few episodes later."""
    processes.wait(child, lambda: held(run) == child.pid, "it held the folder")
    event = "start" if first else rng.choice(["start", "row", "row", "step", "checkpoint"])
    if event == "start":
        time.sleep(rng.choice([0.02, 0.5]) * rng.random())
        return
    least = height(run) + int(rng.integers(1, 4))
    processes.wait(child, lambda: height(run) >= least, "it had written a row")
    if event == "row":
        time.sleep(2.0 * pace * rng.random())
    elif event == "step":
        processes.wait(child, lambda: (run / "running.jsonl").exists(), "it had begun an episode")
        time.sleep(rng.choice([0.0, 1.0]) * pace * rng.random())
    else:
        processes.wait(child, lambda: any(run.glob("checkpoints/.episode-*")), "it had begun a checkpoint")
        time.sleep(rng.choice([0.0, 0.002]) * rng.random())


def held(run: Path) -> int | None:
    """The process that says it has locked the folder."""
    try:
        return int(json.loads((run / ".lock").read_text())["process"])
    except (OSError, ValueError, KeyError):
        return None


def height(run: Path) -> int:
    """Rows so far."""
    path = run / "episodes.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def where(run: Path, since: float) -> str:
    """In what a process that began at a time was killed, by what it has left."""
    if any(run.glob("checkpoints/.episode-*")):
        return "checkpoint"
    states = sorted(run.glob("checkpoints/episode-*.safetensors"))
    if not states:
        return "start"
    if int(states[-1].stem.removeprefix("episode-")) != height(run):
        return "row"
    journal = run / "running.jsonl"
    if journal.exists() and journal.stat().st_mtime >= since:
        return "episode" if journal.read_bytes().count(b"\n") > 1 else "reset"
    return "learning" if states[-1].stat().st_mtime >= since else "start"


def contents(run: Path) -> dict[Path, bytes]:
    """All files but the lock, which says who came last."""
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}


def timeless(rows: list[dict[str, Any]]) -> list[Mapping[str, Any]]:
    return [{name: value for name, value in row.items() if name != "time"} for row in rows]


def differences(whole: list[dict[str, Any]], run: Path, kills: int, steps: Path) -> list[str]:
    """What a killed run has not in common with one that never was, and what it has lost, in words."""
    rows, cut = lines(run / "episodes.jsonl"), lines(run / "interrupted.jsonl")
    problems = []
    if timeless(rows) != timeless(whole):
        pairs = zip(timeless(rows), timeless(whole), strict=False)
        first = next((n for n, (one, other) in enumerate(pairs) if one != other), min(len(rows), len(whole)))
        problems.append(f"the rows differ from row {first} on ({len(rows)} rows, {len(whole)} without a kill)")
    known = {".lock", "config.json", "episodes.jsonl", "interrupted.jsonl", "buffer.log"}
    known |= {f"episode-{number:06d}.safetensors" for number in (len(rows) - 1, len(rows))}
    left = sorted(path.name for path in contents(run) if path.name not in known and ".tfevents" not in path.name)
    if left:
        problems.append(f"files were left over: {', '.join(left)}")
    if len(cut) > kills:
        problems.append(f"{len(cut)} episodes were interrupted by {kills} kills")
    for row in cut:
        number, before = row["episode"], row["steps"]
        if not 0 <= number < len(whole) or before != (whole[number - 1]["steps"] if number else 0):
            problems.append(f"episode {number} after {before} steps was interrupted, but there is none")
        elif not 1 <= row["length"] <= whole[number]["length"]:
            problems.append(f"episode {number} was interrupted after {row['length']} steps")
        if row["reason"] != "killed":
            problems.append(f"episode {number} was interrupted because of something else: {row['reason']}")
    if steps.exists():
        taken = np.frombuffer(steps.read_bytes(), "<f8")
        counted = rows[-1]["steps"] + sum(row["length"] for row in cut)
        paid = sum(row["cost"] for row in (*rows, *cut))
        missing = len(taken) - counted
        if not 0 <= missing <= kills:
            problems.append(f"{len(taken)} steps were taken and {counted} counted, with {kills} kills")
        elif not -1e-6 <= taken.sum() - paid <= missing * taken.max() + 1e-6:
            problems.append(f"{taken.sum()} was paid and {paid} counted, with {missing} steps missing")
    return problems


def main() -> None:
    """All drills, as a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=100, help="in all; a fifth of them are the ensemble's")
    parser.add_argument("--seed", type=int, default=0, help="decides the moments")
    asked = parser.parse_args()
    wrong = False
    print(f"{'run':10}  {'kills':>5}  {'rows':>5}  {'cut':>4}  {'seconds':>7}  result; where the kills fell")
    for name, kills in shares(asked.kills).items():
        if not kills:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            try:
                report = drill(name, kills, asked.seed, Path(scratch), limit=60.0 + 60.0 * kills)
            except Failed as error:
                report = Report(Counter(), 0, 0, 0.0, [str(error)])
        wrong = wrong or bool(report.problems)
        result = "; ".join(report.problems) or "identical"
        fell = ", ".join(f"{count} {place}" for place, count in report.fell.most_common())
        print(
            f"{name:10}  {kills:5}  {report.rows:5}  {report.cut:4}  {report.seconds:7.0f}  {result}; {fell}",
            flush=True,
        )
    sys.exit(wrong)


if __name__ == "__main__":
    main()
