"""The committed runs can be read by this version: their configurations, their rows, and what is made of them."""

from __future__ import annotations

import pytest

from benchmarks.figures.stored import CONFIG, RESULTS, unpack
from capax.reporting.runs import summaries
from capax.runs.config import RunConfig
from capax.runs.run import Run

RUNS = sorted(path.parent for path in RESULTS.rglob(CONFIG))


@pytest.mark.parametrize("folder", RUNS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_committed_run_can_be_read(folder, tmp_path):
    unpack(folder, tmp_path)
    run = Run(tmp_path)
    assert isinstance(run.config, RunConfig)
    (summary,) = summaries([run])
    assert summary["episodes"] > 0 and summary["method"].startswith(run.config.method)


def test_there_are_committed_runs():
    assert len(RUNS) >= 50
