"""The committed runs can be read by this version: their configurations, their rows, and what is made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from capax.reporting.runs import summaries
from capax.runs.config import RunConfig
from capax.runs.run import Run

RESULTS = Path(__file__).parents[2] / "results"
RUNS = sorted(path.parent for path in RESULTS.glob("*/*/config.json"))


@pytest.mark.parametrize("folder", RUNS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_committed_run_can_be_read(folder):
    run = Run(folder)
    assert isinstance(run.config, RunConfig)
    (summary,) = summaries([run])
    assert summary["episodes"] > 0 and summary["method"].startswith(run.config.method)


def test_there_are_committed_runs():
    assert len(RUNS) >= 30
