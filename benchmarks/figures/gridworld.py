"""Figures of the gridworld experiment, from its rows, its tables and its studies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any

from benchmarks.figures import stored, words
from benchmarks.figures.registry import figure
from capax.agents.finite_worlds import LIMIT
from capax.core.costs import violates
from capax.paper.gridworld import PAPER_RESULTS
from capax.reporting import intervals
from capax.reporting.gridworld import display_name

DEFAULTS = "gridworld/100-worlds-any-seed-0.jsonl.xz"
"""Rows of `capax gridworld`, rounded to eight digits, without the clock."""
SLIPS = ("any", "other", "torus")
LATER_SEEDS = (2026, 2027)
POLICIES = 31
Label = tuple[str, Any]


def by_method(rows: Iterable[dict[str, Any]]) -> dict[Label, dict[int, list[dict[str, Any]]]]:
    """Rows by method and κ, then by world."""
    groups: dict[Label, dict[int, list[dict[str, Any]]]] = {}
    for row in rows:
        groups.setdefault((row["method"], row["rule"]), {}).setdefault(row["world"], []).append(row)
    return groups


def with_sd(values: Sequence[float], digits: int) -> str:
    """Mean and standard deviation over worlds."""
    mean = fmean(values)
    sd = fmean((value - mean) ** 2 for value in values) ** 0.5
    return f"{words.number(mean, digits)} ± {words.number(sd, digits)}"


def name_of(label: Label) -> str:
    """A method's name; ours is bold."""
    return "**CAP calibrated** (ours)" if label[0] == "calibrated" else display_name(*label)


def paper_cell(label: Label) -> str:
    """The paper's return, cost and violations."""
    numbers = PAPER_RESULTS.get(label)
    if numbers is None:
        return "–"
    earned, earned_sd, paid, paid_sd, count, count_sd = numbers
    return f"{earned:.3f} ± {earned_sd:.3f} / {paid:.4f} ± {paid_sd:.4f} / {count:.2f} ± {count_sd:.2f}"


@figure
def gridworld_table() -> str:
    """The paper's table: 100 worlds of seed 0."""
    groups = by_method(stored.read_rows(DEFAULTS))
    best = {world: rows[0]["oracle_return"] for world, rows in groups["oracle", None].items()}
    lines = []
    for label, worlds in groups.items():
        last = {world: rows[-1] for world, rows in worlds.items()}
        count = intervals.of_mean([row["violations"] for row in last.values()])
        share = sum(row["return"] for row in last.values()) / sum(best[world] for world in last)
        lines.append(
            [
                name_of(label),
                with_sd([row["return"] for row in last.values()], 3),
                with_sd([row["cost"] for row in last.values()], 4),
                with_sd([row["violations"] for row in last.values()], 2),
                f"[{words.number(count.low, 2)}, {words.number(count.high, 2)}]" if count.high else "–",
                f"{100 * share:.1f} %",
                paper_cell(label),
            ]
        )
    headings = [
        "100 random worlds, limit .1", "return", "cost", "violations of 31", "their mean's 95 % interval", "of the oracle",
        "paper: return / cost / violations",
    ]  # fmt: skip
    return words.table(headings, lines)


def summary(slip: str, seed: int) -> dict[Label, dict[str, Any]]:
    """The committed table of 1,000 worlds."""
    rows = stored.read_json(f"gridworld/1000-worlds-{slip}-seed-{seed}.json")
    return {(row["method"], row["kappa"]): row for row in rows}


@figure
def gridworld_slips_table() -> str:
    """1,000 worlds of seed 2026 for each reading of a slip."""
    tables = {slip: summary(slip, LATER_SEEDS[0]) for slip in SLIPS}
    lines = []
    for label in tables["any"]:
        cells = []
        for slip in SLIPS:
            row = tables[slip][label]
            error = 1.96 * row["violations_sd"] / 1000**0.5
            low, high = max(0.0, row["violations_mean"] - error), row["violations_mean"] + error
            limits = f" [{low:.2f}, {high:.2f}]" if error else ""
            cells.append(
                f"{row['return_mean']:.3f} / {row['cost_mean']:.4f} / {row['violations_mean']:.2f}{limits}"
                f" / {100 * row['oracle_share']:.1f} %"
            )
        paper = PAPER_RESULTS.get(label)
        paper_numbers = "–" if paper is None else f"{paper[0]:.3f} / {paper[2]:.4f} / {paper[4]:.2f}"
        lines.append([name_of(label), *cells, paper_numbers])
    headings = ["1,000 worlds each", "`any`: return / cost / violations / of oracle", "`other`", "`torus`", "paper"]
    return words.table(headings, lines)


@figure
def gridworld_violations(slip: str, *kappas: str) -> str:
    """Mean violations in 1,000 worlds at these fixed κ."""
    rows = summary(slip, LATER_SEEDS[0])
    return words.listed((rows["cap", float(kappa)]["violations_mean"] for kappa in kappas), 2)


@figure
def gridworld_adaptive() -> str:
    """Mean violations of the PI rule in 1,000 worlds."""
    row = summary("any", LATER_SEEDS[0])["cap", "adaptive"]
    return f"{row['violations_mean']:.1f} (standard error {row['violations_sd'] / 1000**0.5:.1f})"


