"""A training session: the loop from where the run stands, with everything recorded, and errors in one sentence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.random as jr
import numpy as np

from capax.core.checks import one_line, short_repr
from capax.core.contracts import Agent, Collector
from capax.core.errors import DiskFailed, EnvironmentFailed, FolderInUse, InputError, TrainingFailed
from capax.core.loop import Outcome, Progress
from capax.core.loop import run as loop
from capax.core.types import Episode, Key
from capax.core.version import __version__
from capax.envs.finite_task import FiniteTask
from capax.envs.task import GymTask
from capax.runs.checkpoint import Checkpoints
from capax.runs.config import RunConfig
from capax.runs.folder import Folder
from capax.runs.journal import InterruptedEpisode
from capax.runs.loggers import LoggerGroup, Loggers, open_loggers
from capax.runs.progress import ProgressLine
from capax.runs.run import CONFIG, Run
from capax.runtime import cpu_devices, switches
from capax.runtime.lanes import lane_label
from capax.tabular.sampler import WorldCollector
from capax.training.build import Built, UserObjects, build
from capax.training.collect import EpisodeCollector
from capax.training.collect_group import GroupCollector
from capax.training.folders import disk_error, on_disk
from capax.training.recorder import OnEpisode, Recorder, count_interrupted
from capax.training.request import capacity_of, check_chunk


class Hooks(NamedTuple):
    """Objects of the user's that follow a run."""

    loggers: list[Any]
    on_episode: OnEpisode | None = None


def hooks_of(loggers: Loggers, on_episode: Any) -> Hooks:
    """The user's loggers and function, checked."""
    if on_episode is not None and not callable(on_episode):
        raise InputError(f"on_episode is {short_repr(on_episode)}: give a function of an episode's row.")
    return Hooks(open_loggers(loggers), on_episode)


class Session(NamedTuple):
    """Everything that one session of a run works with."""

    run: Run
    folder: Folder
    """The run's, open and locked."""
    config: RunConfig
    task: GymTask | FiniteTask
    make_task: Callable[[], Any]
    """Makes another task like this one."""
    own: UserObjects
    hooks: Hooks
    checkpoints: Checkpoints


class Stage(NamedTuple):
    """A part of a session with one configuration."""

    config: RunConfig
    built: Built
    steps: int
    """Environment steps in all when it ends."""
    until_length_known: bool = False
    """It ends with the first episode that the environment truncates."""


@dataclass(frozen=True)
class RecordingCollector(Collector):
    """Samples a finite world's episodes in compiled code, and has each of them written to the journal."""

    sampler: WorldCollector
    on_episode: Callable[[Episode], None]

    def collect(self, agent: Agent[Any], state: Any, key: Key, max_steps: int | None = None) -> Episode:
        episode = self.sampler.collect(agent, state, key, max_steps)
        self.on_episode(episode)
        return episode


def run_loop(
    session: Session,
    built: Built,
    at: Progress,
    row: Mapping[str, Any] | None = None,
    warnings: Iterable[str] = (),
    repeats: Iterable[InterruptedEpisode] = (),
) -> None:
    """Run the loop from `at`, and record what comes. `row` is the last one that was written."""
    run, config, task = session.run, session.config, session.task
    line = ProgressLine(
        task=config.task,
        steps=config.steps,
        limit=config.limit,
        discounted=config.discounted,
        done=at.steps,
        preset=config.preset,
        lane=lane_label(),
    )
    with line:
        for warning in (*warnings, *_changes_of_machine(config)):
            line.warn(warning)
        if isinstance(task, GymTask) and not resets_repeat(task):
            line.warn(
                f"{task.name} begins differently after two resets with the same seed: its reset(seed=) does not determine "
                "it, so neither the same seed nor a resumed run repeats anything."
            )
        loggers = LoggerGroup(session.hooks.loggers, line.warn)
        loggers.start(run.folder, config.as_dict(), at.steps)
        try:
            for stage in _stages(session, built):
                recorder = _record_stage(
                    session._replace(config=stage.config), stage, at, row, line, loggers, tuple(repeats)
                )
                at, repeats = recorder.at, ()
                rows = run.episodes
                row = rows[-1] if rows else None
                if recorder.stopped:
                    line.warn(f"on_episode returned False after episode {at.number - 1}: the run can be resumed.")
                    return
        finally:
            loggers.close()


