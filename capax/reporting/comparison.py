"""`capax compare`: groups of runs side by side, over seeds with intervals, for a terminal, a page, a sheet or a paper."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from capax.core.errors import InputError
from capax.reporting import intervals
from capax.reporting.groups import Group, grouped
from capax.reporting.intervals import Interval
from capax.reporting.runs import check_rows, mixed_note
from capax.runs.run import RECENT, Run
from capax.runtime.terminal import CleanConsole, line, printable

HEADINGS = (
    "task",
    "method",
    "seeds",
    f"return, last {RECENT}",
    "mean ± sd",
    f"cost, last {RECENT}",
    "limit",
    "violating planned episodes",
    "violating random episodes",
)
PLAIN_WIDTH = 180
"""Columns where the output is not a terminal."""
NOTE = (
    "Brackets are 95 % intervals over seeds; from four seeds on, the number before them is the inter-quartile mean. That of a "
    "share is at least as wide as if all episodes were independent, which is optimistic for one seed."
)
LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "κ": r"$\kappa$", "±": r"$\pm$", "−": "$-$", "ε": r"$\varepsilon$",
}  # fmt: skip


class Line(NamedTuple):
    """What a group of runs came to."""

    task: str
    label: str
    seeds: tuple[int, ...]
    earned: Interval
    """Mean return of the last episodes: the inter-quartile mean over seeds (of up to three, the mean) with its interval."""
    mean: float
    sd: float | None
    """Over seeds; None for one."""
    paid: Interval
    """The same of the cost, in the task's convention."""
    limit: float | None
    planned: Interval
    """Violating share of the planned episodes."""
    planned_violations: int
    planned_episodes: int
    random_violations: int
    random_episodes: int


def compare(runs: Sequence[Run]) -> list[Line]:
    """A line for each group of runs that differ in their seed alone."""
    for run in runs:
        check_rows(run)
        if not run.episodes:
            raise InputError(f"{run.folder} has no episode yet: wait for its first one, or omit it.")
    return [_line(group) for group in grouped(runs)]


def _line(group: Group) -> Line:
    config = group.runs[0].config
    rows = [run.episodes for run in group.runs]
    planned = [[bool(row["violation"]) for row in run if row["phase"] != "random"] for run in rows]
    random = [bool(row["violation"]) for run in rows for row in run if row["phase"] == "random"]
    earned, paid = (
        [float(np.mean([row[name] for row in run[-RECENT:]])) for run in rows] for name in ("return", config.cost_name)
    )
    hits, counts = [sum(run) for run in planned], [len(run) for run in planned]
    return Line(
        group.task,
        group.label,
        tuple(run.config.seed for run in group.runs),
        intervals.of_seeds(earned),
        float(np.mean(earned)),
        float(np.std(earned, ddof=1)) if len(earned) > 1 else None,
        intervals.of_seeds(paid),
        config.cost_limit,
        _rate(hits, counts),
        sum(hits),
        sum(counts),
        sum(random),
        len(random),
    )


def _rate(hits: Sequence[int], counts: Sequence[int]) -> Interval:
    """The violating share; nothing is known before the first planned episode."""
    played = [(hit, count) for hit, count in zip(hits, counts, strict=True) if count]
    if not played:
        return Interval(0.0, 0.0, 1.0)
    return intervals.of_rate(*map(list, zip(*played, strict=True)))


def as_json(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """The lines for programs."""
    return [
        {name: value._asdict() if isinstance(value, Interval) else value for name, value in item._asdict().items()}
        for item in lines
    ]


def cells(item: Line) -> tuple[str, ...]:
    """A line as texts, in the order of HEADINGS."""
    seeds = ", ".join(map(str, item.seeds))
    share = tuple(f"{100.0 * x:.1f}" for x in item.planned)
    return (
        printable(item.task),
        printable(item.label),
        f"{len(item.seeds)} ({seeds})" if len(item.seeds) > 1 else f"one ({seeds})",
        _spread(item.earned, len(item.seeds)),
        f"{item.mean:.4g}" + (f" ± {item.sd:.2g}" if item.sd is not None else ""),
        _spread(item.paid, len(item.seeds)),
        "none" if item.limit is None else f"{item.limit:g}",
        f"{item.planned_violations} of {item.planned_episodes}: {share[0]} % [{share[1]}, {share[2]}]",
        f"{item.random_violations} of {item.random_episodes}",
    )


def _spread(value: Interval, seeds: int) -> str:
    """A centre with its interval; one seed has none."""
    return f"{value.centre:.4g}" if seeds == 1 else f"{value.centre:.4g} [{value.low:.4g}, {value.high:.4g}]"


def print_comparison(lines: Sequence[Line], runs: Sequence[Run]) -> None:
    """Print the table, and how its numbers are made."""
    table = Table(*HEADINGS, box=None)
    for item in lines:
        table.add_row(*map(line, cells(item)))
    console = CleanConsole(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    console.print(table)
    console.print(line(NOTE), soft_wrap=True)
    if note := mixed_note([run.config for run in runs]):
        console.print(line(note), soft_wrap=True)


def markdown(lines: Sequence[Line]) -> str:
    """The table for a page."""

    def row(texts: Sequence[str]) -> str:
        return "| " + " | ".join(text.replace("\\", "\\\\").replace("|", "\\|") for text in texts) + " |\n"

    return row(HEADINGS) + "|" + " --- |" * len(HEADINGS) + "\n" + "".join(row(cells(item)) for item in lines)


def comma_separated(lines: Sequence[Line]) -> str:
    """The table for a sheet, each number in a cell of its own."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = (
        "task",
        "method",
        "seeds",
        "return",
        "return_low",
        "return_high",
        "mean",
        "sd",
        "cost",
        "cost_low",
        "cost_high",
    )
    shares = ("limit", "violating", "violating_low", "violating_high", "planned_violations", "planned_episodes")
    writer.writerow([*names, *shares, "random_violations", "random_episodes"])
    for item in lines:
        numbers = [*item.earned, item.mean, item.sd, *item.paid, item.limit, *item.planned, *item[-4:]]
        texts = [_no_formula(printable(item.task)), _no_formula(printable(item.label)), " ".join(map(str, item.seeds))]
        writer.writerow([*texts, *numbers])
    return text.getvalue()


def _no_formula(text: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def latex(lines: Sequence[Line]) -> str:
    """The table for a paper, for the package booktabs."""

    def row(texts: Sequence[str]) -> str:
        return " & ".join("".join(LATEX.get(c, c) for c in text) for text in texts) + r" \\" + "\n"

    body = "".join(row(cells(item)) for item in lines)
    head = "\\begin{tabular}{lll" + "r" * (len(HEADINGS) - 3) + "}\n\\toprule\n"
    return head + row(HEADINGS) + "\\midrule\n" + body + "\\bottomrule\n\\end{tabular}\n"


FORMATS: dict[str, Callable[[Sequence[Line]], str]] = {".md": markdown, ".csv": comma_separated, ".tex": latex}
"""What writes a table, by the ending of its file."""
