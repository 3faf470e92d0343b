"""Kills training again and again, and compares rows, steps and files with those of a run that was never stopped.

    python benchmarks/drill.py [--kills 200] [--seed 0]

Agents of every kind are trained by the command line: tabular, calibrated, ensemble, images, policy gradient. Most processes
get a kill -9 at a random moment: while they resume, learn, play an episode or write a checkpoint. For some, the disk is full
from that moment on, until they stop by themselves. For some, a second process tries to resume the run before the kill. The
environment of one run forks. The next process resumes. `tests/runs/test_drill.py` runs a short drill.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from drill_files import contents, differences, lines, lock_holder, phase_of_kill, row_count
from gymnasium import spaces

COSTS_FILE = "CAPAX_DRILL_STEPS"
"""Environment variable that names the file to which each step adds its cost. Its first number says how many follow."""
MAX_COSTS = 2**20
FACTORS = (1, 4, 16)
"""By these the number of episodes is multiplied, until a run is not over before its last kill."""
POLL_SECONDS = 0.0005
"""Between two looks at a run folder."""
DRILLS_AT_ONCE = 2
SECONDS_PER_KILL = 600.0
"""After these a drill is given up. On a machine that is free, a kill takes some seconds."""
SMALL = ("hidden=16", "layers=1", "members=2", "particles=4", "population=40", "elites=4", "iterations=2", "horizon=6",
         "batch=16", "least_updates=20", "most_updates=60", "start_steps=30", "fit_every=10")  # fmt: skip
IMAGES = ("deter=6", "stoch=3", "hidden=6", "depth=1", "members=2", "batch=2", "chunk=4", "updates=2", "horizon=3",
          "iterations=2", "population=8", "elites=2", "start_steps=16")  # fmt: skip
GRADIENT = ("batch=20", "minibatch=8", "epochs=2", "hidden=8")
FULL_DISK, TWO_PROCESSES = 0.1, 0.1
"""Shares of the processes that end for another reason than a plain kill, once they have written a row."""


class Walk(gym.Env[Any, Any]):
    """A noisy walk on a line. Each step adds its cost to a file before it returns.

    The file is mapped into memory, so that a full disk cannot stop it, nor a kill lose it.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,))
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.costs = np.memmap(os.environ[COSTS_FILE], np.float64, "r+")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x = self.np_random.normal(size=2)
        return self.x.copy(), {}

    def step(self, action: Any) -> Any:
        self.x = 0.9 * self.x + 0.3 * float(action[0]) + 0.05 * self.np_random.normal(size=2)
        cost = float(np.abs(self.x).sum())
        place = int(self.costs[0]) + 1
        self.costs[place] = cost
        self.costs[0] = place
        return self.x.copy(), float(self.x[0]), False, False, {"cost": cost}


