"""The results of the gridworld experiment depend on the seed alone, and its table summarises its rows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from capax.core.errors import InputError
from capax.paper.gridworld import (
    LIMIT,
    Label,
    Settings,
    describe_first_world,
    draw_world,
    label,
    make_agent,
    run_world,
    run_worlds,
    summarise,
)
from capax.tabular import evaluate, solve

SMALL = {"worlds": 2, "iterations": 3, "samples": 100, "jobs": 1}
TESTED_METHODS = ("oracle", "0.05", "adaptive", "calibrated")
ROW_KEYS = ["world", "method", "rule", "iteration", "steps", "return", "cost", "oracle_return", "limit", "violation",
        "violations", "time"]  # fmt: skip


def rows_of(*, keep_time: bool = False, **changes: Any) -> list[dict[str, Any]]:
    """All rows of a small experiment, without the keys that depend on the clock."""
    settings = Settings(**{**SMALL, "methods": TESTED_METHODS, **changes})
    rows = [row for result in run_worlds(settings) for row in result.rows]
    return rows if keep_time else [{k: v for k, v in row.items() if k != "time"} for row in rows]


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return rows_of()


# The results depend on the seed alone.


def test_two_runs_give_the_same_rows(rows):
    assert rows_of() == rows


def test_two_processes_give_the_same_rows_as_one(rows):
    assert rows_of(jobs=2) == rows


def test_a_world_does_not_depend_on_the_other_worlds(rows):
    assert rows_of(worlds=1) == [row for row in rows if row["world"] == 0]
    settings = Settings(**{**SMALL, "methods": TESTED_METHODS})
    single = [{k: v for k, v in row.items() if k != "time"} for row in run_world(settings, 1).rows]
    assert single == [row for row in rows if row["world"] == 1]


@pytest.mark.parametrize("methods", [("calibrated",), ("adaptive", "0.05"), ("0.3", "0.05")])
def test_a_method_does_not_depend_on_the_other_methods(rows, methods):
    shared = {label(method) for method in methods if method in TESTED_METHODS}
    subset = [row for row in rows_of(worlds=1, methods=methods) if Label(row["method"], row["rule"]) in shared]
    expected = [row for row in rows if row["world"] == 0 and Label(row["method"], row["rule"]) in shared]
    order = lambda row: (row["method"], str(row["rule"]), row["iteration"])  # noqa: E731
    assert sorted(subset, key=order) == sorted(expected, key=order)


def test_fewer_iterations_give_the_first_rows_of_more(rows):
    # The calibrated agent plans its exploration over all iterations. CAP does not depend on their number.
    fewer = rows_of(iterations=1, methods=("0.05", "adaptive"))
    assert fewer == [row for row in rows if row["method"] == "cap" and row["iteration"] <= 1]


def test_another_seed_gives_other_worlds(rows):
    other = rows_of(seed=1)
    assert not {row["oracle_return"] for row in other} & {row["oracle_return"] for row in rows}


# The rows.


def test_there_is_one_row_per_world_method_and_policy(rows):
    # The oracle has one policy. Each learner has the first policy and one more after each of the 3 iterations.
    keys = [(row["world"], row["method"], row["rule"], row["iteration"]) for row in rows]
    learners = [("cap", 0.05), ("cap", "adaptive"), ("calibrated", None)]
    expected = [(w, "oracle", None, 0) for w in range(2)]
    expected += [(w, *learner, i) for w in range(2) for learner in learners for i in range(4)]
    assert sorted(keys, key=str) == sorted(expected, key=str)


def test_every_row_has_the_documented_keys():
    for row in rows_of(worlds=1, iterations=1, keep_time=True):
        missing = set(ROW_KEYS) - set(row)
        assert not missing
        assert ("kappa" in row) == (row["method"] != "oracle")


def test_violations_are_counted_from_the_first_policy_on(rows):
    count: dict[Any, int] = {}
    for row in rows:
        key = (row["world"], row["method"], row["rule"])
        assert row["violation"] == (row["cost"] > LIMIT + 1e-6)
        count[key] = count.get(key, 0) + row["violation"]
        assert row["violations"] == count[key]
    assert max(count.values()) > 0


def test_oracle_is_the_optimum_of_the_true_world(rows):
    for number in range(2):
        best = solve(draw_world(Settings(**SMALL), number).cmdp, LIMIT, "highs")
        (row,) = (row for row in rows if row["world"] == number and row["method"] == "oracle")
        assert (row["return"], row["cost"]) == pytest.approx((best.reward, best.cost), abs=1e-9)
        assert {row["oracle_return"] for row in rows if row["world"] == number} == {row["return"]}


def test_no_method_that_keeps_the_limit_beats_the_oracle(rows):
    assert all(row["return"] <= row["oracle_return"] + 1e-9 for row in rows if row["cost"] <= LIMIT)


def test_adaptive_kappa_follows_the_cost(rows):
    # κ ← max(0, κ + .1 (J_c − .1)). If a plan is infeasible, κ is halved further.
    for number in range(2):
        adaptive_rows = [row for row in rows if row["world"] == number and row["rule"] == "adaptive"]
        for before, after in pairwise(adaptive_rows):
            updated = max(0.0, before["kappa"] + 0.1 * (before["cost"] - LIMIT))
            halvings = {updated / 2**k for k in range(40)} | {0.0}
            assert min(abs(after["kappa"] - value) for value in halvings) < 1e-12


def test_steps_count_the_data_of_the_policy(rows):
    assert {(row["iteration"], row["steps"]) for row in rows if row["method"] != "oracle"} == {
        (i, 100 * (i + 1)) for i in range(4)
    }


def test_calibrated_keeps_the_limit_where_kappa_zero_does_not():
    rows = rows_of(worlds=3, iterations=6, samples=500, methods=("0", "calibrated"))
    entries = {row["method"]: row for row in summarise(rows)}
    assert entries["calibrated"]["violations_mean"] < entries["cap"]["violations_mean"]
    assert 0.6 < entries["calibrated"]["oracle_share"] < 1.0


def test_description_of_the_first_world_holds_the_last_policies():
    settings = Settings(**{**SMALL, "methods": TESTED_METHODS, "worlds": 1})
    result = run_world(settings, 0)
    description = describe_first_world(settings, result)
    world = draw_world(settings, 0)
    last = {(row["method"], row["rule"]): row for row in result.rows}
    np.testing.assert_array_equal(description["c"], world.cmdp.c)
    for entry in description["policies"]:
        row = last[entry["method"], entry["kappa"]]
        assert (entry["return"], entry["cost"]) == pytest.approx((row["return"], row["cost"]), abs=1e-12)
        exact = evaluate(world.cmdp, np.array(entry["policy"])).occupancy
        np.testing.assert_allclose(entry["occupancy"], exact, atol=1e-14)


# The table.


def fabricated_row(world: int, method: str, iteration: int, **numbers: float) -> dict[str, Any]:
    return {"world": world, "method": method, "rule": None, "iteration": iteration, "oracle_return": 0.5, **numbers}


def test_table_is_mean_and_sd_of_the_last_policies():
    # Returns .2 and .4 (mean .3, sd .1), costs .1 and .1, violations 3 and 1 (mean 2, sd 1). The oracle's return is .5.
    rows = [
        fabricated_row(0, "calibrated", 0, **{"return": 9.0, "cost": 9.0, "violations": 1}),
        fabricated_row(0, "calibrated", 1, **{"return": 0.2, "cost": 0.1, "violations": 3}),
        fabricated_row(1, "calibrated", 0, **{"return": 9.0, "cost": 9.0, "violations": 1}),
        fabricated_row(1, "calibrated", 1, **{"return": 0.4, "cost": 0.1, "violations": 1}),
        fabricated_row(0, "oracle", 0, **{"return": 0.5, "cost": 0.1, "violations": 0}),
    ]
    calibrated, oracle = summarise(rows)
    assert calibrated == {
        "method": "calibrated", "kappa": None,
        "return_mean": pytest.approx(0.3), "return_sd": pytest.approx(0.1),
        "cost_mean": pytest.approx(0.1), "cost_sd": pytest.approx(0.0, abs=1e-15),
        "violations_mean": pytest.approx(2.0), "violations_sd": pytest.approx(1.0),
        "oracle_share": pytest.approx(0.6),
    }  # fmt: skip
    assert (oracle["return_sd"], oracle["oracle_share"]) == (0.0, 1.0)


# Settings.


@pytest.mark.parametrize(("typed", "expected"), [
    ("oracle", Label("oracle", None)),
    ("calibrated", Label("calibrated", None)),
    ("adaptive", Label("cap", "adaptive")),
    ("0", Label("cap", 0.0)),
    ("1e-2", Label("cap", 0.01)),
])  # fmt: skip
def test_label_translates_a_method(typed, expected):
    assert label(typed) == expected


@pytest.mark.parametrize("typed", ["", "Oracle", "-0.1", "nan", "inf", "cap"])
def test_unknown_methods_are_refused(typed):
    with pytest.raises(InputError, match="--methods"):
        label(typed)


@pytest.mark.parametrize(("field", "value"), [
    ("worlds", 0),
    ("iterations", 0),
    ("samples", 0),
    ("jobs", 0),
    ("seed", -1),
    ("seed", 2**32),
    ("slip", "ice"),
    ("methods", ()),
    ("methods", ("oracle", "oracle")),
    ("methods", ("0.1", "0.10")),
])  # fmt: skip
def test_invalid_settings_are_refused(field, value):
    with pytest.raises(InputError, match=f"--{field}") as error:
        Settings(**{field: value})
    assert str(error.value).endswith(".") and "\n" not in str(error.value)


def test_samples_need_not_be_a_multiple_of_restarts():
    assert Settings(samples=505).samples == 505


def test_a_fixed_kappa_reaches_the_agent():
    agent, restarts = make_agent(draw_world(Settings(**SMALL), 0), "0.05", 3)
    assert (agent.rule.kappa, restarts) == (0.05, 1)
