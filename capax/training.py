"""`capax.train` and `capax.resume`: from an environment and a limit to a run folder, in one go or in several."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Required, TypedDict, Unpack, overload

import jax.random as jr
import numpy as np

from capax import __version__, cores
from capax.collect import EpisodeCollector
from capax.configuration import check_count, configure, loaded, path_of
from capax.envs.adapt import Cost, Task
from capax.errors import DiskFailed, EnvironmentFailed, InputError, TrainingFailed
from capax.initial import initial_episode
from capax.lanes import label
from capax.loop import Progress, begin
from capax.loop import run as loop
from capax.paper.gridworld import collector_of
from capax.parts import Drawn, Parts, opened, parts, starter_of
from capax.recording import Recorder, interrupted, reconcile
from capax.runs import folder, journal
from capax.runs.checkpoint import FREE, Checkpoints, Saved
from capax.runs.journal import Trace
from capax.runs.live import Live
from capax.runs.lock import locked
from capax.runs.run import CONFIG, EPISODES, INTERRUPTED, Run
from capax.several import Lanes, train_lanes
from capax.tabular.gridworld import World
from capax.types import Episode
from capax.vector import GroupCollector


class Options(TypedDict, total=False):
    """What `train` can be told, but for lanes."""

    steps: Required[int]
    out: Required[str | Path]
    method: str
    kappa: str | float | None
    violation_rate: float | None
    cost_limit: float | None
    discounted: bool | None
    cost: Cost | None
    initial_data: str | Path | Mapping[str, Any] | None
    initial_policy: Callable[[Any], Any] | None
    episode_steps: int | None
    seed: int
    preset: str
    settings: Mapping[str, Any] | None
    force: bool
    resume: bool


@overload
def train(env: str | Callable[[], Any], *, lanes: None = None, **options: Unpack[Options]) -> Run: ...


@overload
def train(env: str | Callable[[], Any], *, lanes: Lanes, **options: Unpack[Options]) -> list[Run]: ...


def train(
    env: str | Callable[[], Any],
    *,
    steps: int,
    out: str | Path,
    method: str = "cap",
    kappa: str | float | None = None,
    violation_rate: float | None = None,
    cost_limit: float | None = None,
    discounted: bool | None = None,
    cost: Cost | None = None,
    initial_data: str | Path | Mapping[str, Any] | None = None,
    initial_policy: Callable[[Any], Any] | None = None,
    episode_steps: int | None = None,
    seed: int = 0,
    preset: str = "paper",
    settings: Mapping[str, Any] | None = None,
    force: bool = False,
    resume: bool = False,
    lanes: Lanes | None = None,
) -> Run | list[Run]:
    """Train an agent that keeps the cost of its episodes under a limit while it learns, and return the run.

    `env` is a Gymnasium id, or a function that makes an environment; its cost arrives as `info["cost"]`, as the cost of
    a six-item step, or through `cost(obs, action, next_obs, info)`. `cost_limit` and `discounted` are the task's own
    where it is registered with them; otherwise the limit is on the undiscounted cost of an episode. An episode that has
    begun is played to its end, so the last one may pass `steps`. The run is a folder, `out`; with `resume`, a run that is
    there goes on instead of being refused. With `lanes`, several runs are trained at once, each in a folder of its own
    within `out`: as many as `lanes` says, with seeds from `seed` on, or one for each of its sets of options.
    """
    options = dict(locals())
    if lanes is not None:
        del options["env"], options["lanes"]
        return train_lanes(train, env, lanes, options)
    path = path_of(out)
    if not path.name:
        raise InputError(f"the run folder is {str(path)!r}: name a folder of its own.")
    again = partial(opened, env, cost, episode_steps)
    subject = again()
    try:
        config = configure(
            subject,
            made_by="id" if isinstance(env, str) else "function",
            task=env if isinstance(env, str) else None,
            steps=steps,
            method=method,
            kappa=kappa,
            violation_rate=violation_rate,
            cost_limit=cost_limit,
            discounted=discounted,
            own_cost=cost is not None,
            initial_data=initial_data,
            initial_policy=initial_policy is not None,
            episode_steps=episode_steps,
            seed=seed,
            preset=preset,
            settings=settings,
        )
        made = made_of(config, subject, initial_policy)
        initial = [] if initial_data is None else [initial_episode(initial_data, subject)]  # type: ignore[arg-type]
        run = Run(path)
        with locked(path):
            if resume and (path / CONFIG).exists():
                same_settings(run, config)
                return go_on(run, loaded(run) | {"steps": config["steps"]}, made, subject, again, initial)
            prepare(run, force)
            at, checkpoints = begin(made.agent, jr.key(config["seed"]), initial), Checkpoints(path)
            with on_disk(run):
                folder.write(path / CONFIG, folder.to_json(config))
                checkpoints.save(at, None, config)
            carry_out(run, config, made, subject, again, at, None, checkpoints)
    finally:
        if isinstance(subject, Task):
            subject.close()
    return run


def resume(
    run: str | Path | Run,
    *,
    steps: int | None = None,
    env: Callable[[], Any] | None = None,
    cost: Cost | None = None,
    initial_policy: Callable[[Any], Any] | None = None,
) -> Run:
    """Go on with a run from its newest whole checkpoint, until it has `steps` steps in all (None: as many as it was to have).

    `env`, `cost` and `initial_policy` are needed again where the run was made with functions. On a CPU its rows are those
    of a run that never stopped.
    """
    run = run if isinstance(run, Run) else Run(path_of(run))
    config = loaded(run)
    how = "capax.resume(run, {}) in Python goes on with it."
    if env is None and config["made_by"] == "function":
        raise InputError(f"{run.folder} was trained in an environment that a function made: {how.format('env=make')}")
    if cost is None and config["own_cost"]:
        raise InputError(f"{run.folder} was trained with a cost function: {how.format('cost=...')}")
    if steps is not None:
        config |= {"steps": check_count(steps, "steps")}
    again = partial(opened, env or run.task, cost, config["episode_steps"])
    subject = again()
    try:
        made = made_of(config, subject, initial_policy)
        with locked(run.folder):
            return go_on(run, config, made, subject, again)
    finally:
        if isinstance(subject, Task):
            subject.close()


def made_of(config: Mapping[str, Any], subject: Task | World, initial_policy: Any) -> Parts:
    """The parts of a run in this environment, which is seen to be the run's."""
    if isinstance(subject, World):
        if (config["states"], config["actions"]) != (subject.cmdp.S, subject.cmdp.A):
            raise InputError(f"the world has {subject.cmdp.S} states, the run {config['states']}: give the same one.")
        return parts(config, subject)
    same_sizes(subject, config)
    subject.episode_steps = config["episode_steps"]
    return parts(config, None, starter_of(subject, initial_policy))


