"""Writes a run to its folder, in an order that survives a stop at any moment.

While an episode is played its steps go to the journal. When it has ended, a checkpoint with its row is written, then the row
itself, then the journal is deleted: whichever of these a stop prevents, `reconcile` knows what is missing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from capax.core.checks import error_text
from capax.core.errors import InputError
from capax.core.loop import Outcome, Progress
from capax.core.types import Episode
from capax.envs.task import Step
from capax.runs import journal
from capax.runs.checkpoint import Checkpoints, Saved
from capax.runs.config import RunConfig
from capax.runs.folder import Folder, to_jsonl
from capax.runs.journal import InterruptedEpisode, Journal
from capax.runs.loggers import LoggerGroup
from capax.runs.progress import ProgressLine
from capax.runs.run import EPISODES, INTERRUPTED, Run
from capax.runtime import lanes
from capax.runtime.processes import contained, end_in_child
from capax.training.monitor import Monitor
from capax.training.rows import Violations, make_row

OnEpisode = Callable[[dict[str, Any]], Any]


class Recorder:
    """Records a run as it happens."""

    def __init__(
        self,
        run: Run,
        folder: Folder,
        config: RunConfig,
        *,
        start: float,
        at: Progress,
        row: Mapping[str, Any] | None,
        checkpoints: Checkpoints,
        line: ProgressLine,
        loggers: LoggerGroup,
        repeats: Iterable[InterruptedEpisode] = (),
        group: int = 1,
        on_episode: OnEpisode | None = None,
    ) -> None:
        """`start` steps are random. `row` is the last one that was written. Episodes are played in groups of `group`."""
        self._folder, self._config, self._start = folder, config, start
        self._at, self._checkpoints, self._line, self._loggers = at, checkpoints, line, loggers
        self._counts = Violations() if row is None else Violations.of_row(row)
        self._seconds_before = 0.0 if row is None else float(row["time"]["seconds"])
        self._steps = at.steps
        self._journal, self._monitor, self._on_episode = (
            Journal(folder, repeats),
            Monitor(config, run.episodes),
            on_episode,
        )
        self._ends: deque[tuple[float, int]] = deque(maxlen=group)
        """Time at which the last group of episodes ended, and the steps until then."""
        self._process = os.getpid()
        self.stopped = False
        """`on_episode` has returned False."""

    def reset(self, obs: Any) -> None:
        """An episode begins."""
        self.reset_ahead(0, obs)

    def step(self, action: Any, step: Step) -> None:
        """A step was taken."""
        self.step_ahead(0, action, step)

    def cost(self, cost: float) -> None:
        """A step was taken that cost this, whatever comes of the rest of it."""
        self.cost_ahead(0, cost)

    def reset_ahead(self, ahead: int, obs: Any) -> None:
        """An episode begins, `ahead` places after the next one in number."""
        end_in_child(self._process)  # user code has forked, and the child has come here
        self._journal.begin(self._at.number + ahead, self._at.steps, self._phase, obs)

    def cost_ahead(self, ahead: int, cost: float) -> None:
        """A step that cost this was taken in that episode."""
        end_in_child(self._process)
        self._journal.cost(self._at.number + ahead, cost)

    def step_ahead(self, ahead: int, action: Any, step: Step) -> None:
        """A step was taken in that episode."""
        end_in_child(self._process)
        self._journal.step(self._at.number + ahead, step.reward, step.cost, action, step.obs)
        self._steps += len(step.frames)
        self._line.step(self._steps)
        lanes.stop_if_requested()

    def whole_episode(self, episode: Episode) -> None:
        """An episode was simulated as a whole."""
        self._journal.whole(self._at.number, self._at.steps, self._phase, episode)

    @property
    def at(self) -> Progress:
        """Progress of the run after the last episode that was recorded."""
        return self._at

    def close(self) -> None:
        """Close the journal, and leave it as it is."""
        end_in_child(self._process, sys.exception())
        self._journal.close()

    @property
    def _phase(self) -> str:
        return "random" if self._at.steps < self._start else "plan"

    def record(self, outcomes: Iterable[Outcome]) -> None:
        """Record every episode as it ends, until there are no more or `on_episode` returns False."""
        self._ends.append((time.monotonic(), self._at.steps))
        began = self._ends[0][0] - self._seconds_before
        for outcome in outcomes:
            end_in_child(self._process)
            now = time.monotonic()
            violation = self._config.violated_by(outcome.episode.paid)
            self._counts = self._counts.after(outcome.episode, violation)
            clock = {
                "seconds": round(now - began, 3),
                "steps_per_second": steps_per_second(outcome.steps - self._ends[0][1], now - self._ends[0][0]),
            }
            row = make_row(outcome, self._config, violation, self._counts) | {"time": clock}
            self._checkpoints.save(outcome.progress, row, self._config)
            self._folder.append(EPISODES, json.dumps(row, allow_nan=False) + "\n")
            self._journal.end(outcome.number)
            self._ends.append((now, outcome.steps))
            self._at = outcome.progress
            self._loggers.log(row)
            self._show(row)
            if self._on_episode is not None and is_false(contained(self._on_episode, dict(row))):
                self.stopped = True
                return

    def _show(self, row: Mapping[str, Any]) -> None:
        self._line.episode(row)
        for warning in self._monitor.warnings(row):
            self._line.warn(warning)
        if self._journal.differs is not None:
            self._line.warn(
                f"an episode that was played again from the same seed differs in {self._journal.differs}, after the same "
                "actions: reset(seed=) does not determine this environment, so a resumed run is not the one without a stop."
            )


def reconcile(run: Run, folder: Folder, saved: Saved) -> None:
    """Make `episodes.jsonl` end where the checkpoint does, with the row that it holds.

    Rows behind it happened, so they go to `interrupted.jsonl`.
    """
    rows, number, path = run.episodes, saved.progress.number, run.folder / EPISODES
    if len(rows) == number - 1 and saved.row is not None:
        rows = [*rows, saved.row]
    if len(rows) < number or [row.get("episode") for row in rows[:number]] != list(range(number)):
        raise InputError(
            f"{path} has {len(rows)} rows where the checkpoint has {number} episodes: restore the file, or retrain with "
            "--force."
        )
    if number and rows[number - 1] != saved.row:
        raise InputError(
            f"{path} and the checkpoint differ in the row of episode {number - 1}: restore the file, or retrain with --force."
        )
    lost, there = rows[number:], run.interrupted
    moved = [{**row, "reason": "its checkpoint is lost"} for row in lost]
    try:
        text, more = to_jsonl(rows[:number]), to_jsonl(row for row in moved if row not in there)
        for row in rows[:number][-1:]:  # the next row counts on from there
            Violations.of_row(row)
            float(row["time"]["seconds"])
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InputError(
            f"{path} has a row that capax did not write ({error_text(error)}): restore the file, or retrain with --force."
        ) from None
    if lost:
        folder.append(INTERRUPTED, more)
    if folder.stat(EPISODES) is None or folder.read(EPISODES) != text.encode():
        folder.write(EPISODES, text)


def is_false(answer: Any) -> bool:
    """Whether a function of the user's returned False, of Python or numpy. None and 0 do not count as False."""
    return isinstance(answer, bool | np.bool_) and not answer


def steps_per_second(steps: int, seconds: float) -> float:
    """A rate with two digits."""
    return round(steps / seconds, 2) if seconds > 0.0 else 0.0


def count_interrupted(
    run: Run, folder: Folder, checkpoints: Checkpoints, config: RunConfig, reason: str
) -> list[InterruptedEpisode]:
    """Add the journal's episodes that no checkpoint holds to `interrupted.jsonl`, and return them.

    If there are none, the stop only prevented the deletion of the journal, which is deleted now.
    """
    safe = max(len(run.episodes), checkpoints.number)
    episodes = [episode for episode in journal.left_over(run.folder) if episode.number >= safe]
    if episodes:
        journal.count(folder, episodes, config.limit, config.spec(), reason)
    else:
        folder.remove(journal.RUNNING)
    return episodes
