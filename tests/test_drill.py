"""Does a run that is killed at random moments, and resumed each time, lose anything?"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("drill", Path(__file__).parents[1] / "benchmarks" / "drill.py")
assert SPEC is not None and SPEC.loader is not None
drill = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(drill)


@pytest.mark.parametrize(("name", "kills"), drill.shares(20).items())
def test_nothing_is_lost(name, kills, tmp_path):
    report = drill.drill(name, kills, seed=0, scratch=tmp_path, limit=240.0)
    assert report.problems == []
    # every kill met a process that lived, and not all of them before its first episode (on a busy machine, most may)
    assert report.fell.total() == kills and report.fell["start"] < kills, report.fell
