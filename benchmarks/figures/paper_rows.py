"""The state of every row of the paper's tables, from the committed runs: `capax/paper/state.json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Any, NamedTuple

from benchmarks.figures import stored, words
from benchmarks.figures.gridworld import LATER_SEEDS, by_method, summary
from benchmarks.figures.measures import last, middle
from benchmarks.figures.registry import figure
from benchmarks.figures.stored import StoredRun
from capax.paper.gridworld import PAPER_RESULTS
from capax.paper.protocol import SEEDS, run_name, tag
from capax.paper.rows import CARRACING, GRIDWORLD, HALFCHEETAH, PRESET, ROWS, PaperRow
from capax.reporting import intervals
from capax.training.methods import settings_of
from capax.training.presets import as_table, preset_rule

STATE = stored.ROOT / "capax" / "paper" / "state.json"
COLUMNS = ("return", "cost", "violations")
EARLIER = {
    "halfcheetah-cap-adam": "halfcheetah/adam",
    "carracing-cap-adam": "carracing/adam-1000",
    **{
        f"halfcheetah-{method}-{when}": f"halfcheetah/{method}"
        for method in ("ppo", "ppo-lag", "focops")
        for when in ("100k", "1m")
    },
    **{f"carracing-{method}-200k": f"carracing/{method}" for method in ("ppo", "ppo-lag", "focops")},
}
"""Runs from before the protocol that are nearest to a row."""
CRITICAL = 1.96
PAPER_WORLDS = 100
"""Worlds of the paper's gridworld table."""


CONVENTIONS = {
    HALFCHEETAH: {"return": "undiscounted", "cost": "discounted"},
    CARRACING: {"return": "discounted", "cost": "undiscounted"},
    GRIDWORLD: {"return": "normalised", "cost": "normalised"},
}
"""The paper's conventions."""
SETTLED = 70
"""Car-Racing: the episode from which on the median undiscounted return is given."""
MIN_SEEDS = 2
"""Seeds that an interval needs."""


def key_of(name: str, discounted: bool) -> str:
    """A key of the rows."""
    return f"discounted_{name}" if discounted else name


def figures_of(row: PaperRow, runs: Sequence[StoredRun]) -> dict[str, list[float]]:
    """Return, cost and violations with their intervals: return and cost in the paper's convention and in the other one,
    violations of planned and of random episodes apart, and together as in the paper."""
    parts = [run.until(row.steps) for run in runs]
    values = {}
    for name, convention in CONVENTIONS[row.task].items():
        discounted = convention == "discounted"
        values[name] = [last(part, key_of(name, discounted)) for part in parts]
        values[f"other_{name}"] = [last(part, key_of(name, not discounted)) for part in parts]
    if row.task == CARRACING:
        values["median_return"] = [middle(part, SETTLED, "return")[1] for part in parts]
    values |= {
        "violations": [float(sum(bool(item["violation"]) for item in part.rows)) for part in parts],
    }
    for name, of in (("planned_violations", "planned"), ("random_violations", "random")):
        values[name] = [float(sum(bool(item["violation"]) for item in getattr(part, of))) for part in parts]
    return {name: rounded(intervals.of_seeds(column)) for name, column in values.items()}


def rounded(values: Sequence[float]) -> list[float]:
    """Numbers with eight significant digits."""
    return [float(f"{value:.8g}") for value in values]


def protocol_runs(row: PaperRow) -> list[StoredRun]:
    """The runs of the present tag."""
    names = {seed: f"paper/{tag(row)}/{run_name(row)}-{seed}" for seed in SEEDS}
    runs = {seed: stored.run(name) for seed, name in names.items() if (stored.RESULTS / name / stored.PACKED).exists()}
    for seed, run in runs.items():
        check_protocol(row, seed, run)
    return list(runs.values())