class ForkingWalk(Walk):
    """The walk. Each reset forks a process that outlives it, and one that comes out of it like its parent."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if os.fork() == 0:
            signal.alarm(10)  # whatever a lock of another thread does to it
            time.sleep(0.2)
            os._exit(0)
        result = super().reset(seed=seed)
        if os.fork() == 0:
            signal.alarm(10)
        return result


gym.register(id="DrillWalk-v0", entry_point=Walk, max_episode_steps=10)
gym.register(id="DrillForks-v0", entry_point=ForkingWalk, max_episode_steps=10)


class Drill(NamedTuple):
    """A run that is killed."""

    arguments: tuple[str, ...]
    """Arguments of `capax train`."""
    length: int
    """Steps of an episode."""
    episodes: int
    """Episodes per kill: enough that the run is not over before the last kill."""


WALK = ("drill:DrillWalk-v0", "--cost-limit", "8", "--preset", "fast")
FORKS = ("drill:DrillForks-v0", *WALK[1:])
DRILLS = {
    "cap": Drill(("capax/Gridworld-v0",), 50, 40),
    "calibrated": Drill(("capax/Gridworld-v0", "--method", "calibrated"), 50, 6),
    "ensemble": Drill((*WALK, "--set", *SMALL), 10, 8),
    "ensemble, forks": Drill((*FORKS, "--set", *SMALL), 10, 8),
    "images": Drill(("capax/Dot-v0", "--preset", "fast", "--set", *IMAGES), 10, 8),
    "ppo": Drill((*WALK, "--method", "ppo", "--set", *GRADIENT), 10, 30),
    "ppo-lag, forks": Drill((*FORKS, "--method", "ppo-lag", "--set", *GRADIENT), 10, 30),
    "focops": Drill((*WALK, "--method", "focops", "--set", *GRADIENT), 10, 30),
    "random": Drill((*WALK, "--method", "random"), 10, 200),
}
SHARES = {"cap": 0.15, "calibrated": 0.1, "ensemble": 0.2, "ensemble, forks": 0.1, "images": 0.1, "ppo": 0.05,
          "ppo-lag, forks": 0.15, "focops": 0.1, "random": 0.05}  # fmt: skip
"""Of the kills."""


def shares(kills: int) -> dict[str, int]:
    """The number of kills of each run."""
    ends = np.rint(kills * np.cumsum(list(SHARES.values()))).astype(int)
    return dict(zip(SHARES, np.diff(ends, prepend=0).tolist(), strict=True))


class Report(NamedTuple):
    """The result of a drill."""

    kill_phases: Counter[str]
    """The number of kills in each phase of a process, those by a full disk, and those in the face of a second process."""
    rows: int
    """Rows that were compared."""
    interrupted: int
    """Episodes that were interrupted."""
    seconds: float
    problems: list[str]


class Failed(Exception):
    """The drill could not be carried out."""


class RunOver(Failed):
    """The run was complete before its last kill: this process was slower than the run."""


class Processes:
    """Starts capax processes, and waits for them until a deadline."""

    def __init__(self, scratch: Path, limit: float) -> None:
        self.scratch, self.deadline = scratch, time.monotonic() + limit
        self.cost_file, self.errors = scratch / "steps", scratch / "stderr.txt"
        self.env = {
            **os.environ,
            COSTS_FILE: str(self.cost_file),
            "CAPAX_TRUSTED": str(scratch / "trusted.json"),
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(scratch / "xla"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }

    def forget_costs(self) -> None:
        """Let the file of costs be empty."""
        np.memmap(self.cost_file, np.float64, "w+", shape=(MAX_COSTS,)).flush()

    def costs(self) -> np.ndarray:
        """The cost of each step that was taken."""
        costs = np.memmap(self.cost_file, np.float64, "r")
        return np.array(costs[1 : int(costs[0]) + 1])

    def start(self, *arguments: str | Path, errors: str = "stderr.txt") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "capax", *map(str, arguments)]
        with (self.scratch / errors).open("w") as errors_file:
            return subprocess.Popen(
                command, cwd=Path(__file__).parent, env=self.env, text=True, stdout=subprocess.PIPE, stderr=errors_file
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
                why = f"the process left with {child.returncode} before {what}: {self.errors.read_text()[-2000:]}"
                raise RunOver(why) if child.returncode == 0 else Failed(why)
            if time.monotonic() > self.deadline:
                raise Failed(f"there was no time left to wait until {what}")
            time.sleep(POLL_SECONDS)

    def wait_for_end(self, child: subprocess.Popen[str], what: str) -> None:
        """Wait until a process has ended."""
        try:
            child.wait(timeout=max(0.0, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise Failed(f"there was no time left to wait until {what}") from None

    @staticmethod
    def kill(child: subprocess.Popen[str]) -> bool:
        """Send a kill -9; returns whether the process was still alive."""
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
        return child.returncode == -9


def drill(name: str, kills: int, seed: int, scratch: Path, limit: float) -> Report:
    """Kill a run so many times, let it finish, and compare it with one that was never stopped.

    If the run is over before the last kill, as on a busy machine, begin again with a longer one.
    """
    for factor in FACTORS:
        try:
            return drill_of(name, kills, factor * DRILLS[name].episodes, seed, scratch / f"{factor}", limit)
        except RunOver:
            if factor == FACTORS[-1]:
                raise
    raise AssertionError


def drill_of(name: str, kills: int, episodes: int, seed: int, scratch: Path, limit: float) -> Report:
    """A drill with so many episodes per kill."""
    scratch.mkdir()
    start, rng = time.monotonic(), np.random.default_rng([seed, *name.encode()])
    kind, processes = DRILLS[name], Processes(scratch, limit)
    steps = ("--steps", str(kills * episodes * kind.length), "--episode-steps", str(kind.length))
    train = ("train", *kind.arguments, *steps, "--resume", "--out")
    processes.forget_costs()
    processes.finish(*train, scratch / "whole")
    rows = lines(scratch / "whole" / "episodes.jsonl")
    times = [row["time"]["seconds"] for row in rows]
    episode_seconds = float(np.median(np.diff(times)))
    processes.forget_costs()

    run, kill_phases, problems = scratch / "killed", Counter[str](), []
    for number in range(kills):
        resumes, before = rng.random() < 0.8 and any(run.glob("checkpoints/episode-*")), time.time()
        child = processes.start("resume", run) if resumes else processes.start(*train, run)
        ending = "kill" if number == 0 else rng.choice(
            ["full disk", "second process", "kill"], p=[FULL_DISK, TWO_PROCESSES, 1.0 - FULL_DISK - TWO_PROCESSES]
        )  # fmt: skip
        try:
            await_moment(
                processes, child, run, rng, episode_seconds, at_start=number == 0, has_row=ending == "full disk"
            )
            if ending == "full disk":
                problems += fill_disk(processes, child, run, rng)
            elif ending == "second process":
                problems += try_second(processes, child, run)
        finally:
            was_alive = processes.kill(child)
        if ending != "full disk" and not was_alive:
            raise RunOver(f"the run was over before kill {number + 1} of {kills}: give it more episodes")
        kill_phases[phase_of_kill(run, before) if ending == "kill" else str(ending)] += 1
    # a process that was killed before it wrote config.json has left no run to resume
    processes.finish(*(("resume", run) if (run / "config.json").exists() else (*train, run)))
    problems += differences(rows, run, kills, processes.costs())
    files = contents(run)
    output = processes.finish("resume", run)
    if f"{len(rows)} episodes" not in output or contents(run) != files:
        problems.append(f"a complete run was changed by resume: {output}")
    return Report(kill_phases, len(rows), len(lines(run / "interrupted.jsonl")), time.monotonic() - start, problems)


def fill_disk(processes: Processes, child: subprocess.Popen[str], run: Path, rng: np.random.Generator) -> list[str]:
    """Let no file grow beyond a few bytes more than one of the run has now, and wait until the process has stopped."""
    sizes = [path.stat().st_size for path in sorted(run.rglob("*")) if path.is_file()]
    most = int(rng.choice([0, *sizes])) + int(rng.integers(0, 200))
    with suppress(ProcessLookupError):
        resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    processes.wait_for_end(child, "it noticed that the disk is full")
    errors = processes.errors.read_text()
    if child.returncode == 0:
        raise RunOver(f"the run was over before a file of it had more than {most} bytes")
    if child.returncode != 3 or "Traceback" in errors:
        return [f"on a full disk ({most} bytes a file) a process left with {child.returncode}: {errors[-2000:]}"]
    return []


def try_second(processes: Processes, child: subprocess.Popen[str], run: Path) -> list[str]:
    """Let a second process try to resume the run, while the first one stands still."""
    child.send_signal(signal.SIGSTOP)
    stopped = os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    if stopped is None or stopped.si_code != os.CLD_STOPPED:
        raise RunOver("the run was over before a second process came")
    files = contents(run)
    second = processes.start("resume", run, errors="second.txt")
    try:
        processes.wait_for_end(second, "the second process was refused")
    finally:
        processes.kill(second)
    if second.returncode != 4 or contents(run) != files:
        errors = (processes.scratch / "second.txt").read_text()
        return [f"a second process in the folder left with {second.returncode}: {errors[-2000:]}"]
    return []


def await_moment(
    processes: Processes,
    child: subprocess.Popen[str],
    run: Path,
    rng: np.random.Generator,
    episode_seconds: float,
    at_start: bool,
    has_row: bool,
) -> None:
    """Wait until the moment of the kill: between locking the folder and a few episodes later."""
    processes.wait(child, lambda: lock_holder(run) == child.pid, "it locked the folder")
    event = "start" if at_start else rng.choice(["start", "row", "row", "step", "checkpoint"][has_row:])
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
        before = {*run.glob("checkpoints/*")}  # the temporary file of the next one may be there for an instant only
        processes.wait(child, lambda: {*run.glob("checkpoints/*")} - before, "it had started a checkpoint")
        time.sleep(rng.choice([0.0, 0.002]) * rng.random())


def main() -> None:
    """Run all drills and print a table."""
    from record import save

    rows: list[dict[str, Any]] = []
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=200, help="in all runs together")
    parser.add_argument("--seed", type=int, default=0, help="decides the moments")
    options = parser.parse_args()
    print(f"{'run':15}  {'kills':>5}  {'rows':>5}  {'interrupted':>11}  {'seconds':>7}  result; phases of the kills")
    with ThreadPoolExecutor(DRILLS_AT_ONCE) as pool:
        names = [name for name, kills in shares(options.kills).items() if kills]
        reports = pool.map(lambda name: reported(name, shares(options.kills)[name], options.seed), names)
        all_phases, any_problem = Counter[str](), False
        for name, report in zip(names, reports, strict=True):
            all_phases += report.kill_phases
            any_problem = any_problem or bool(report.problems)
            show(name, report)
            counts = {
                "kills": report.kill_phases.total(),
                "rows": report.rows,
                "interrupted episodes": report.interrupted,
            }
            result = "; ".join(report.problems) or "identical"
            rows.append({"run": name, **counts, "seconds": round(report.seconds), "result": result})
    print(f"{all_phases.total()} kills: {in_words(all_phases)}")
    save("drill", rows)
    sys.exit(any_problem)


def reported(name: str, kills: int, seed: int) -> Report:
    """The report of a drill, also of one that could not be carried out."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            return drill(name, kills, seed, Path(scratch), limit=SECONDS_PER_KILL * (kills + 2))
        except Failed as error:
            return Report(Counter(), 0, 0, 0.0, [str(error)])


def show(name: str, report: Report) -> None:
    """Print a row of the table."""
    result = "; ".join(report.problems) or "identical"
    print(
        f"{name:15}  {report.kill_phases.total():5}  {report.rows:5}  {report.interrupted:11}  {report.seconds:7.0f}  "
        f"{result}; {in_words(report.kill_phases)}",
        flush=True,
    )


def in_words(phases: Counter[str]) -> str:
    """The phases, the most frequent one first."""
    return ", ".join(f"{count} {place}" for place, count in phases.most_common())


if __name__ == "__main__":
    main()