def same_sizes(task: Task, config: Mapping[str, Any]) -> None:
    """Refuse an environment other than the one that was trained in."""
    if (
        task.obs_dim != config["obs_dim"]
        or list(task.image or ()) != (config["image"] or [])
        or task.low.tolist() != config["action_low"]
        or task.high.tolist() != config["action_high"]
    ):
        raise InputError(
            f"{task.name} has {task.image or task.obs_dim} observations and actions between {task.low.tolist()} and "
            f"{task.high.tolist()}, the run has {config['image'] or config['obs_dim']} and {config['action_low']} to "
            f"{config['action_high']}: "
            "give the environment that was trained in."
        )


def same_settings(run: Run, config: Mapping[str, Any]) -> None:
    """Refuse to go on with a run under other settings than it was begun with."""
    before, now = run.config, json.loads(json.dumps(config))
    changed = sorted(name for name in {*before, *now} - {*FREE} if before.get(name) != now.get(name))
    if changed:
        named = ", ".join(f"{name} {before.get(name)!r}" for name in changed)
        raise InputError(
            f"the run in {run.folder} was begun with other settings ({named}): give these again, or choose another --out."
        )


def prepare(run: Run, force: bool) -> None:
    """An empty run folder; one that holds an episode, or a part of one, is only emptied by force."""
    folder.plain(run.folder)
    began = run.folder / EPISODES
    nothing = began.is_file() and began.stat().st_size == 0 and not (run.folder / INTERRUPTED).exists()
    folder.prepare(run.folder, (CONFIG, EPISODES), force or (nothing and not journal.left_over(run.folder)))
    with on_disk(run):
        folder.sweep(run.folder, "capax", CONFIG, EPISODES)
        Checkpoints(run.folder).clear()
        for name in (EPISODES, INTERRUPTED, journal.RUNNING):
            (run.folder / name).unlink(missing_ok=True)
        for old in run.folder.glob("events.out.tfevents.*"):
            old.unlink()
        (run.folder / EPISODES).touch()


