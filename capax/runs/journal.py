"""The journal of the episodes that are being played: what they earned and paid counts even if they never end.

`running.jsonl` is written step by step: the cost of a step as soon as it is known, then all of the step. It is deleted when
its episode is safe in a checkpoint, or all of its episodes where several are played side by side. What is left of it after
a stop is added to `interrupted.jsonl`, and the episode is played again from its start.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from capax.core.costs import total_cost, violates
from capax.core.types import Episode, Spec
from capax.runs.folder import Folder, read_plain

RUNNING, INTERRUPTED = "running.jsonl", "interrupted.jsonl"
StepRecord = tuple[float, float, int | None, int | None]
"""Reward, cost, and checksums of the action and of the observation after it. A step that failed once its cost was known has
the reward 0 and no checksums."""


class InterruptedEpisode(NamedTuple):
    """An episode as far as it went."""

    number: int
    before: int
    """Environment steps before it."""
    phase: str
    first: int
    """Checksum of the first observation."""
    steps: list[StepRecord]
    after: int
    """Lines of `interrupted.jsonl` when it began; there are more once it is counted."""
    exact: tuple[float, float] | None = None
    """The exact return and cost of a policy in a finite world, whose steps are 0 or 1 at random."""


def checksum(array: Any) -> int:
    """CRC-32 of an array's bytes."""
    return zlib.crc32(np.ascontiguousarray(array).tobytes())


