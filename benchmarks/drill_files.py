"""The files of a run that `drill.py` kills: how far it has come, what a kill hit, and what was lost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def lock_holder(run: Path) -> int | None:
    """The process that has locked the folder, by its lock file."""
    try:
        return int(json.loads((run / ".lock").read_text())["process"])
    except (OSError, ValueError, KeyError):
        return None


def row_count(run: Path) -> int:
    """Rows so far."""
    path = run / "episodes.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file; none if it does not exist."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def phase_of_kill(run: Path, since: float) -> str:
    """The phase in which a process that began at `since` was killed, by the files that it has left."""
    if any(run.glob("checkpoints/.episode-*")):
        return "checkpoint"
    states = sorted(run.glob("checkpoints/episode-*.safetensors"))
    if not states:
        return "start"
    if int(states[-1].stem.removeprefix("episode-")) != row_count(run):
        return "row"
    journal = run / "running.jsonl"
    if journal.exists() and journal.stat().st_mtime >= since:
        return "episode" if journal.read_bytes().count(b"\n") > 1 else "reset"
    return "learning" if states[-1].stat().st_mtime >= since else "start"


def contents(run: Path) -> dict[Path, bytes]:
    """All files but the lock, which names the last process."""
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}


def timeless(rows: list[dict[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows without what depends on the clock."""
    return [{name: value for name, value in row.items() if name != "time"} for row in rows]


def differences(whole: list[dict[str, Any]], run: Path, kills: int, costs: np.ndarray) -> list[str]:
    """How a killed run differs from one that was never stopped, and what it has lost, in words."""
    rows, interrupted = lines(run / "episodes.jsonl"), lines(run / "interrupted.jsonl")
    problems = []
    if timeless(rows) != timeless(whole):
        pairs = zip(timeless(rows), timeless(whole), strict=False)
        first = next((n for n, (one, other) in enumerate(pairs) if one != other), min(len(rows), len(whole)))
        problems.append(f"the rows differ from row {first} on ({len(rows)} rows, {len(whole)} without a kill)")
    expected = {".lock", "config.json", "episodes.jsonl", "interrupted.jsonl", "buffer.log", "buffer.parity"}
    expected |= {f"episode-{number:06d}.safetensors" for number in (len(rows) - 1, len(rows))}
    left = sorted(path.name for path in contents(run) if path.name not in expected and ".tfevents" not in path.name)
    if left:
        problems.append(f"files were left over: {', '.join(left)}")
    if len(interrupted) > kills:
        problems.append(f"{len(interrupted)} episodes were interrupted by {kills} kills")
    for row in interrupted:
        number, before = row["episode"], row["steps"]
        # episodes that are played side by side begin after the same number of steps
        if not 0 <= number < len(whole) or before not in (0, *(row["steps"] for row in whole[:number])):
            problems.append(f"episode {number} after {before} steps was interrupted, but there is none")
        elif not 1 <= row["length"] <= whole[number]["length"]:
            problems.append(f"episode {number} was interrupted after {row['length']} steps")
        if row["reason"] not in ("killed", "the disk failed"):
            problems.append(f"episode {number} was interrupted because of something else: {row['reason']}")
    if len(costs):
        counted = rows[-1]["steps"] + sum(row["length"] for row in interrupted)
        paid = sum(row["cost"] for row in (*rows, *interrupted))
        missing = len(costs) - counted
        if not 0 <= missing <= kills:
            problems.append(f"{len(costs)} steps were taken and {counted} counted, with {kills} kills")
        elif not -1e-6 <= costs.sum() - paid <= missing * costs.max() + 1e-6:
            problems.append(f"{costs.sum()} was paid and {paid} counted, with {missing} steps missing")
    return problems