def go_on(
    run: Run,
    config: dict[str, Any],
    made: Parts,
    subject: Task | World,
    again: Callable[[], Any],
    initial: list[Episode] | None = None,
) -> Run:
    """From the newest whole checkpoint to the end; `initial` is what the run begins with, if it is at hand."""
    key, checkpoints = jr.key(config["seed"]), Checkpoints(run.folder)
    folder.plain(run.folder)
    with on_disk(run):
        like = getattr(made.agent, "like", made.agent.init)(key)
        folder.sweep(run.folder, "capax", CONFIG, EPISODES)
        saved, warnings = checkpoints.newest(config, like)
        if saved is None and run.episodes:
            raise InputError(f"{run.folder} has episodes but no checkpoint: restore one, or train anew with --force.")
        if saved is None:  # stopped before it began
            at = begin(made.agent, key, logged(run, config, subject) if initial is None else initial)
            checkpoints.save(at, None, config)
            saved = Saved(at, None, __version__)
        repeats = interrupted(run, made.limit, made.spec, "killed")
        reconcile(run, saved)
    at, rows = saved.progress, run.episodes
    if at.steps >= config["steps"]:
        return run
    if at.steps < made.start and config.get("initial_policy") and type(made.starter).__name__ != "Scripted":
        raise InputError(
            f"{run.folder} was stopped while its initial policy acted: capax.resume(run, initial_policy=...) in Python "
            "goes on with it."
        )
    if config != run.config:
        with on_disk(run):
            folder.write(run.folder / CONFIG, folder.to_json(config))
    if saved.version != __version__:
        warnings.append(f"the run was begun with capax {saved.version}, this is {__version__}: rows may differ.")
    here = cores.kind()
    if config["device"] != here:
        warnings.append(
            f"the run was begun on {config['device']}, this is {here}: rows may differ in their last digits."
        )
    carry_out(run, config, made, subject, again, at, rows[-1] if rows else None, checkpoints, warnings, repeats)
    return run


def logged(run: Run, config: Mapping[str, Any], subject: Task | World) -> list[Episode]:
    """The data that a run begins with, read again."""
    if not config["initial_data"] or isinstance(subject, World):
        return []
    if not isinstance(config["initial_data"], str):
        raise InputError(f"{run.folder} was stopped before it began, so nothing is lost: train anew with --force.")
    return [initial_episode(config["initial_data"], subject)]


def carry_out(
    run: Run,
    config: Mapping[str, Any],
    made: Parts,
    subject: Task | World,
    again: Callable[[], Any],
    at: Progress,
    row: Mapping[str, Any] | None,
    checkpoints: Checkpoints,
    warnings: list[str] | None = None,
    repeats: Iterable[Trace] = (),
) -> None:
    """Run the loop from where it stands, and keep what comes; `again` makes another environment like `subject`."""
    agent, starter, start, spec, limit = made
    together = getattr(agent, "together", 1)
    with (
        ExitStack() as left,
        Live(
            task=config["task"],
            steps=config["steps"],
            limit=limit,
            discounted=config["discounted"],
            done=at.steps,
            lane=label(),
        ) as live,
    ):
        for warning in warnings or []:
            live.warn(warning)
        recorder = Recorder(
            run.folder,
            config,
            limit=limit,
            spec=spec,
            start=start,
            at=at,
            row=row,
            checkpoints=checkpoints,
            live=live,
            repeats=repeats,
            together=together,
        )
        reason = "stopped"
        try:
            if isinstance(subject, World):
                collector: Any = Drawn(
                    collector_of(subject, config["episode_steps"], config["restarts"]), recorder.drawn
                )
            else:
                if undetermined(subject):
                    live.warn(
                        f"{subject.name} begins differently after two resets with the same seed: its reset(seed=) does not "
                        "determine it, so neither the same seed nor a resumed run repeats anything."
                    )
                if together == 1:
                    collector = EpisodeCollector(subject, spec, recorder.reset, recorder.step)
                else:
                    noted = recorder.reset_ahead, recorder.step_ahead
                    collector = left.enter_context(closing(GroupCollector(subject, again, spec, together, *noted)))
            key, steps = jr.key(config["seed"]), config["steps"]
            recorder.record(loop(agent, collector, start=start, steps=steps, key=key, starter=starter, at=at))
        except (EnvironmentFailed, TrainingFailed) as error:
            reason = str(error)
            raise type(error)(f"{reason.rstrip('.')} {kept(run, config, recorder.number)}") from error
        except OSError as error:
            reason = "the disk failed"
            raise DiskFailed(f"{told(run, error)} {kept(run, config, recorder.number)}") from error
        finally:
            recorder.close()
            with suppress(OSError, InputError):
                interrupted(run, limit, spec, reason)


def kept(run: Run, config: Mapping[str, Any], number: int) -> str:
    """What is safe, and how to go on."""
    return f"(in episode {number}; all before it is kept, and {how_to_resume(run, config)} goes on from there)."


def how_to_resume(run: Run, config: Mapping[str, Any]) -> str:
    """What to type."""
    plain = config.get("made_by") == "id" and not config.get("own_cost")
    return f"capax resume {run.folder}" if plain else f"capax.resume({str(run.folder)!r}, env=...) in Python"


def told(run: Run, error: OSError) -> str:
    """What a disk said."""
    return f"{error.filename or run.folder} could not be written: {error.strerror or error}"


class on_disk:
    """What goes wrong in a run folder, told in a sentence."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, OSError):
            raise DiskFailed(f"{told(self.run, error)}: mend that, then try again.") from error


def undetermined(task: Task) -> bool:
    """Whether two resets with the same seed begin differently. No step is taken that would not be counted."""
    return not np.array_equal(task.reset(0), task.reset(0))
