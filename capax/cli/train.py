"""`capax train`: a run from the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from capax.cli.options import (
    HELD,
    Count,
    Device,
    assignment,
    env_arguments,
    is_complete,
    leaving_run,
    parse_lanes,
    seconds_of,
    use_device,
)
from capax.core.errors import InputError
from capax.runs.run import CONFIG
from capax.runtime.signals import CLOSE_TIMEOUT_S, leaving
from capax.runtime.streams import forgiving_standard_output
from capax.runtime.terminal import say


@dataclass(frozen=True)
class Train:
    """Train an agent that keeps the cost of its episodes under a limit while it learns."""

    task: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TASK")]]
    """A Gymnasium id (`capax tasks` lists ours), or module:Id for one that a module of yours registers."""
    method: str = "cap"
    """cap: conservative and adaptive; ccem: the same with κ = 0; cem: no limit; random: random actions;
    ppo, ppo-lag, focops: without a model; calibrated: a margin in standard errors, for finite worlds;
    or one that you have registered."""
    kappa: str | None = None
    """How κ is chosen: conformal, adam, pi, or a number for a κ that stays; None: conformal (adam with
    --preset published, pi in a finite world)."""
    violation_rate: float | None = None
    """Share of the planned episodes that may exceed the limit (conformal); None: the task's own, or else 0.02."""
    cost_limit: float | None = None
    """Cost that an episode may have; None: the task's own."""
    discounted: tyro.conf.FlagCreatePairsOff[bool] = False
    """The limit is on the discounted cost; without this and the next, on what the task says, or else undiscounted."""
    undiscounted: tyro.conf.FlagCreatePairsOff[bool] = False
    """The limit is on the plain sum of an episode's costs."""
    cost: str | None = None
    """A cost function of yours, as MODULE:FUNCTION; it gets (obs, action, next_obs, info). None: info["cost"]."""
    allow_negative_costs: tyro.conf.FlagCreatePairsOff[bool] = False
    """Negative costs offset positive ones; without this, an environment with a negative cost is refused."""
    termination_cost: float | None = None
    """Cost of each step that an imagined termination leaves out; 0 where a termination is the goal.
    None: what the steps of the plan cost, so that ending an episode saves nothing."""
    env_kwargs: tuple[str, ...] = ()
    """Arguments of the environment's constructor, as NAME=VALUE (frame_skip=2 wind=true)."""
    steps: Count = 100_000
    """Environment steps (1e5 will do); the episode in which they end is played to its end."""
    episode_steps: Count | None = None
    """Steps after which an episode is cut off; None: the environment's own time limit."""
    seed: int = 0
    """Everything random follows from it."""
    preset: str | None = None
    """paper: the paper's sizes with capax's own conventions (budgets, scaled targets, a floor under u), for a GPU;
    published: the same sizes with the conventions of the authors' code (mean costs, raw targets, κ by adam);
    fast: paper with far fewer model evaluations, for two CPU cores;
    or one that you have registered. None: fast where JAX has no GPU, paper where it has one."""
    set: tuple[str, ...] = ()
    """Single settings to change, of the preset or of the rule for κ, as NAME=VALUE (population=200 gain=0.2);
    `capax settings` lists them."""
    initial_data: Path | None = None
    """An .npz of logged transitions (obs, action, reward, cost, next_obs) to begin with, instead of random steps."""
    logger: tuple[str, ...] | None = None
    """Loggers in addition to episodes.jsonl: tensorboard. None: tensorboard if tensorboardX is installed."""
    lanes: str | None = None
    """Several runs at once, each in its own folder within --out:
    a number of runs, with seeds from --seed on, or the values of an option, as in kappa=0.1,1,10."""
    device: Device | None = None
    """Where to compute; None: a GPU if JAX finds one."""
    close_timeout: float = CLOSE_TIMEOUT_S
    """Seconds that the environment has to close after Ctrl-C, SIGTERM or SIGHUP, such as a robot that parks."""
    out: Path | None = None
    """Folder of the run; None: runs/TASK-METHOD-SEED."""
    force: bool = False
    """Overwrite a run that exists."""
    resume: bool = False
    """Continue a run that exists; begin one if there is none."""

    def run(self) -> None:
        if self.force and self.resume:
            raise InputError("--force and --resume contradict each other: give one of them.")
        if self.undiscounted and self.discounted:
            raise InputError("--discounted and --undiscounted contradict each other: give one of them.")
        if str(self.out) == "":
            raise InputError("--out is empty: name a folder for the run, or omit --out.")
        seconds_of(self.close_timeout)
        use_device(self.device)
        # these take a while to import, and a misspelt option is refused before
        from capax.training.lane_runs import train_lanes
        from capax.training.request import Request
        from capax.training.train import train_request

        request = Request(
            env=self.task,
            steps=self.steps,
            out=self.out,
            method=self.method,
            kappa=self.kappa,
            violation_rate=self.violation_rate,
            cost_limit=self.cost_limit,
            discounted=self.discounted if self.discounted or self.undiscounted else None,
            cost=self.cost,
            allow_negative_costs=self.allow_negative_costs,
            termination_cost=self.termination_cost,
            initial_data=self.initial_data,
            episode_steps=self.episode_steps,
            seed=self.seed,
            preset=self.preset,
            settings=dict(assignment(text) for text in self.set),
            env_kwargs=env_arguments(self.env_kwargs),
            loggers=self.logger,
            force=self.force,
            resume=self.resume,
        )
        out = request.folder
        if self.lanes is not None:
            again = f"each lane is safe in {out} up to its last episode; continue with the same command and --resume"
            lanes = parse_lanes(self.lanes)
            with (
                leaving(lambda: again, close_timeout=seconds_of(self.close_timeout), killed=f"{HELD}; {again}"),
                forgiving_standard_output(),
            ):
                runs = train_lanes(train_request, request, lanes)
            for run in runs:
                say(run)
            return
        done = self.resume and (out / CONFIG).exists() and is_complete(out, self.steps)
        with leaving_run(out, self.close_timeout), forgiving_standard_output():
            finished = train_request(request)
        say(f"already complete: {finished}" if done else finished)
