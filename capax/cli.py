"""The commands that a user types; what they do is elsewhere.

Each command is a frozen dataclass with `run`; its fields are the options, and their docstrings the help.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from capax import __version__
from capax.errors import STOPS, InputError
from capax.leaving import Told, leaving
from capax.paper.command import Gridworld
from capax.paper.partial import WORLDS
from capax.runs import folder
from capax.runs.run import CONFIG, Run


@dataclass(frozen=True)
class Train:
    """Train an agent that keeps the cost of its episodes under a limit while it learns."""

    task: tyro.conf.Positional[str]
    """A Gymnasium id (`capax tasks` lists ours), or module:Id for one that a module of yours registers."""
    method: Literal["cap", "ccem", "cem", "random", "ppo", "ppo-lag", "focops", "calibrated"] = "cap"
    """cap: conservative and adaptive; ccem: the same with κ = 0; cem: no limit; random: random actions; ppo, ppo-lag,
    focops: without a model; calibrated: a margin in standard errors, for finite worlds."""
    kappa: str | None = None
    """How κ is chosen: conformal, adam, pi, or a number for a κ that stays; None: conformal (pi in a finite world)."""
    violation_rate: float | None = None
    """Share of the planned episodes that may exceed the limit (conformal); None: the task's own, or else 0.02."""
    cost_limit: float | None = None
    """Cost that an episode may have; None: the task's own."""
    discounted: tyro.conf.FlagCreatePairsOff[bool] = False
    """The limit is on the discounted cost; without this and the next, on what the task says, or else undiscounted."""
    undiscounted: tyro.conf.FlagCreatePairsOff[bool] = False
    """The limit is on the plain sum of an episode's costs."""
    steps: int = 100_000
    """Environment steps; the episode in which they end is played to its end."""
    episode_steps: int | None = None
    """Steps after which an episode is cut off; None: the environment's own time limit."""
    seed: int = 0
    """Everything random follows from it."""
    preset: Literal["paper", "fast"] = "paper"
    """paper: the paper's sizes, for a GPU; fast: far fewer model evaluations, for two CPU cores."""
    set: tuple[str, ...] = ()
    """Single settings of the preset to change, as NAME=VALUE (population=200 horizon=15)."""
    initial_data: Path | None = None
    """An .npz of logged transitions (obs, action, reward, cost, next_obs) to begin with, instead of random steps."""
    lanes: str | None = None
    """Several runs, each in a folder of its own within --out, side by side on a GPU: a number of them, with seeds from
    --seed on, or the values of an option, as in kappa=0.1,1,10."""
    device: Literal["cpu", "gpu"] | None = None
    """Where to compute; None: a GPU if JAX finds one."""
    out: Path | None = None
    """Folder of the run; None: runs/TASK-METHOD-SEED."""
    force: bool = False
    """Overwrite a run that is there."""
    resume: bool = False
    """Go on with a run that is there; begin one if there is none."""

    def run(self) -> None:
        if self.force and self.resume:
            raise InputError("--force and --resume contradict each other: give one of them.")
        use_device(self.device)
        sys.path.append(os.getcwd())  # module:Id finds a module of the current folder
        from capax.training import train  # JAX takes a second to import, and errors of spelling should not

        if self.undiscounted and self.discounted:
            raise InputError("--discounted and --undiscounted contradict each other: give one of them.")
        plain = re.sub(r"[^A-Za-z0-9.]+", "-", self.task.removeprefix("capax/"))
        out = self.out if self.out is not None else Path("runs") / f"{plain}-{self.method}-{self.seed}"
        if str(self.out) == "":
            raise InputError("--out is empty: name a folder for the run, or leave --out away.")
        if self.lanes is not None:
            again = f"each lane is safe in {out} up to its last episode; go on with the same command and --resume"
            with leaving(lambda: again):
                for run in self.train(partial(train, lanes=lanes_of(self.lanes)), out):
                    print(run)
            return
        done = self.resume and (out / CONFIG).exists() and complete(out, self.steps)
        with leaving(lambda: how_to_go_on(out)):
            run = self.train(train, out)
        print(f"already complete: {run}" if done else run)

    def train(self, train: Callable[..., Any], out: Path) -> Any:
        return train(
            self.task,
            steps=self.steps,
            out=out,
            method=self.method,
            kappa=self.kappa,
            violation_rate=self.violation_rate,
            cost_limit=self.cost_limit,
            discounted=self.discounted if self.discounted or self.undiscounted else None,
            initial_data=self.initial_data,
            episode_steps=self.episode_steps,
            seed=self.seed,
            preset=self.preset,
            settings=dict(assignment(text) for text in self.set),
            force=self.force,
            resume=self.resume,
        )