@figure
def gridworld_distance(kappa: str) -> str:
    """How many standard errors of both means our violations are away from the paper's."""
    ours, paper = summary("any", LATER_SEEDS[0])["cap", float(kappa)], PAPER_RESULTS["cap", float(kappa)]
    error = (ours["violations_sd"] ** 2 / 1000 + paper[5] ** 2 / 100) ** 0.5
    return words.number(abs(ours["violations_mean"] - paper[4]) / error, 1)


def calibrated_tables() -> list[dict[str, Any]]:
    """The calibrated agent's rows of 1,000 worlds: three slips, two seeds."""
    return [summary(slip, seed)["calibrated", None] for seed in LATER_SEEDS for slip in SLIPS]


@figure
def calibrated_policies() -> str:
    """Policies of the calibrated agent in 3 × 2,000 worlds."""
    return words.number(1000 * POLICIES * len(calibrated_tables()))


@figure
def calibrated_violations() -> str:
    """How many of them violate the limit."""
    return words.number(sum(1000 * row["violations_mean"] for row in calibrated_tables()))


@figure
def calibrated_shares(seed: str) -> str:
    """Their share of the oracle's return, by slip."""
    rows = [summary(slip, int(seed))["calibrated", None] for slip in SLIPS]
    return ", ".join(f"{100 * row['oracle_share']:.1f}" for row in rows)


@figure
def calibrated_world_bound() -> str:
    """The upper end of the exact interval of the share of worlds with a violation, where there is none."""
    return f"{100 * intervals.of_share(0, 1000 * len(calibrated_tables())).high:.2f}"


@figure
def calibrated_costs() -> str:
    """The largest cost of a first and of a later policy in the 100 worlds of seed 0."""
    worlds = by_method(stored.read_rows(DEFAULTS))["calibrated", None].values()
    first, later = max(rows[0]["cost"] for rows in worlds), max(row["cost"] for rows in worlds for row in rows[1:])
    assert not violates(later, LIMIT, exact=True)
    return f"{first:.4f} and {later:.4f}"


@figure
def calibrated_infeasible() -> str:
    """How many first and later policies of the 100 worlds of seed 0 were played because none passed."""
    worlds = by_method(stored.read_rows(DEFAULTS))["calibrated", None].values()
    first = sum(not rows[0]["feasible"] for rows in worlds)
    later = sum(not row["feasible"] for rows in worlds for row in rows[1:])
    return f"{first} of 100 first ones, {later} of 3,000 later ones"


def study(name: str) -> list[dict[str, Any]]:
    """The variants of a study of `benchmarks/gridworld_study.py`."""
    return stored.read_json(f"gridworld/gridworld-{name}.json")["figures"]


def study_table(name: str, label: Callable[[dict[str, Any]], str], heading: str) -> str:
    """Violations and the share of the oracle of each variant."""
    lines = []
    for row in study(name):
        count = intervals.of_mean(row["violations"])
        cells = [words.interval(count, 1), f"{100 * row['oracle_share']:.1f} %", f"{row['first_violations']}"]
        lines.append([label(row), *cells, f"{row['later_violations']}", f"{row['largest_cost']:.4f}"])
    worlds = study(name)[0]["worlds"]
    of_later = f"later ones (of {words.number((POLICIES - 1) * worlds)})"
    headings = [heading, "violations of 31 in a world", "of the oracle", f"first policies that violate (of {worlds})"]
    return words.table([*headings, of_later, "largest cost"], lines)


@figure
def alpha_table() -> str:
    """The PI rule by its gain."""
    return study_table("alpha", lambda row: f"{row['alpha']:g}", "gain α")


@figure
def alpha_least() -> str:
    """The least mean of violations over the gains."""
    return words.number(min(row["violations_mean"] for row in study("alpha")), 1)


@figure
def counts_table() -> str:
    """κ = 0 by the prior of the counts."""
    return study_table("counts", lambda row: row["prior"], "prior, at κ = 0")


@figure
def counts_violations(prior: str) -> str:
    """Mean violations at κ = 0 with a prior."""
    (row,) = (row for row in study("counts") if row["prior"] == prior)
    return words.number(row["violations_mean"], 1)


@figure
def episodes_table() -> str:
    """The paper's agents with ten episodes of 50 steps."""
    return study_table("episodes", lambda row: row["method"], "κ, ten episodes of 50 steps")


@figure
def episodes_share(method: str) -> str:
    """The share of the oracle of a method with ten episodes."""
    (row,) = (row for row in study("episodes") if row["method"] == method)
    return f"{100 * row['oracle_share']:.1f} %"


@figure
def prior_table() -> str:
    """The calibrated agent with a flat prior, and where cells differ."""
    lines = []
    for row in [*study("prior"), *study("uneven")]:
        cells = [f"{100 * row['oracle_share']:.1f} %", f"{row['first_violations']}", f"{row['later_violations']}"]
        lines.append([f"{row['prior']} prior, slip `{row['slip']}`", *cells, f"{row['largest_cost']:.4f}"])
    headings = ["calibrated, 100 worlds of seed 2026", "of the oracle", "first policies that violate (of 100)"]
    return words.table([*headings, "later ones (of 3,000)", "largest cost"], lines)
