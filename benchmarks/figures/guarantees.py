"""What each theorem says at the number of episodes of the committed runs, and what those runs came to."""

from __future__ import annotations

from math import exp, log

import numpy as np

from benchmarks.figures import stored, words
from benchmarks.figures.measures import planned_violations
from benchmarks.figures.registry import figure
from benchmarks.figures.stored import StoredRun
from capax.tabular.bounds import certificate

GRID_SAMPLES, GRID_PAIRS = 15_500, 256
"""Samples that the gridworld experiment has collected when its last policy is made, and pairs of a world."""

GAIN = 0.1
"""η in units of the κ whose penalty alone fills the limit."""
START_SHARE, MAX_SHARE, MIN_SHARE = 0.1, 0.9, 0.0005
"""p_1, p_max and p_min of the rule for binary costs."""
FORGIVEN = 6.0
"""The constant of the theorem under a budget."""
LENGTHS = (6, 50, 100, 300, 1000, 3000)
BUDGET_LENGTHS = (25, 100, 1000)
DISCOUNTED = {"`conformal`": "conformal", "the same once more, alone": "alone", "later code": "lanes"}


def bound(rate: float, kappa_max: float, step: float, episodes: int) -> float:
    """ε + (κ_max + (1−ε)η)/(ηT)."""
    return rate + (kappa_max + (1.0 - rate) * step) / (step * episodes)


def rough_bound(rate: float, kappa_max: float, step: float, episodes: int) -> float:
    """ε + (κ_max + η)/(ηT)."""
    return rate + (kappa_max + step) / (step * episodes)


def budget_bound(rate: float, ratio: float, episodes: int) -> float:
    """ε + (κ_max/η + 6)/T, with the ratio κ_max/η."""
    return rate + (ratio + FORGIVEN) / episodes


def worst_share(rate: float, needed: float, step: float, episodes: int) -> float:
    """The violating share if `needed` is what every episode needs, and the quantile is always 0."""
    k, count = 0.0, 0
    for _ in range(episodes):
        violation = k < needed
        count += violation
        k = max(0.0, k + step * (violation - rate))
    return count / episodes


def three(value: float) -> str:
    """A share with two significant digits below 1."""
    return f"{value:.2g}" if value < 1 else f"{value:.3g}"


@figure
def bound_table() -> str:
    """The bound of the discounted rule by the number of episodes, for ε = .02 and η = .1."""
    rows = [
        ["bound, κ_max = .5", *(three(rough_bound(0.02, 0.5, 0.1, n)) for n in LENGTHS)],
        ["share if κ* = .499 always, q = 0", *(three(worst_share(0.02, 0.499, 0.1, n)) for n in LENGTHS)],
        ["bound, κ_max = 5", *(three(rough_bound(0.02, 5.0, 0.1, n)) for n in LENGTHS)],
    ]
    return words.table(["T", *(words.number(n) for n in LENGTHS)], rows)


@figure
def samples_per_pair() -> str:
    """Samples of a pair at the end of the gridworld experiment, on average."""
    return words.number(GRID_SAMPLES / GRID_PAIRS)


@figure
def certified_penalty() -> str:
    """γβu of the theorem at so many samples of every pair."""
    counts = np.full((GRID_PAIRS // 4, 4), GRID_SAMPLES / GRID_PAIRS)
    return words.number(float(certificate(counts, 4, delta=0.05, gamma=0.99, prior=4).max()), 1)


@figure
def budget_bound_table() -> str:
    """The bound under a budget, for ε = .02."""
    rows = [
        [f"bound, ε = .02, κ_max/η = {ratio}", *(three(budget_bound(0.02, ratio, n)) for n in BUDGET_LENGTHS)]
        for ratio in (5, 10)
    ]
    return words.table(["T", *(words.number(n) for n in BUDGET_LENGTHS)], rows)


@figure
def budget_bound_at(episodes: str) -> str:
    """The bound under a budget with κ_max/η = 5, in percent."""
    return f"{100 * budget_bound(0.02, 5, int(episodes)):.2g} %"


def final_k(run: StoredRun) -> tuple[float, float]:
    """k after the last episode, and η (0 as long as nothing has violated)."""
    row = run.planned[-1]
    rate, step = run.config["violation_rate"], row["k_step"]
    return max(0.0, row["k"] + step * (bool(row["violation"]) - rate)), step


@figure
def discounted_guarantee_table() -> str:
    """Theorem and outcome of the committed runs under a discounted limit, one line per seed."""
    lines = []
    for label, name in DISCOUNTED.items():
        for run in stored.group(f"halfcheetah/{name}"):
            rate, episodes = run.config["violation_rate"], len(run.planned)
            k, step = final_k(run)
            largest = max(row["residual"] for row in run.planned)
            eta = step or GAIN * run.planned[-1]["unit"]
            counted = int(rate * episodes + (k / step if step else 0.0) + 1e-9)
            lines.append(
                [
                    f"{label}, seed {run.config['seed']}",
                    f"{episodes}",
                    f"{100 * bound(rate, 0.0, 1.0, episodes):.1f} %",
                    f"{100 * bound(rate, largest, eta, episodes):.1f} % ({largest:.2f})",
                    f"{counted}",
                    f"{planned_violations(run)}",
                    f"{max(row['k'] for row in run.planned):.2f}",
                ]
            )
    headings = [
        "run (ε = .02)", "T", "bound, κ_max = 0", "bound, κ_max the largest residual (in brackets)",
        "violations at most, by the count after the run", "violations", "largest k",
    ]  # fmt: skip
    return words.table(headings, lines)


@figure
def never_acted() -> str:
    """How many of the three headline runs had k above 0 at any time."""
    runs = stored.group("halfcheetah/conformal")
    moved = sum(max(row["k"] for row in run.planned) > 0 for run in runs)
    return f"in {moved} of {len(runs)}"


def binary_step(rate: float) -> tuple[float, float]:
    """The aim a and the step η of the rule for binary costs."""
    aim = rate / 2.0
    return aim, min(2.0, 0.28 / aim)


@figure
def binary_guarantee_table() -> str:
    """Theorem and outcome of the committed Car-Racing runs."""
    lines = []
    for name in ("carracing/worth-0.4", "carracing/worth-0.05"):
        (run,) = stored.group(name)
        aim, step = binary_step(run.config["violation_rate"])
        episodes, row = len(run.planned), run.planned[-1]
        share = min(MAX_SHARE, max(MIN_SHARE, row["flagged_share"] * exp(step * (bool(row["violation"]) - aim))))
        shares = [item["flagged_share"] for item in run.planned]
        most = aim + log(MAX_SHARE / START_SHARE) / (step * episodes)
        count = int(aim * episodes + log(share / START_SHARE) / step + 1e-9)
        counted = f"{count}" if max(shares) < MAX_SHARE else "no count: p was cut off"
        violations = planned_violations(run)
        realised = f"{violations} ({100 * violations / episodes:.1f} %)"
        spread = f"{min(shares):.3f} to {max(shares):.3f}"
        rate = f"ε = {run.config['violation_rate']:g}, one seed"
        lines.append([rate, f"{episodes}", f"{100 * most:.1f} %", counted, realised, spread])
    headings = ["run", "T", "bound", "violations at most, by the count after the run", "violations", "p"]
    return words.table(headings, lines)
