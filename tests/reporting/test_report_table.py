"""The table of runs tells conventions, random violations, and rules that differ in more than κ apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capax.reporting.runs import mixed_note, print_table, summaries
from capax.runs.config import RunConfig
from capax.runs.run import Run


def config_of(
    kind: str = "vector", kappa: Any = "conformal", discounted: bool = True, settings: Any = None, **rule: Any
) -> RunConfig:
    shown: dict[str, Any] = {"obs_dim": 2} if kind == "vector" else {"image": (64, 64, 3)}
    return RunConfig(
        task="T", kind=kind, method="cap", steps=30, seed=0, gamma=0.99, discounted=discounted, cost_limit=5.0,
        violation_rate=0.1, kappa=kappa, rule=rule, settings=settings or {}, capacity=30, action_low=(-1.0,),
        action_high=(1.0,), action_shape=(1,), **shown,
    )  # fmt: skip


def write_run(folder: Path, **options: Any) -> Run:
    """A random episode and two planned ones: the first two violate."""
    config = config_of(**options)
    rows = [
        {
            "steps": 10 * n, "phase": "random" if n == 1 else "plan", "return": 100.0 * n, "discounted_return": 10.0 * n,
            "cost": 9.0 - 2.0 * n, "discounted_cost": 9.0 - 2.0 * n, "violation": n < 3, "kappa": 0.5,
        }
        for n in (1, 2, 3)
    ]  # fmt: skip
    folder.mkdir()
    (folder / "config.json").write_text(config.to_json())
    (folder / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Run(folder)


@pytest.mark.parametrize(("options", "both"), [
    ({"discounted": True}, True),  # the limit is on the discounted cost
    ({"discounted": False}, False),
    ({"discounted": False, "kind": "image"}, True),  # the paper's returns are discounted, the limit is not
])  # fmt: skip
def test_returns_of_both_conventions_stand_side_by_side(options, both, tmp_path, capsys):
    run = write_run(tmp_path / "run", **options)
    print_table([run])
    head, row = capsys.readouterr().out.splitlines()[:2]
    assert ("discounted" in head) == both == ("discounted return 20" in str(run)) == ("discounted" in run._repr_html_())
    assert " 200 " in row and (" 20 " in row) == both and "return 200" in str(run)
    (summary,) = summaries([run])
    assert (summary["return"], summary["discounted_return"]) == (200.0, 20.0 if both else None)


def test_random_and_planned_violations_are_two_numbers(tmp_path, capsys):
    print_table([write_run(tmp_path / "run")])
    head, row = capsys.readouterr().out.splitlines()[:2]
    assert "violations planned" in head and "random" in head and "1 of 2" in row and "1 of 1" in row


@pytest.mark.parametrize(("options", "limits"), [
    ({}, True),
    ({"within_episode": False}, False),
    ({"kappa": "adam"}, False),
    ({"discounted": False}, False),  # a budget, with every rule
    ({"discounted": False, "settings": {"undiscounted_limit": "pace"}}, True),
    ({"discounted": False, "kind": "image"}, True),
])  # fmt: skip
def test_which_rules_act_within_an_episode(options, limits):
    assert config_of(**options).limits_within_episode == limits


def test_a_table_of_rules_that_differ_in_more_than_kappa_says_so(tmp_path, capsys):
    conformal, adam = write_run(tmp_path / "one"), write_run(tmp_path / "two", kappa="adam")
    print_table([conformal, adam])
    assert "not like for like: conformal also limits plans" in capsys.readouterr().out
    alike = write_run(tmp_path / "three", within_episode=False)
    print_table([alike, adam])
    assert "not like for like" not in capsys.readouterr().out
    assert mixed_note([config_of(), config_of(kappa=None)]) == ""  # a method without κ is no rule
