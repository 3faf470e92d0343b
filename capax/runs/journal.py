"""What was earned and paid in an episode that never came to its end?

`running.jsonl` is written step by step and goes when the episode is safe in a checkpoint. What is left of it after a stop
happened all the same: it is added to `interrupted.jsonl`, and the episode is played again from its start.
"""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from capax.runs import folder
from capax.types import Episode, Spec

RUNNING, INTERRUPTED = "running.jsonl", "interrupted.jsonl"
Seen = tuple[float, float, int, int]
"""Reward, cost, and checksums of the action and of the observation after it."""


class Trace(NamedTuple):
    """An episode as far as it went."""

    number: int
    before: int
    """Environment steps before it."""
    phase: str
    first: int
    """Checksum of the first observation."""
    seen: list[Seen]
    after: int
    """Lines of `interrupted.jsonl` when it began; there are more once it is counted."""


def checksum(array: Any) -> int:
    return zlib.crc32(np.ascontiguousarray(array).tobytes())


class Journal:
    """Writes the episode that is being played, and compares it with the one that it repeats, if it does."""

    def __init__(self, run: Path, repeats: Trace | None = None) -> None:
        self._path, self._after = run / RUNNING, _lines(run / INTERRUPTED)
        self._file: TextIO | None = None
        self._repeats = repeats
        self._step = 0
        self.differs: str | None = None
        """Where a repeated episode went another way although its actions were the same."""

    def begin(self, number: int, before: int, phase: str, obs: Any) -> None:
        """An episode has been reset."""
        self.close()
        first = checksum(obs)
        if self._repeats is not None:
            if self._repeats.number != number:
                self._repeats = None
            elif self._repeats.first != first:
                self._differ("its first observation")
        self._file, self._step = self._path.open("w", buffering=1), 0
        head = {"episode": number, "steps": before, "phase": phase, "first": first, "after": self._after}
        self._file.write(json.dumps(head) + "\n")

    def step(self, reward: float, cost: float, action: Any, obs: Any) -> None:
        """A step was taken; a killed process loses none that it has seen."""
        assert self._file is not None
        seen = (reward, cost, checksum(action), checksum(obs))
        self._file.write(json.dumps(seen) + "\n")
        if self._repeats is not None and self._step < len(self._repeats.seen):
            before = self._repeats.seen[self._step]
            if seen[2] != before[2]:
                self._repeats = None  # other actions, so other things may come of them
            elif seen != before:
                self._differ(f"step {self._step + 1}")
        self._step += 1

    def whole(self, number: int, before: int, phase: str, episode: Episode) -> None:
        """An episode that was drawn in one piece."""
        self.begin(number, before, phase, episode.obs[0])
        assert self._file is not None
        steps = zip(episode.reward.tolist(), episode.cost.tolist(), strict=True)
        self._file.write("".join(json.dumps((*step, 0, 0)) + "\n" for step in steps))

    def end(self) -> None:
        """The episode is safe elsewhere."""
        self.close()
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Leave the file as it is."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _differ(self, where: str) -> None:
        self.differs, self._repeats = where, None


def left_over(run: Path) -> Trace | None:
    """What an interrupted episode has left; None if there is nothing, or nothing to be read."""
    try:
        lines = (run / RUNNING).read_bytes().splitlines()
        head, *rest = [json.loads(line) for line in lines[:1]] + [whole for line in lines[1:] if (whole := _step(line))]
        number, before, first, after = (int(head[name]) for name in ("episode", "steps", "first", "after"))
        return Trace(number, before, str(head["phase"]), first, rest, after)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _step(line: bytes) -> Any:
    """A line of the journal; None for one that was not written to its end."""
    try:
        said = json.loads(line)
        reward, cost, action, obs = said
        step = float(reward), float(cost), int(action), int(obs)
        return step if np.isfinite(step).all() else None
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None


def interrupted_row(trace: Trace, limit: float, spec: Spec, reason: str) -> dict[str, Any]:
    """A row of `interrupted.jsonl`."""
    reward, cost = (np.array([step[i] for step in trace.seen]) for i in (0, 1))
    weights = spec.discounts(len(reward))
    return {
        "episode": trace.number,
        "steps": trace.before,
        "phase": trace.phase,
        "length": spec.repeat * len(reward),
        "return": float(reward.sum()),
        "discounted_return": float(weights @ reward),
        "cost": float(cost.sum()),
        "discounted_cost": float(weights @ cost),
        "limit": None if math.isinf(limit) else limit,
        "violation": bool(spec.weights(len(cost)) @ cost > limit),
        "reason": reason,
    }


def count(run: Path, limit: float, spec: Spec, reason: str) -> Trace | None:
    """Add what an interrupted episode has left to `interrupted.jsonl`, once, and return it."""
    trace = left_over(run)
    if trace is not None and trace.seen and _lines(run / INTERRUPTED) <= trace.after:
        folder.append(run / INTERRUPTED, json.dumps(interrupted_row(trace, limit, spec, reason)) + "\n")
    return trace


def _lines(path: Path) -> int:
    """Lines that were written to their end."""
    return path.read_bytes().count(b"\n") if path.exists() else 0
