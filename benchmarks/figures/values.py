"""Single numbers within sentences, from the rows of committed runs.

GROUP is a folder without its seed, as in `halfcheetah/conformal`; KEY is a key of the rows.
"""

from __future__ import annotations

from statistics import fmean

from benchmarks.figures import stored, words
from benchmarks.figures.measures import last, middle, of_group, planned_rate, planned_violations
from benchmarks.figures.registry import figure
from capax.paper.rows import ROWS


@figure
def last_ten(group: str, key: str) -> str:
    """The mean of the last ten episodes, over seeds, without its interval."""
    value = fmean(last(run, key) for run in stored.group(group))
    return words.number(value, words.places(value))


@figure
def last_ten_interval(group: str, key: str) -> str:
    """The same with its interval."""
    return of_group(stored.group(group), key)


@figure
def violations(group: str) -> str:
    """Violating planned episodes of each seed."""
    return words.listed(map(planned_violations, stored.group(group)))


@figure
def planned(group: str) -> str:
    """Planned episodes of all seeds together."""
    return words.number(sum(len(run.planned) for run in stored.group(group)))


@figure
def violating(group: str) -> str:
    """Violating planned episodes of all seeds together."""
    return words.number(sum(map(planned_violations, stored.group(group))))


@figure
def violating_share(group: str) -> str:
    """The violating share of the planned episodes, with its interval."""
    return words.percent(planned_rate(stored.group(group)))


@figure
def violating_last(group: str, count: str) -> str:
    """Violating episodes among the last so many of each seed."""
    return words.listed(sum(bool(row["violation"]) for row in run.rows[-int(count) :]) for run in stored.group(group))


@figure
def largest_excess(group: str) -> str:
    """The most by which a violating planned episode was above the limit."""
    key = "discounted_cost" if stored.group(group)[0].config["discounted"] else "cost"
    excess = [row[key] - row["limit"] for run in stored.group(group) for row in run.planned if row["violation"]]
    return f"{max(excess):.6f}"


@figure
def mean_from(group: str, episode: str, key: str) -> str:
    """The mean of a key from an episode on (one seed)."""
    (run,) = stored.group(group)
    value = middle(run, int(episode), key)[0]
    return words.number(value, words.places(value))


@figure
def median_from(group: str, episode: str, key: str) -> str:
    """The median of a key from an episode on (one seed)."""
    (run,) = stored.group(group)
    return words.number(middle(run, int(episode), key)[1], 1)


@figure
def last_many(group: str, count: str, key: str) -> str:
    """The mean of a key over the last so many episodes of each seed."""
    return words.listed(last(run, key, int(count)) for run in stored.group(group))


@figure
def mean_uncertainty(group: str) -> str:
    """The range over planned episodes of m·u, averaged over an episode's steps (images), without the extreme tenths."""
    runs = stored.group(group)
    values = sorted(
        row["planned_uncertainty"] * run.config["repeat"] / row["length"] for run in runs for row in run.planned
    )
    edge = len(values) // 10
    return f"{words.number(values[edge])} to {words.number(values[-1 - edge])}"


@figure
def minutes(group: str) -> str:
    """Minutes until the last row, of the slowest seed."""
    return words.number(max(run.rows[-1]["time"]["seconds"] for run in stored.group(group)) / 60.0, 1)


@figure
def near_limit(group: str, distance: str) -> str:
    """Planned episodes of all seeds that end at most this far below the limit."""
    runs = stored.group(group)
    key = "discounted_cost" if runs[0].config["discounted"] else "cost"
    rows = [row for run in runs for row in run.planned]
    near = sum(0.0 <= row["limit"] - row[key] <= float(distance) for row in rows)
    return f"{near} of {len(rows)}"


@figure
def paper(name: str, column: str) -> str:
    """A number of the paper, as it is printed there."""
    value = getattr(ROWS[name], column)
    return f"{value:,.1f}".replace("-", "−")


@figure
def more_than(group: str, other: str, key: str) -> str:
    """By how much the last ten episodes of a group exceed those of another one, in percent."""
    ours, theirs = (fmean(last(run, key) for run in stored.group(name)) for name in (group, other))
    return f"{words.number(100.0 * (ours / theirs - 1.0))} %"
