"""A run that is killed at random moments, and resumed each time, loses nothing."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    drill = importlib.import_module("drill")

SHORT = {"calibrated": 3, "ensemble, forks": 3}
LONG = {name: 10 for name in drill.DRILLS if name not in SHORT}


@pytest.mark.parametrize(
    ("name", "kills"), [*SHORT.items(), *(pytest.param(*long, marks=pytest.mark.slow) for long in LONG.items())]
)
def test_a_run_with_many_kills_is_one_without_any(name, kills, tmp_path):
    report = drill.drill(name, kills, seed=0, scratch=tmp_path, limit=1800.0)
    assert report.problems == []
    # every kill hit a living process, and not all of them before its first episode (on a busy machine, most may)
    assert report.kill_phases.total() == kills and report.kill_phases["start"] < kills, report.kill_phases


def test_the_drill_kills_every_kind_of_agent():
    shares = drill.shares(200)
    assert sum(shares.values()) == 200 and min(shares.values()) >= 10 and set(shares) == set(drill.DRILLS)
