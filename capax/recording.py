"""What of a run is kept, and in which order, so that it can be stopped at any moment?

While an episode is played its steps go to the journal. When it has ended, a checkpoint with its row is written, then the
row itself, then the journal is dropped: whichever of these a stop prevents, `reconcile` knows what is missing.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from capax import lanes
from capax.envs.adapt import Step
from capax.errors import InputError
from capax.loop import Outcome, Progress
from capax.runs import folder, journal
from capax.runs.checkpoint import Checkpoints, Saved
from capax.runs.journal import Journal, Trace
from capax.runs.live import Live
from capax.runs.run import EPISODES, INTERRUPTED, Run
from capax.runs.tensorboard import Events
from capax.types import Episode, Spec


class Recorder:
    """Keeps what happens, as it happens."""

    def __init__(
        self,
        out: Path,
        config: Mapping[str, Any],
        *,
        limit: float,
        spec: Spec,
        start: float,
        at: Progress,
        row: Mapping[str, Any] | None,
        checkpoints: Checkpoints,
        live: Live,
        repeats: Iterable[Trace] = (),
        together: int = 1,
    ) -> None:
        """`limit` is what violations are counted by; `row` is the last one that was written, by whomever."""
        self._out, self._config, self._limit, self._spec, self._start = out, config, limit, spec, start
        self._at, self._checkpoints, self._live = at, checkpoints, live
        self._violations = 0 if row is None else int(row["violations"])
        self._before = 0.0 if row is None else float(row["time"]["seconds"])
        self._done = at.steps
        self._journal = Journal(out, repeats)
        self._marks: deque[tuple[float, int]] = deque(maxlen=together)
        """When as many episodes as are played together ended, and the steps until then."""

    def reset(self, obs: Any) -> None:
        """An episode begins."""
        self.reset_ahead(0, obs)

    def step(self, action: Any, step: Step) -> None:
        """A step was taken."""
        self.step_ahead(0, action, step)

    def reset_ahead(self, ahead: int, obs: Any) -> None:
        """The so many-th episode after the next one begins beside it."""
        self._journal.begin(self._at.number + ahead, self._at.steps, self._phase, obs)

    def step_ahead(self, ahead: int, action: Any, step: Step) -> None:
        """A step was taken in it."""
        lanes.check()
        self._journal.step(self._at.number + ahead, step.reward, step.cost, action, step.obs)
        self._done += len(step.frames)
        self._live.step(self._done)

    def drawn(self, episode: Episode) -> None:
        """An episode was drawn in one piece."""
        self._journal.whole(self._at.number, self._at.steps, self._phase, episode)

    @property
    def number(self) -> int:
        """Of the episode that is being played."""
        return self._at.number

    def close(self) -> None:
        """Leave everything as it is."""
        self._journal.close()

    @property
    def _phase(self) -> str:
        return "random" if self._at.steps < self._start else "plan"

    def record(self, outcomes: Iterable[Outcome]) -> None:
        """Keep every episode as it comes."""
        self._marks.append((time.monotonic(), self._at.steps))
        began = self._marks[0][0] - self._before
        events = Events(self._out)
        try:
            for outcome in outcomes:
                now = time.monotonic()
                violation = outcome.episode.paid > self._limit
                self._violations += violation
                clock = {
                    "seconds": round(now - began, 3),
                    "steps_per_second": rate(outcome.steps - self._marks[0][1], now - self._marks[0][0]),
                }
                row = make_row(outcome, self._limit, self._spec, violation, self._violations) | {"time": clock}
                self._checkpoints.save(outcome.progress, row, self._config)
                folder.append(self._out / EPISODES, json.dumps(row, allow_nan=False) + "\n")
                self._journal.end(outcome.number)
                events.scalars(outcome.steps, scalars(row), time.time())
                self._tell(row)
                self._marks.append((now, outcome.steps))
                self._at = outcome.progress
        finally:
            events.close()

    def _tell(self, row: Mapping[str, Any]) -> None:
        self._live.episode(row)
        if row.get("feasible") in (0.0, False):
            self._live.warn(nothing_feasible(planned_to=self._spec.limit))
        if row.get("bad_fits"):
            self._live.warn("a fit gave a model that is not finite: the last good parameters are used.")
        if row.get("plan_bad"):
            self._live.warn("a plan was not finite: the last good parameters, or the plan before it, were used.")
        if self._journal.differs is not None:
            self._live.warn(
                f"an episode that was played again from the same seed differs in {self._journal.differs}, after the same "
                "actions: reset(seed=) does not determine this environment, so a resumed run is not the one without a stop."
            )


def reconcile(run: Run, saved: Saved) -> None:
    """Make `episodes.jsonl` end where the checkpoint does; rows behind it happened, so they go to `interrupted.jsonl`."""
    rows, number, path = run.episodes, saved.progress.number, run.folder / EPISODES
    if len(rows) == number - 1 and saved.row is not None:
        rows = [*rows, saved.row]
    if len(rows) < number or [row.get("episode") for row in rows[:number]] != list(range(number)):
        raise InputError(
            f"{path} has {len(rows)} rows where the checkpoint has seen {number} episodes: restore the file, or train "
            "anew with --force."
        )
    lost = rows[number:]
    if lost:
        there = run.interrupted
        moved = [{**row, "reason": "its checkpoint is lost"} for row in lost]
        folder.append(run.folder / INTERRUPTED, folder.to_jsonl(row for row in moved if row not in there))
    text = folder.to_jsonl(rows[:number])
    if not path.exists() or path.read_bytes() != text.encode():
        folder.write(path, text)


def make_row(outcome: Outcome, limit: float, spec: Spec, violation: bool, violations: int) -> dict[str, Any]:
    """What `episodes.jsonl` says of an episode; all that depends on the clock is added under `time`."""
    episode, metrics = outcome.episode, dict(outcome.metrics)
    weights = spec.discounts(len(episode.reward))
    exact = {"return": episode.earned, "cost": episode.paid}
    exact |= {f"discounted_{name}": value for name, value in exact.items()}
    sums = {
        "return": float(episode.reward.sum()),
        "discounted_return": discounted_return(episode, spec),
        "cost": float(episode.cost.sum()),
        "discounted_cost": float(weights @ episode.cost),
    }
    row: dict[str, Any] = {
        "episode": outcome.number,
        "steps": outcome.steps,
        "phase": "random" if episode.random else "plan",
        **(sums if spec.episode_steps is not None else exact),
        "limit": None if math.isinf(limit) else limit,
        "violation": bool(violation),
        "violations": int(violations),
        "kappa": metrics.pop("kappa", None),
        "length": episode.taken,
        "terminated": bool(episode.terminated[-1]),
        "model_loss": metrics.pop("model_loss", None),
        "feasible": metrics.pop("plan_feasible", metrics.pop("feasible", None)),
    }
    dropped = {
        f"plan_{name}" for name in ("cost", "uncertainty", "first_cost", "first_uncertainty", "penalised", "limit")
    }
    dropped |= {"plan_bad"} if metrics.get("plan_bad") == 0.0 else set()
    row |= {name: value for name, value in metrics.items() if name not in dropped}
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in row.items()}


def discounted_return(episode: Episode, spec: Spec) -> float:
    """Σ γ^t r_t, frame by frame where actions are repeated."""
    rewards = episode.reward if episode.frames is None else episode.frames[np.isfinite(episode.frames)]
    return float(spec.gamma ** np.arange(len(rewards)) @ rewards)


def nothing_feasible(planned_to: float) -> str:
    """What to do when the model saw no way to keep the limit; said once, so it names no episode."""
    if math.isinf(planned_to):
        return "in a whole episode no plan was finite: the model has diverged, so lower learning_rate."
    return (
        f"in a whole episode no plan was within the limit of {planned_to:g}, so the least costly was taken; if that goes on, "
        "raise the cost limit or the violation rate, choose a smaller κ (--kappa), or begin with better data (initial_data)."
    )


def scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row, for TensorBoard."""
    return {
        name: float(value)
        for name, value in {**row, **row["time"]}.items()
        if isinstance(value, int | float) and name not in ("steps", "seconds")
    }


def rate(steps: int, seconds: float) -> float:
    return round(steps / seconds, 2) if seconds > 0.0 else 0.0


def interrupted(run: Run, limit: float, spec: Spec, reason: str) -> list[Trace]:
    """Count what stopped episodes have left, unless they are safe: then only the dropping of the journal was missed."""
    safe = max(len(run.episodes), Checkpoints(run.folder).number)
    traces = [trace for trace in journal.left_over(run.folder) if trace.number >= safe]
    if traces:
        journal.count(run.folder, traces, limit, spec, reason)
    else:
        (run.folder / journal.RUNNING).unlink(missing_ok=True)
    return traces
