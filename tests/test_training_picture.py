"""Does the picture of runs show what their rows say?"""

from __future__ import annotations

import json

import numpy as np
import pytest

from capax.report import training
from capax.runs.run import Run


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """What draws a picture of runs, and gives its panels."""

    def draw(*multipliers):
        figures = []
        monkeypatch.setattr(training.plt, "close", figures.append)
        folders = []
        for number, multiplier in enumerate(multipliers):
            folder = tmp_path / f"{number}"
            folder.mkdir()
            config = dict(task="T", kind="image", method="cap", kappa="adam", seed=number, commit="1234567", preset="paper",
                          cost_limit=0.0, discounted=False, settings={"rssm": {"multiplier": multiplier}})  # fmt: skip
            rows = [
                dict(steps=1000 * at, cost=float(at % 2), violation=at % 2 > 0, kappa=0.5, discounted_return=at)
                | {"return": 0.0}
                for at in (1, 2, 3)
            ]
            (folder / "config.json").write_text(json.dumps(config))
            (folder / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            folders.append(folder)
        assert training.curves([Run(folder) for folder in folders]).startswith(b"\x89PNG")
        return figures[0].axes

    return draw


def test_panels_show_the_rows(drawn):
    earned, paid, kappa = drawn(100.0, 100.0)
    assert [axis.get_title() for axis in (earned, kappa)] == ["discounted return", "κ"]
    assert earned.lines[0].get_xydata().tolist() == [[1, 1], [2, 2], [3, 3]]
    assert paid.collections[0].get_offsets().tolist() == [[1, 1], [3, 1]]  # violations
    assert {*kappa.lines[0].get_ydata()} == {0.5}


def test_a_method_without_kappa_has_no_curve_there(drawn, monkeypatch):
    real = json.dumps
    monkeypatch.setattr(json, "dumps", lambda value: real({**value, "kappa": None} if "steps" in value else value))
    *_, kappa = drawn(100.0)
    assert np.isnan(kappa.lines[0].get_ydata()).all()


def test_kappas_of_different_units_are_shown_in_the_same(drawn):
    *_, kappa = drawn(1.0, 10_000.0)
    assert kappa.get_title() == "κ·m"
    assert [{*line.get_ydata()} for line in kappa.lines] == [{0.5}, {5000.0}]
