"""Scores of the suite from rows whose numbers are known, and their intervals."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from capax.envs.suite.baseline import Baseline, baseline
from capax.envs.suite.catalogue import SUITE
from capax.reporting import suite
from capax.reporting.suite import Score, interval, mean_share, rows_of, score, violating, violating_later

TASK = SUITE[0]


class FakeRun(NamedTuple):
    """The parts of a run that a score reads."""

    config: Any
    episodes: list[dict[str, Any]]


class Config(NamedTuple):
    method: str = "cap"
    seed: int = 3
    cost_limit: float = TASK.limit
    limit: float = TASK.limit
    violation_rate: float = 0.02
    kappa: str = "conformal"
    kind: str = "vector"
    cost_name: str = "cost"


def row(earned: float, cost: float = 0.0, *, phase: str = "plan", feasible: float = 0.5) -> dict[str, Any]:
    violation = cost > TASK.limit
    return {
        "phase": phase, "return": earned, "cost": cost, "violation": violation, "feasible": feasible,
        "time": {"seconds": 7.0},
    }  # fmt: skip


@pytest.fixture(autouse=True)
def known_baseline(monkeypatch):
    monkeypatch.setattr(suite, "baseline", lambda task: Baseline(10.0, 30.0))


def scored(rows: list[dict[str, Any]]) -> Score:
    run: Any = FakeRun(Config(), rows)
    return score(TASK, run)


def test_the_share_is_that_of_the_last_quarter_of_the_planned_episodes():
    # eight planned episodes: the last two earn 20 and 30, a mean of 25, which is 15 of the 20 between 10 and 30
    rows = [row(-99.0, phase="random"), *[row(0.0)] * 6, row(20.0, 1.0), row(30.0, 4.0)]
    result = scored(rows)
    assert result.share == pytest.approx(0.75)
    assert result.used == pytest.approx(0.5)  # 2.5 of 5
    assert (result.planned, result.seed, result.seconds) == (8, 3, 7.0)


def test_violations_of_the_first_five_planned_episodes_are_counted_apart():
    rows = [row(0.0, 99.0, phase="random"), *[row(0.0, 6.0)] * 3, *[row(0.0)] * 3, row(0.0, 6.0), row(0.0)]
    result = scored(rows)
    assert (result.violations, result.later, result.later_violations) == (4, 3, 1)


def test_a_warning_is_early_within_five_planned_episodes():
    fine, stuck = row(0.0), row(0.0, feasible=0.0)
    assert scored([*[fine] * 4, stuck, fine]).warned
    assert not scored([*[fine] * 5, stuck]).warned


def make_score(task: str, share: float, violations: int = 0, method: str = "cap", seed: int = 0) -> Score:
    return Score(task, method, seed, share, 10, violations, 5, violations, 0.5, 1.0, False)


def test_the_interval_resamples_seeds_within_each_task():
    # tasks differ, their seeds do not: there is nothing to resample
    groups = {"a": [make_score("a", 0.0)] * 4, "b": [make_score("b", 1.0)] * 4}
    assert interval(groups, mean_share) == (0.5, 0.5, 0.5)
    # one task whose seeds differ: as wide as the bootstrap of their mean, whose standard error is .5/√4 · √(1 − 1/4) … exactly
    # the spread of a binomial of four at one half: 0 and 1 each have a chance of 1/16, above 2.5 %
    spread = {"a": [make_score("a", share) for share in (0.0, 0.0, 1.0, 1.0)]}
    assert interval(spread, mean_share) == (0.5, 0.0, 1.0)


def test_shares_of_violations():
    scores = [make_score("a", 1.0, 1), make_score("a", 1.0, 4)]
    assert violating(scores) == 0.25 and violating_later(scores) == 0.5


def test_impossible_tasks_count_by_their_warning_alone():
    rows = rows_of([make_score("a", 0.5), make_score("b", 9.0, 10)], ["b"])
    by_name = {row["task"]: row for row in rows}
    assert by_name["b"]["share"] is None and by_name["b"]["warned"] == 0.0
    assert by_name["all tasks"]["share"].value == 0.5 and by_name["all tasks"]["violating"].value == 0.0


def test_the_reference_has_a_share_of_one():
    found = baseline(TASK)
    assert found.share(found.reference) == 1.0 and found.share(found.nothing) == 0.0
    assert np.isfinite(found).all()