def check_protocol(row: PaperRow, seed: int, run: StoredRun) -> None:
    """Refuse a run that was not made as the protocol says, and one that is not finished."""
    kappa = None if row.kappa is None else row.kappa if isinstance(row.kappa, str) else float(row.kappa)
    wanted = {
        "task": row.task,
        "method": row.method,
        "kappa": kappa,
        "steps": row.run_steps,
        "preset": PRESET,
        "seed": seed,
    }
    wrong = [
        f"{name} is {run.config[name]}, not {value}" for name, value in wanted.items() if run.config[name] != value
    ]
    settings = as_table(settings_of(row.method, run.config["kind"], PRESET))
    rule = preset_rule(PRESET, row.kappa) if isinstance(row.kappa, str) else {}
    wrong += [
        f"{name} differ{'s' * (name == 'rule')} from those of the preset"
        for name, value in (("settings", settings), ("rule", rule))
        if run.config[name] != value
    ]
    if run.rows[-1]["steps"] < row.run_steps:
        wrong.append(f"it has {run.rows[-1]['steps']} of {row.run_steps} steps")
    if wrong:
        raise ValueError(f"results/{run.name} is no run of {row.name}: {'; '.join(wrong)}")


def differing_columns(row: PaperRow, ours: dict[str, list[float]]) -> list[str]:
    """The columns whose interval does not hold the paper's number."""
    paper = {"return": row.earned, "cost": row.paid, "violations": row.violations}
    return [name for name, value in paper.items() if value is not None and not ours[name][1] <= value <= ours[name][2]]


class Worlds(NamedTuple):
    """Mean, deviation and number of worlds of each column, the seeds and the tag."""

    columns: dict[str, tuple[float, float]]
    count: int
    seeds: list[int]
    tag: str


def worlds_of(row: PaperRow) -> Worlds:
    """The worlds of a gridworld row: those of the protocol, and before there are any the 1,000 of seed 2026."""
    names = {seed: f"paper/{tag(row)}/{run_name(row)}-{seed}/{stored.PACKED}" for seed in SEEDS}
    there = {seed: name for seed, name in names.items() if (stored.RESULTS / name).exists()}
    if not there:
        table = summary("any", LATER_SEEDS[0])["cap", row.kappa]
        columns = {name: (table[f"{name}_mean"], table[f"{name}_sd"]) for name in COLUMNS}
        return Worlds(columns, 1000, [LATER_SEEDS[0]], "none: 1,000 worlds")
    groups = [by_method(stored.read_rows(name))["cap", row.kappa] for name in there.values()]
    last = [rows[-1] for worlds in groups for rows in worlds.values()]
    columns = {name: (fmean(item[name] for item in last), pstdev([item[name] for item in last])) for name in COLUMNS}
    return Worlds(columns, len(last), [*there], tag(row))


def gridworld_figures(row: PaperRow, worlds: Worlds) -> tuple[dict[str, list[float]], list[str]]:
    """Figures of the worlds, and the columns that differ by more than 1.96 standard errors of both means together."""
    paper = PAPER_RESULTS["cap", row.kappa]
    figures, differing = {}, []
    for number, (name, (mean, sd)) in enumerate(worlds.columns.items()):
        own_error = sd / worlds.count**0.5
        figures[name] = rounded([mean, mean - CRITICAL * own_error, mean + CRITICAL * own_error])
        both = (own_error**2 + paper[2 * number + 1] ** 2 / PAPER_WORLDS) ** 0.5
        if abs(mean - paper[2 * number]) > CRITICAL * both:
            differing.append(name)
    return figures, differing


def state_of(row: PaperRow) -> dict[str, Any]:
    """A row's entry."""
    entry: dict[str, Any] = {
        "name": row.name,
        "task": row.task,
        "method": row.method,
        "kappa": row.kappa,
        "steps": row.steps,
        "convention": CONVENTIONS[row.task],
        "paper": {"return": row.earned, "cost": row.paid, "violations": row.violations},
        "state": "missing",
        "differing": [],
        "ours": None,
        "seeds": [],
        "preset": PRESET,
        "tag": tag(row),
        "earlier": None,
    }
    if row.task == GRIDWORLD:
        worlds = worlds_of(row)
        entry["ours"], entry["differing"] = gridworld_figures(row, worlds)
        entry["seeds"], entry["preset"], entry["tag"] = worlds.seeds, None, worlds.tag
    else:
        runs = protocol_runs(row)
        if runs:
            entry["ours"], entry["seeds"] = figures_of(row, runs), [run.config["seed"] for run in runs]
            enough = len(runs) >= MIN_SEEDS
            entry["differing"] = differing_columns(row, entry["ours"]) if enough else []
        if row.name in EARLIER:
            old = stored.group(EARLIER[row.name])
            entry["earlier"] = {
                "runs": EARLIER[row.name],
                "seeds": [run.config["seed"] for run in old],
                "preset": old[0].config["preset"],
                "episodes": [len(run.rows) for run in old],
                **figures_of(row, old),
            }
    if entry["ours"] is not None and (row.task == GRIDWORLD or len(entry["seeds"]) >= MIN_SEEDS):
        entry["state"] = "differs" if entry["differing"] else "reproduced"
    return entry