@dataclass(frozen=True)
class Resume:
    """Go on with a run that was stopped, from the end of its last episode."""

    folder: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]]
    """A folder that capax train has written."""
    steps: int | None = None
    """Environment steps in all, those that are done included; None: as many as the run was to have."""
    device: Literal["cpu", "gpu"] | None = None
    """Where to compute; None: a GPU if JAX finds one."""

    def run(self) -> None:
        use_device(self.device)
        sys.path.append(os.getcwd())
        if (self.folder / WORLDS).exists() and not (self.folder / CONFIG).exists():
            raise InputError(
                f"{self.folder} holds an experiment of capax gridworld: give that command again, with --resume."
            )
        from capax.training import resume

        with leaving(lambda: how_to_go_on(self.folder)):
            done = complete(self.folder, self.steps)
            run = resume(self.folder, steps=self.steps)
        print(f"already complete: {run}" if done else run)


def complete(out: Path, steps: int | None) -> bool:
    """Whether a run has all the steps that it is to have."""
    run = Run(out)
    rows, wanted = run.episodes, run.config.get("steps") if steps is None else steps
    return bool(rows) and isinstance(wanted, int) and rows[-1].get("steps", 0) >= wanted


def how_to_go_on(out: Path) -> str:
    """What to say to somebody who stopped a run."""
    try:
        done = len(Run(out).episodes)
        return f"{done} episode{'s' * (done != 1)} safe in {out}; go on with: capax resume {out}"
    except InputError:
        return "nothing was begun."


@dataclass(frozen=True)
class Evaluate:
    """Play fresh episodes with the policy of a run."""

    folder: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]]
    """A folder that capax train has written."""
    episodes: int = 10
    """Episodes to play."""
    seed: int = 0
    """Decides which ones; they are others than those of a training with the same seed."""
    video: bool = False
    """Write a film of the first episode, RUN/video.mp4."""
    json: bool = False
    """Print JSON, and nothing else, on standard output."""
    device: Literal["cpu", "gpu"] | None = None
    """Where to compute; None: a GPU if JAX finds one."""

    def run(self) -> None:
        use_device(self.device)
        sys.path.append(os.getcwd())
        from capax.evaluation import evaluate

        cost = "discounted_cost" if Run(self.folder).config["discounted"] else "cost"

        def tell(row: dict[str, Any]) -> None:
            if not self.json:
                shown = f"return {row['return']:.2f}  {cost.replace('_', ' ')} {row[cost]:.2f}"
                print(f"episode {row['episode']}  {shown}{'  violation' if row['violation'] else ''}", flush=True)

        film = self.folder / "video.mp4" if self.video else None
        result = evaluate(self.folder, episodes=self.episodes, seed=self.seed, film=film, on_episode=tell)
        if self.json:
            sys.stdout.write(folder.to_json(result.as_dict()))
            return
        limit = "no limit" if result.limit is None else f"limit {result.limit:g}"
        paid = result.mean_discounted_cost if result.discounted else result.mean_cost
        print(
            f"mean of {self.episodes}: return {result.mean_return:.2f}, {cost.replace('_', ' ')} {paid:.2f} ({limit}), "
            f"{result.violations} violations"
        )
        if film is not None:
            print(f"Written to {film}")


