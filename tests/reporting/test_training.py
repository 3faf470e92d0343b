"""The picture of runs shows the numbers of their rows."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from capax.reporting import training
from capax.runs.config import RunConfig
from capax.runs.run import Run


def write_run(folder: Path, seed: int, multiplier: float, kappa: float | None) -> Run:
    """A run folder of an image agent with three episodes. The first and the third one violate the limit."""
    config = RunConfig(
        task="T", kind="image", method="cap", steps=3000, seed=seed, gamma=0.99, discounted=False, cost_limit=0.0,
        violation_rate=0.1, kappa="adam", preset="paper", settings={"rssm": {"multiplier": multiplier}}, capacity=3000,
        image=(64, 64, 3), action_low=(-1.0,), action_high=(1.0,), action_shape=(1,), commit="1234567",
    )  # fmt: skip
    rows = [
        {
            "steps": 1000 * k,
            "cost": float(k % 2),
            "violation": k % 2 > 0,
            "kappa": kappa,
            "return": 2 * k,
            "discounted_return": k,
        }
        for k in (1, 2, 3)
    ]
    folder.mkdir()
    (folder / "config.json").write_text(config.to_json())
    (folder / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Run(folder)


@pytest.fixture
def draw_panels(tmp_path, monkeypatch):
    """A function that draws runs with these multipliers and returns the panels of the picture."""

    def draw(*multipliers, kappa=0.5):
        figures = []
        monkeypatch.setattr(training.plt, "close", figures.append)
        runs = [write_run(tmp_path / f"{seed}", seed, multiplier, kappa) for seed, multiplier in enumerate(multipliers)]
        assert training.draw_curves(runs).startswith(b"\x89PNG")
        return figures[0].axes

    return draw


def test_panels_show_the_rows(draw_panels):
    plain, returns, costs, kappa = draw_panels(100.0, 100.0)
    assert [axis.get_title() for axis in (plain, returns, kappa)] == ["return", "discounted return", "κ"]
    assert plain.lines[0].get_xydata().tolist() == [[1, 2], [2, 4], [3, 6]]
    assert returns.lines[0].get_xydata().tolist() == [[1, 1], [2, 2], [3, 3]]
    assert costs.collections[0].get_offsets().tolist() == [[1, 1], [3, 1]]  # violations
    assert {*kappa.lines[0].get_ydata()} == {0.5}


def test_violations_of_random_episodes_are_hollow(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(training.plt, "close", figures.append)
    run = write_run(tmp_path / "run", 0, 1.0, None)
    first, *rest = run.episodes
    rows = [{**first, "phase": "random"}, *rest]
    (run.folder / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    training.draw_curves([run])
    planned, random, *_ = figures[0].axes[2].collections
    assert planned.get_offsets().tolist() == [[3, 1]] and len(planned.get_facecolor()) == 1
    assert random.get_offsets().tolist() == [[1, 1]] and len(random.get_facecolor()) == 0
    assert "hollow: random" in figures[0].axes[2].get_title()


def test_a_method_without_kappa_has_an_empty_kappa_curve(draw_panels):
    *_, kappa = draw_panels(100.0, kappa=None)
    assert np.isnan(kappa.lines[0].get_ydata()).all()


def test_kappas_of_different_units_are_shown_in_one_unit(draw_panels):
    *_, kappa = draw_panels(1.0, 10_000.0)
    assert kappa.get_title() == "κ·m"
    assert [{*line.get_ydata()} for line in kappa.lines] == [{0.5}, {5000.0}]


def test_a_matplotlibrc_changes_nothing(draw_panels, monkeypatch):
    # it may lie in the current folder
    monkeypatch.setitem(matplotlib.rcParams, "text.usetex", True)
    monkeypatch.setitem(matplotlib.rcParams, "axes.facecolor", "red")
    returns, *_ = draw_panels(1.0)
    assert returns.get_facecolor()[:3] == (1.0, 1.0, 1.0) and not returns.title.get_usetex()
    assert matplotlib.rcParams["axes.facecolor"] == "red"


def test_a_formula_in_a_configuration_is_only_a_text(tmp_path):
    run = write_run(tmp_path / "run", 0, 1.0, 0.5)
    config = json.loads((run.folder / "config.json").read_text())
    (run.folder / "config.json").write_text(
        json.dumps(config | {"task": "$x^$", "preset": r"$\frac$", "method": "$^$"})
    )
    assert training.draw_curves([run]).startswith(b"\x89PNG")
