"""What a group of runs came to: the last episodes, and violations with random and planned ones apart."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

from benchmarks.figures import stored, words
from benchmarks.figures.stored import LAST, StoredRun
from capax.paper.rows import PaperRow
from capax.reporting import intervals
from capax.reporting.intervals import Interval


class Entry(NamedTuple):
    """A line of a table of runs."""

    label: str
    group: str
    steps: int | None = None
    """Read the runs off after so many steps; None: at their end."""
    paper: PaperRow | None = None

    @property
    def runs(self) -> tuple[StoredRun, ...]:
        runs = stored.group(self.group)
        return runs if self.steps is None else tuple(run.until(self.steps) for run in runs)

    @property
    def facts(self) -> dict[str, Any]:
        """What `results/runs.json` says of the group."""
        return stored.read_json("runs.json")[self.group]


def last(run: StoredRun, key: str, count: int = LAST) -> float:
    """The mean of a key over the last episodes of a run."""
    return fmean(row[key] for row in run.rows[-count:])


def of_group(runs: Sequence[StoredRun], key: str) -> str:
    """The last episodes' mean over seeds with its interval; of one seed there is none."""
    values = [last(run, key) for run in runs]
    if len(values) == 1:
        return words.number(values[0], words.places(values[0]))
    return words.interval(intervals.of_seeds(values))


def planned_violations(run: StoredRun) -> int:
    """Violating planned episodes."""
    return sum(bool(row["violation"]) for row in run.planned)


def planned_rate(runs: Sequence[StoredRun]) -> Interval:
    """The violating share of the planned episodes."""
    return intervals.of_rate([planned_violations(run) for run in runs], [len(run.planned) for run in runs])


def planned_words(runs: Sequence[StoredRun]) -> str:
    """Violating planned episodes of each seed, of how many."""
    counts = sorted({len(run.planned) for run in runs})
    of = words.number(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{words.listed(map(planned_violations, runs))} of {of}"


def random_words(runs: Sequence[StoredRun]) -> str:
    """Violating random episodes of all seeds, of how many."""
    rows = [row for run in runs for row in run.random]
    return f"{sum(bool(row['violation']) for row in rows)} of {len(rows)}" if rows else "–"


def from_episode(run: StoredRun, first: int, key: str) -> list[float]:
    """A key of the episodes from a number on (the first is 0)."""
    return [row[key] for row in run.rows if row["episode"] >= first]


def middle(run: StoredRun, first: int, key: str) -> tuple[float, float]:
    """Mean and median of a key from an episode on."""
    values = from_episode(run, first, key)
    return fmean(values), median(values)