@dataclass(frozen=True)
class Tasks:
    """List the registered tasks with their limits and conventions."""

    json: bool = False
    """Print JSON, and nothing else, on standard output."""

    def run(self) -> None:
        from capax.tasks import tasks

        rows = tasks()
        if self.json:
            sys.stdout.write(folder.to_json([row._asdict() for row in rows]))
            return
        wide = max(len(row.id) for row in rows)
        print(f"{'task':{wide}}  {'limit':>8}  {'convention':12}  steps per episode")
        for row in rows:
            convention = "discounted" if row.discounted else "undiscounted"
            print(f"{row.id:{wide}}  {row.limit:8g}  {convention:12}  {row.episode_steps or 'no end'}")


@dataclass(frozen=True)
class Doctor:
    """Say what this machine can do, and what to do about what is missing."""

    json: bool = False
    """Print JSON, and nothing else, on standard output."""

    def run(self) -> None:
        from capax import doctor

        findings = doctor.examine(Path.cwd())
        sys.stdout.write(folder.to_json(doctor.as_json(findings)) if self.json else doctor.page(findings, 100) + "\n")


@dataclass(frozen=True)
class Bench:
    """Measure how fast this machine plans, fits and steps, in under two minutes."""

    json: bool = False
    """Print JSON, and nothing else, on standard output."""
    device: Literal["cpu", "gpu"] | None = None
    """Where to compute; None: a GPU if JAX finds one."""

    def run(self) -> None:
        use_device(self.device)
        import jax

        from capax import bench

        def tell(text: str) -> None:
            if not self.json:
                print(text, file=sys.stderr, flush=True)

        found = bench.measure(bench.sizes_for(jax.default_backend()), tell)
        sys.stdout.write(folder.to_json(bench.as_json(*found)) if self.json else bench.page(*found) + "\n")


COMMANDS: dict[str, Callable[..., Any]] = {
    "gridworld": Gridworld,
    "train": Train,
    "resume": Resume,
    "evaluate": Evaluate,
    "tasks": Tasks,
    "doctor": Doctor,
    "bench": Bench,
}


def lanes_of(text: str) -> Any:
    """A number of lanes, or an option that differs between them."""
    name, given, values = text.partition("=")
    if given and not all(values.split(",")):
        raise InputError(f"--lanes is {text}: give a value between all commas, as in kappa=0.1,1,10.")
    if given:
        return [{name.replace("-", "_"): assignment(f"{name}={value}")[1]} for value in values.split(",")]
    try:
        return int(text)
    except ValueError:
        raise InputError(f"--lanes is {text}: give a number, or values as in kappa=0.1,1,10.") from None


def assignment(text: str) -> tuple[str, Any]:
    """NAME=VALUE, the value as JSON has it."""
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise InputError(f"--set {text} is no setting: write NAME=VALUE, as in population=200.")
    try:
        return name.replace("-", "_"), json.loads(value.lower() if value in ("True", "False") else value)
    except ValueError:
        return name.replace("-", "_"), value


def use_device(device: str | None) -> None:
    """Have JAX compute there; said before anything is computed."""
    if device is None:
        return
    import jax

    import capax.cores  # noqa: F401  before JAX looks at the machine

    jax.config.update("jax_platforms", "cuda" if device == "gpu" else "cpu")
    try:
        jax.devices()
    except (RuntimeError, AssertionError):  # by JAX's version
        raise InputError(
            "JAX finds no GPU: install capax[gpu] on a machine with one, or leave --device away."
        ) from None


def terminated(number: int, frame: Any) -> None:
    """SIGTERM outside of a run."""
    raise Told(number, "nothing was begun that is lost.")


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point `capax`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Greek letters shows ? for κ
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments == ["--version"]:
        print(f"capax {__version__}")
        return
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, terminated)
    try:
        command: Any = tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="capax", args=arguments)
        command.run()
        sys.stdout.flush()
    except STOPS as error:
        print("; ".join([f"capax: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        sys.exit(error.exit_code)
    except Told as told:
        print(f"capax: {told}; {told.advice}", file=sys.stderr, flush=True)
        os._exit(told.exit_code)  # threads that still compile would crash an orderly exit
    except BrokenPipeError:  # whoever read the output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        print(f"capax: {error.filename or 'the output'} could not be written ({error.strerror}).", file=sys.stderr)
        sys.exit(3)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("capax: interrupted.", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