def text() -> str:
    """The file, as it should be."""
    return json.dumps([state_of(row) for row in ROWS.values()], indent=1, ensure_ascii=False) + "\n"


GRIDWORLD_DIGITS = {"return": 3, "cost": 4, "violations": 2}


def numbers(values: dict[str, Any] | None, seeds: int, digits: dict[str, int] | None = None) -> str:
    """Return, cost and violations of a row, with return and cost of the other convention in parentheses; one seed has no
    interval."""
    if not values:
        return "–"

    def cell(name: str) -> str:
        value = intervals.Interval(*values[name])
        places = words.places(*value) if digits is None else digits[name]
        return words.number(value.centre, places) if seeds < MIN_SEEDS else words.interval(value, places)

    cells = {name: cell(name) for name in COLUMNS}
    for name in ("return", "cost"):
        if f"other_{name}" in values:
            cells[name] += f" ({cell(f'other_{name}')})"
    if "median_return" in values:
        cells["return"] += f", median {cell('median_return')}"
    if "random_violations" in values:
        planned, random = (values[f"{name}_violations"][0] for name in ("planned", "random"))
        cells["violations"] += f" ({words.number(planned, 1)} planned, {words.number(random, 1)} random)"
    return " / ".join(cells.values())


@figure
def paper_rows_table() -> str:
    """Every row with its state."""
    lines = []
    for entry in map(state_of, ROWS.values()):
        printed = " / ".join(
            "–" if value is None else f"{value:g}".replace("-", "−") for value in entry["paper"].values()
        )
        state = f"**{entry['state']}**" + (f" in {', '.join(entry['differing'])}" if entry["differing"] else "")
        old = entry["earlier"]
        before = "–"
        if old:
            before = f"{numbers(old, len(old['seeds']))}; preset `{old['preset']}`, {words.seeds(old['seeds'])}"
        seeds = words.seeds(entry["seeds"]) if entry["seeds"] else "none"
        ours = numbers(entry["ours"], len(entry["seeds"]))
        if entry["task"] == GRIDWORLD:  # of many worlds, whatever the number of seeds
            ours = numbers(entry["ours"], PAPER_WORLDS, GRIDWORLD_DIGITS)
        lines.append([f"`{entry['name']}`", printed, ours, state, seeds, entry["tag"], before])
    headings = [
        "row",
        "paper: return / cost / violations",
        "ours (in the other convention)",
        "state",
        "seeds",
        "tag",
        "earlier runs, before the protocol",
    ]
    return words.table(headings, lines)


@figure
def protocol_runs_table() -> str:
    """Command, commit, machine, seconds and episodes of every run under the protocol."""
    lines, done = [], set()
    for row in ROWS.values():
        for seed in SEEDS:
            name = f"paper/{tag(row)}/{run_name(row)}-{seed}"
            if name in done or not (stored.RESULTS / name / stored.PACKED).exists():
                continue
            done.add(name)
            command = f"`capax paper {row.name} --seed {seed}`"
            if row.task == GRIDWORLD:  # a function of its seed, which keeps no configuration
                lines.append([f"`{name}`", command, "–", "–", "–", "–"])
                continue
            run = stored.run(name)
            seconds = words.number(run.rows[-1]["time"]["seconds"])
            lines.append(
                [f"`{name}`", command, run.config["commit"][:7], run.config["device"], seconds, f"{len(run.rows):,}"]
            )
    if not lines:
        return "No run under the protocol is committed yet.\n"
    return words.table(["folder", "command", "code", "device", "seconds", "episodes"], lines)


@figure
def paper_states() -> str:
    """How many rows are in each state."""
    found = [state_of(row)["state"] for row in ROWS.values()]
    counts = ", ".join(f"{found.count(word)} {word}" for word in ("reproduced", "differs", "missing"))
    return f"{len(found)} rows: {counts}".replace("differs", "differ").replace("missing", "are missing")