def _stages(session: Session, built: Built) -> Iterator[Stage]:
    """One stage, or two if the random episodes must first show how long an episode is."""
    run, config, task = session.run, session.config, session.task
    if config.episode_steps is not None or isinstance(task, FiniteTask) or math.isinf(built.start):
        yield Stage(config, built, config.steps)
        return
    yield Stage(config, built, int(min(built.start, config.steps)), until_length_known=True)
    length, rows = run.config.episode_steps, run.episodes  # the first truncated episode has written its length there
    if rows and rows[-1]["steps"] >= config.steps:
        return
    if length is None:
        raise InputError(
            f"no random episode of {task.name} was truncated, so nothing says how long an episode is: give --episode-steps "
            "(episode_steps=) and --resume (resume=True)."
        )
    config = run.config.with_steps(config.steps)
    task.episode_steps = length
    yield Stage(config, build(config, None, session.own), config.steps)


def _record_stage(
    session: Session,
    stage: Stage,
    at: Progress,
    row: Mapping[str, Any] | None,
    line: ProgressLine,
    loggers: LoggerGroup,
    repeats: tuple[InterruptedEpisode, ...],
) -> Recorder:
    """Record the loop until the stage ends."""
    run, config, built = session.run, session.config, stage.built
    agent = built.agent
    group = agent.episodes_at_once
    recorder = Recorder(
        run, session.folder, config, start=built.start, at=at, row=row, checkpoints=session.checkpoints, line=line,
        loggers=loggers, repeats=repeats, group=group,
        on_episode=session.hooks.on_episode,
    )  # fmt: skip
    reason = "stopped"
    try:
        with ExitStack() as resources:
            collector = _collector(session, built, recorder, group, resources)
            key = jr.key(config.seed)
            outcomes = loop(
                agent, collector, start=built.start, steps=stage.steps, key=key, starter=built.starter, at=at
            )
            recorder.record(_until_length_known(session, outcomes) if stage.until_length_known else outcomes)
    except (EnvironmentFailed, TrainingFailed) as error:
        reason = str(error)
        raise type(error)(f"{reason.rstrip('.')} {_how_to_continue(run, config, recorder.at.number)}") from error
    except OSError as error:
        reason = "the disk failed"
        advice = _how_to_continue(run, config, recorder.at.number)
        raise DiskFailed(f"{disk_error(run, error)} {advice}") from error
    finally:
        with suppress(OSError):  # what stopped the run matters more
            recorder.close()
        with suppress(OSError, InputError, FolderInUse):
            count_interrupted(run, session.folder, session.checkpoints, config, reason)
    return recorder


def _collector(session: Session, built: Built, recorder: Recorder, group: int, resources: ExitStack) -> Any:
    """The collector that plays the episodes of this task."""
    task, config = session.task, session.config
    if isinstance(task, FiniteTask):
        assert config.episode_steps is not None and config.restarts is not None
        sampler = WorldCollector.divided(task.world.cmdp, config.episode_steps, config.restarts)
        return RecordingCollector(sampler, recorder.whole_episode)
    if group == 1:
        return EpisodeCollector(task, built.spec, recorder.reset, recorder.step, recorder.cost)
    hooks = recorder.reset_ahead, recorder.step_ahead, recorder.cost_ahead
    return resources.enter_context(closing(GroupCollector(task, session.make_task, built.spec, group, *hooks)))


def _until_length_known(session: Session, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
    """Outcomes up to the first truncated episode, whose length is written to `config.json`."""
    for outcome in outcomes:
        if outcome.episode.truncated:
            length = len(outcome.episode.reward)
            settings = build(session.config, None, session.own).settings
            check_chunk(settings, length)
            capacity = capacity_of(settings, session.config.steps, length)
            with on_disk(session.run):
                config = session.config.with_length(length, capacity)
                session.folder.write(CONFIG, config.to_json())
            yield outcome
            return
        yield outcome


def _changes_of_machine(config: RunConfig) -> Iterator[str]:
    """Differences from the machine on which the run began."""
    if config.version != __version__:
        yield f"the run was begun with capax {config.version}, this is {__version__}: rows may differ."
    here = cpu_devices.device_kind()
    if config.device != here:
        yield f"the run was begun on {config.device}, this is {here}: rows may differ in their last digits."
    for name, before, now in switches.changes(config.switches):
        yield f"the run was begun with {name}={_shown(before)}, now it is {_shown(now)}: rows may differ."


def _shown(value: Any) -> str:
    """The value of a switch in a warning."""
    return "nothing" if value in (None, "") else one_line(str(value), 200)


def _how_to_continue(run: Run, config: RunConfig, number: int) -> str:
    """Advice: which episodes are safe, and the command that continues."""
    objects = "".join(f", {name}=..." for name in config.own_objects)
    command = f"capax.resume({str(run.folder)!r}{objects}) in Python" if objects else f"capax resume {run.folder}"
    return f"(in episode {number}; all before it is kept, and {command} continues from there)."


def resets_repeat(task: GymTask) -> bool:
    """Whether two resets with the same seed begin alike. No step is taken that would not be counted."""
    return bool(np.array_equal(task.reset(0), task.reset(0)))
