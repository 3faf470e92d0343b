"""Tables of the short runs before and after the corrections from images (docs/notes/published.md)."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from benchmarks.figures import words
from benchmarks.figures.measures import Entry
from benchmarks.figures.registry import figure
from benchmarks.figures.run_tables import LABEL, PLANNED, RANDOM, RATE, SEEDS, Column, key, lines
from benchmarks.figures.stored import LAST, StoredRun
from capax.paper.rows import ROWS, PaperRow
from capax.reporting import intervals


def by_seed(value: Callable[[StoredRun], float], digits: int) -> Callable[[Entry], str]:
    """A column with a number of each seed."""
    return lambda entry: words.listed(map(value, entry.runs), digits)


def mean_of(name: str, phase: str) -> Callable[[Entry], str]:
    """A column with the mean of a key over all planned or all random episodes, and its interval over seeds; one has none."""

    def cell(entry: Entry) -> str:
        means = [fmean(row[name] for row in getattr(run, phase)) for run in entry.runs]
        return words.number(means[0], 1) if len(means) == 1 else words.interval(intervals.of_seeds(means), 1)

    return cell


def last_ten(name: str) -> Callable[[Entry], str]:
    """A column with the mean of a key over the last ten episodes, and its interval over seeds."""
    return lambda entry: words.interval(
        intervals.of_seeds([fmean(row[name] for row in run.rows[-LAST:]) for run in entry.runs]), 0
    )


@figure
def kappa_correction_table() -> str:
    """`capax/Dot-v0` with adam: what random episodes did to κ."""
    entries = [
        Entry("before (c7d42b6)", "corrections/kappa-before"),
        Entry("random episodes leave κ alone", "corrections/kappa-alone"),
        Entry("now: and there is a bootstrap", "corrections/kappa-after"),
    ]
    columns: tuple[Column, ...] = (
        LABEL,
        SEEDS,
        ("cost of the random episodes, by seed", by_seed(lambda run: sum(row["cost"] for row in run.random), 0)),
        ("κ of the first plan, by seed", by_seed(lambda run: run.planned[0]["kappa"], 3)),
        ("κ at the end, by seed", by_seed(lambda run: run.rows[-1]["kappa_next"], 3)),
        ("return, last ten", key("return")),
        ("planned uncertainty, last ten", last_ten("planned_uncertainty")),
        ("cost of a planned episode", mean_of("cost", "planned")),
        PLANNED,
        RATE,
        RANDOM,
    )
    return lines(entries, columns)


def paper_random() -> PaperRow:
    """The paper's random row on Car-Racing."""
    return ROWS["carracing-random"]


@figure
def random_range_table() -> str:
    """Random episodes on Car-Racing: the range of gas and brake, and how long actions are held."""
    entries = [
        Entry("before (c7d42b6): from [−1, 1], held for eight steps on average", "corrections/gas-before"),
        Entry("from the game's range, held for eight steps on average", "corrections/gas-after"),
        Entry("from the game's range, a new one in every step (`published`)", "corrections/gas-published"),
    ]
    columns: tuple[Column, ...] = (
        LABEL,
        SEEDS,
        ("skids of an episode", mean_of("cost", "random")),
        ("by seed", by_seed(lambda run: fmean(row["cost"] for row in run.random), 1)),
        ("discounted return", mean_of("discounted_return", "random")),
        ("undiscounted return", mean_of("return", "random")),
        RANDOM,
        ("paper: cost", lambda entry: f"{paper_random().paid:g}"),
        ("paper: discounted return", lambda entry: f"{paper_random().earned:g}"),
    )
    return lines(entries, columns)


@figure
def random_skids(variant: str) -> str:
    """Mean skids of a random episode over all seeds."""
    runs = Entry("", f"corrections/gas-{variant}").runs
    return words.number(fmean(fmean(row["cost"] for row in run.random) for run in runs))