class Journal:
    """Writes the episodes that are being played, and compares them with the interrupted ones that they repeat."""

    def __init__(self, run: Folder, repeats: Iterable[InterruptedEpisode] = ()) -> None:
        self._run, self._after = run, _lines(run)
        self._file: BinaryIO | None = None
        self._repeats = {episode.number: episode for episode in repeats}
        self._steps: dict[int, int] = {}
        """Steps of each episode that is being played."""
        self._first = 0
        """The lowest number of these episodes."""
        self.differs: str | None = None
        """Where a repeated episode went another way although its actions were the same; None if none did."""

    def begin(self, number: int, before: int, phase: str, obs: Any, **more: Any) -> None:
        """An episode has been reset: the only one, or the next of some that are played side by side."""
        if not self._steps:
            self.close()
            self._repeats = {other: trace for other, trace in self._repeats.items() if other >= number}
            self._file, self._first = self._run.create(RUNNING), number
        first = checksum(obs)
        if number in self._repeats and self._repeats[number].first != first:
            self._differ(number, "its first observation")
        self._steps[number] = 0
        head = {"episode": number, "steps": before, "phase": phase, "first": first, "after": self._after, **more}
        self._write(json.dumps(head))

    def cost(self, number: int, cost: float) -> None:
        """A step was taken that cost this; nothing else about it is known yet."""
        self._write_step((None, cost, None, None), number)

    def step(self, number: int, reward: float, cost: float, action: Any, obs: Any) -> None:
        """All that is known of a step. A killed process loses none that was written."""
        record, at = (reward, cost, checksum(action), checksum(obs)), self._steps[number]
        self._write_step(record, number)
        trace = self._repeats.get(number)
        if trace is not None and at < len(trace.steps):
            before = trace.steps[at]
            if record[2] != before[2]:
                del self._repeats[number]  # other actions, so other outcomes
            elif record != before:
                self._differ(number, f"step {at + 1}")
        self._steps[number] = at + 1

    def whole(self, number: int, before: int, phase: str, episode: Episode) -> None:
        """An episode that was simulated as a whole."""
        self.begin(number, before, phase, episode.obs[0], exact=(episode.earned, episode.paid))
        steps = zip(episode.reward.tolist(), episode.cost.tolist(), strict=True)
        self._write("\n".join(json.dumps((*step, 0, 0)) for step in steps))

    def end(self, number: int) -> None:
        """The episode is safe in a checkpoint."""
        self._steps.pop(number, None)
        if not self._steps:
            self.close()
            self._run.remove(RUNNING)

    def close(self) -> None:
        """Close the file and leave it as it is."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write_step(self, record: Sequence[float | None], number: int) -> None:
        ahead = number - self._first
        self._write(json.dumps((*record, ahead) if ahead else record))

    def _write(self, line: str) -> None:
        assert self._file is not None
        self._run.guard()
        self._run.check_own(self._file.fileno(), RUNNING)
        rest = memoryview(f"{line}\n".encode())
        while len(rest):  # without a buffer: what could not be written is not tried again when the file is closed
            rest = rest[self._file.write(rest) :]

    def _differ(self, number: int, where: str) -> None:
        self.differs = where
        del self._repeats[number]


def left_over(run: Path) -> list[InterruptedEpisode]:
    """The interrupted episodes in the journal; none if it is missing or cannot be read."""
    traces: list[InterruptedEpisode] = []
    try:
        for line in read_plain(run / RUNNING).splitlines():
            if line.startswith(b"{"):
                head = json.loads(line)
                number, before, first, after = (int(head[name]) for name in ("episode", "steps", "first", "after"))
                exact = (float(head["exact"][0]), float(head["exact"][1])) if "exact" in head else None
                traces.append(InterruptedEpisode(number, before, str(head["phase"]), first, [], after, exact))
            elif (step := _step(line)) is not None and 0 <= step[1] < len(traces):
                record, steps = step[0], traces[step[1]].steps
                if steps and steps[-1][3] is None and record[3] is not None:
                    steps.pop()  # now all of this step is known
                steps.append(record)
    except (OSError, ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError):
        return traces
    return traces


def _step(line: bytes) -> tuple[StepRecord, int] | None:
    """A line of the journal and the place of its episode; None for a line that was not written to its end."""
    try:
        reward, cost, action, obs, *ahead = json.loads(line)
        step: StepRecord = 0.0, float(cost), None, None
        if obs is not None:
            step = float(reward), float(cost), int(action), int(obs)
        return None if math.isnan(step[1]) or not math.isfinite(step[0]) else (step, int(*ahead))
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None


def interrupted_row(trace: InterruptedEpisode, limit: float, spec: Spec, reason: str) -> dict[str, Any]:
    """A row of `interrupted.jsonl`. An infinite cost is a violation; JSON has no number for it, so it is null there."""
    reward, cost = (np.array([step[i] for step in trace.steps]) for i in (0, 1))
    weights = spec.discounts(len(reward))
    sums = {
        "return": float(reward.sum()),
        "discounted_return": float(weights @ reward),
        "cost": total_cost(cost),
        "discounted_cost": total_cost(cost, weights),
    }
    paid = spec.paid(cost)
    if trace.exact is not None:
        earned, paid = trace.exact
        sums = {"return": earned, "discounted_return": earned, "cost": paid, "discounted_cost": paid}
    return {
        "episode": trace.number,
        "steps": trace.before,
        "phase": trace.phase,
        "length": spec.repeat * len(reward),
        **{name: value if math.isfinite(value) else None for name, value in sums.items()},
        "limit": None if math.isinf(limit) else limit,
        "violation": violates(paid, limit, exact=trace.exact is not None),
        "reason": reason,
    }


def count(run: Folder, traces: Sequence[InterruptedEpisode], limit: float, spec: Spec, reason: str) -> None:
    """Add interrupted episodes to `interrupted.jsonl`, once."""
    rows = [interrupted_row(trace, limit, spec, reason) for trace in traces if trace.steps]
    there = max(0, _lines(run) - traces[0].after)  # a process killed while writing has written some
    if rows[there:]:
        run.append(INTERRUPTED, "".join(json.dumps(row) + "\n" for row in rows[there:]))


def _lines(run: Folder) -> int:
    """Lines of `interrupted.jsonl` that were written to their end."""
    return 0 if run.stat(INTERRUPTED) is None else run.read(INTERRUPTED).count(b"\n")
