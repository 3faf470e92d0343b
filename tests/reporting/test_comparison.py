"""Runs that differ by their seed alone are one line, whose numbers can be worked out by hand."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from capax.core.errors import InputError
from capax.reporting import comparison
from capax.reporting.comparison import compare, print_comparison
from capax.reporting.groups import grouped
from capax.runs.config import RunConfig
from capax.runs.run import Run

CONFIG = RunConfig(
    task="T", kind="vector", method="cap", steps=30, seed=0, gamma=0.99, discounted=False, cost_limit=5.0,
    violation_rate=0.1, kappa="conformal", preset="fast", settings={"cem": {"population": 20}, "start_steps": 10},
    capacity=30, obs_dim=2, action_low=(-1.0,), action_high=(1.0,), action_shape=(1,),
)  # fmt: skip


def write_run(folder: Path, returns: Any = (1.0, 2.0), costs: Any = (1.0, 6.0), **changes: Any) -> Run:
    """A random episode of cost 9, and planned ones with these returns and costs under the limit of 5."""
    every = [(0.0, 9.0), *zip(returns, costs, strict=True)]
    rows = [
        {
            "steps": 10 * n, "phase": "plan" if n else "random", "return": earned, "cost": cost, "violation": cost > 5.0,
            "kappa": 0.5,
        }
        for n, (earned, cost) in enumerate(every)
    ]  # fmt: skip
    folder.mkdir()
    (folder / "config.json").write_text(replace(CONFIG, **changes).to_json())
    (folder / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Run(folder)


def labels(runs: list[Run]) -> list[str]:
    return [group.label for group in grouped(runs)]


def test_three_seeds_by_hand(tmp_path):
    # returns of the last ten episodes, the random one too: means 1, 2 and 3; costs (9 + 0 + 6)/3 = 5
    runs = [write_run(tmp_path / str(n), (1.5 * n, 1.5 * n), (0.0, 6.0), seed=n) for n in (1, 2, 3)]
    (item,) = compare(runs)
    assert item.seeds == (1, 2, 3) and item.label == "cap, κ conformal"
    assert item.earned == pytest.approx((2.0, 1.0, 3.0))  # three seeds: from the lowest to the highest
    assert (item.mean, item.sd) == pytest.approx((2.0, 1.0))
    assert item.paid == pytest.approx((5.0, 5.0, 5.0)) and item.limit == 5.0
    assert (item.planned_violations, item.planned_episodes) == (3, 6)
    assert (item.random_violations, item.random_episodes) == (3, 3)
    assert item.planned.centre == 0.5


def test_only_what_differs_is_named(tmp_path):
    runs = [
        write_run(tmp_path / "a"),
        write_run(tmp_path / "b", settings={"cem": {"population": 40}, "start_steps": 10}),
        write_run(tmp_path / "c", kappa="adam"),
        write_run(tmp_path / "d", method="ppo-lag", kappa=None, settings={"batch": 3}),
    ]
    assert labels(runs) == [
        "cap, κ conformal, population=20", "cap, κ conformal, population=40", "cap, κ adam", "ppo-lag",
    ]  # fmt: skip


def test_presets_are_named_where_there_are_several_instead_of_all_their_settings(tmp_path):
    runs = [write_run(tmp_path / "a"), write_run(tmp_path / "b", preset="paper", settings={"cem": {"population": 500}})]
    assert labels(runs) == ["cap, κ conformal, preset fast", "cap, κ conformal, preset paper"]


def test_accidents_make_no_other_experiment(tmp_path):
    runs = [write_run(tmp_path / "a"), write_run(tmp_path / "b", seed=1, commit="f" * 40, device="cpu in 2 shares")]
    assert [len(group.runs) for group in grouped(runs)] == [2]


def test_tasks_stand_together_in_the_order_in_which_they_come(tmp_path):
    tasks = [("a", "B", 0), ("b", "A", 0), ("c", "B", 1)]
    runs = [write_run(tmp_path / name, task=task, cost_limit=5.0 + seed) for name, task, seed in tasks]
    groups = grouped(runs)
    assert [(group.task, group.runs[0].folder.name) for group in groups] == [("B", "a"), ("B", "c"), ("A", "b")]
    assert groups[1].label == "cap, κ conformal, cost_limit=6.0"


def test_the_same_seed_twice_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"are the same experiment with the same seed, 0: name one of them\."):
        grouped([write_run(tmp_path / "a"), write_run(tmp_path / "b")])


def test_one_seed_has_no_interval(tmp_path, capsys):
    run = write_run(tmp_path / "a")
    print_comparison(compare([run]), [run])
    out = capsys.readouterr().out
    assert "one (0)" in out and "±" not in out.partition("\n")[2].partition("Brackets")[0]
    assert "1 of 2: 50.0 %" in out and "1 of 1" in out


def test_a_run_without_episodes_is_refused(tmp_path):
    run = write_run(tmp_path / "a")
    (tmp_path / "a" / "episodes.jsonl").write_text("")
    with pytest.raises(InputError, match=r"has no episode yet: wait for its first one, or omit it\."):
        compare([run])


def test_the_formats_have_the_same_numbers(tmp_path):
    lines = compare([write_run(tmp_path / str(n), (n, n), seed=n, task="a|b_c&d") for n in (1, 2)])
    table = comparison.markdown(lines).splitlines()
    assert table[2].startswith("| a\\|b_c&d | cap, κ conformal | 2 (1, 2) | 1 [0.6667, 1.333] | 1 ± 0.47 |")
    assert {line.replace("\\|", "").count("|") for line in table} == {len(comparison.HEADINGS) + 1}
    (row,) = csv.DictReader(io.StringIO(comparison.comma_separated(lines)))
    assert row["task"] == "a|b_c&d" and float(row["return"]) == 1.0 and float(row["sd"]) == pytest.approx(2**0.5 / 3.0)
    assert row["planned_violations"] == "2" and row["random_episodes"] == "2" and None not in row.values()
    paper = comparison.latex(lines)
    assert r"a|b\_c\&d & cap, $\kappa$ conformal & 2 (1, 2) &" in paper and r"50.0 \% [" in paper


@pytest.mark.parametrize("task", ["=1+1", "@x", "-2", "+3"])
def test_no_name_becomes_a_formula(task, tmp_path):
    lines = compare([write_run(tmp_path / "a", task=task)])
    (row,) = csv.DictReader(io.StringIO(comparison.comma_separated(lines)))
    assert row["task"] == f"'{task}"


def test_names_of_others_hold_no_control_characters(tmp_path, capsys):
    run = write_run(tmp_path / "a", task="x\x1b[31m\ny")
    lines = compare([run])
    print_comparison(lines, [run])
    texts = [capsys.readouterr().out, *(write(lines) for write in comparison.FORMATS.values())]
    assert not any("\x1b" in text or "\x1b[31m\ny" in text for text in texts)
