"""`capax suite` trains what is not there yet, and prints a table or JSON."""

from __future__ import annotations

import json
import os

import pytest

import capax
from capax.cli.main import main
from capax.training.presets import PRESETS, Preset

TINY = {
    "hidden": 4, "layers": 1, "members": 2, "particles": 2, "population": 4, "elites": 2, "iterations": 1, "horizon": 3,
    "batch": 4, "fit_every": 100, "least_updates": 1, "most_updates": 2, "start_steps": 100, "keep": 0.0,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _tiny_preset():
    capax.register(Preset("tiny-suite", TINY, base="paper"))
    yield
    PRESETS._entries.pop("tiny-suite")


COMMAND = ["suite", "--tasks", "doubleintegrator", "--seeds", "2", "--steps", "300", "--preset", "tiny-suite"]


def test_each_run_is_trained_once(tmp_path, capsys):
    arguments = [*COMMAND, "--out", str(tmp_path), "--json"]
    main(arguments)
    rows = json.loads(capsys.readouterr().out)
    assert [(row["task"], row["method"], row["seeds"]) for row in rows] == [
        ("DoubleIntegrator", "cap", 2),
        ("all tasks", "cap", 2),
    ]
    files = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/episodes.jsonl")}
    assert {path.parent.name for path in files} == {"DoubleIntegrator-cap-0", "DoubleIntegrator-cap-1"}
    main(arguments)
    assert {path: path.stat().st_mtime_ns for path in files} == files
    assert json.loads(capsys.readouterr().out) == rows


def test_the_table_names_tasks_and_intervals(tmp_path, capsys):
    main([*COMMAND[:3], "--seeds", "1", "--steps", "200", "--preset", "tiny-suite", "--out", str(tmp_path)])
    out, err = capsys.readouterr()
    assert "DoubleIntegrator" in out and "all tasks" in out and "[" in out
    assert "1 of 1: DoubleIntegrator, cap, seed 0" in err


@pytest.mark.parametrize(("arguments", "sentence"), [
    (["--tasks", "DoubleIntegrater"], "the suite has no task DoubleIntegrater: did you mean DoubleIntegrator?"),
    (["--methods", "magic"], "the method is magic: choose cap"),
    (["--seeds", "0"], "seeds is 0"),
    (["--tasks", "Docking", "--held-out"], "--tasks and --held-out contradict each other"),
])  # fmt: skip
def test_mistakes_are_one_sentence_and_leave_nothing(arguments, sentence, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["suite", *arguments, "--out", str(tmp_path / "out")])
    assert sentence in capsys.readouterr().err
    assert os.listdir(tmp_path) == []
