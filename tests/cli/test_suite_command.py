"""`capax suite` trains what is not there yet, and prints a table or JSON."""

from __future__ import annotations

import json
import os

import pytest
from support.scripts import PATIENCE_S, script, wait_until

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


RANDOM = ["suite", "--tasks", "DoubleIntegrator", "--methods", "random", "--seeds", "1", "--steps", "100", "--json"]


def test_random_actions_have_a_score_of_their_own(tmp_path, capsys):
    main([*RANDOM, "--out", str(tmp_path)])
    assert json.loads(capsys.readouterr().out)[0]["method"] == "random"


def test_runs_without_a_planned_episode_are_one_sentence(tmp_path, refusal):
    arguments = [*COMMAND[:3], "--seeds", "1", "--steps", "60", "--preset", "tiny-suite", "--out", str(tmp_path)]
    with pytest.raises(SystemExit):
        main(arguments)
    message = refusal(*arguments)
    assert message.startswith("DoubleIntegrator has no planned episode after ") and message.endswith(
        "give more --steps."
    )


ODD_ROWS = [
    {}, {"steps": "x"}, {"steps": 10**400}, {"return": None}, {"cost": "\x1b[2J"}, {"time": None}, {"time": {"seconds": "x"}},
    {"phase": None, "return": 1e308}, {"violation": [1]},
]  # fmt: skip


@pytest.mark.parametrize("changes", ODD_ROWS, ids=str)
def test_rows_that_capax_did_not_write_are_used_or_refused_in_a_sentence(changes, tmp_path, capsys):
    folder = tmp_path / "DoubleIntegrator-random-0"
    capax.train("capax-suite/DoubleIntegrator-v0", method="random", steps=100, out=folder, loggers=[])
    rows = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    rows[-1] = rows[-1] | changes if changes else {}
    (folder / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    capsys.readouterr()
    code = None
    try:
        main([*RANDOM, "--out", str(tmp_path)])
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    if code is None:
        assert json.loads(out)
    else:
        assert code == 2 and err.count("\n") == 1 and err.startswith("capax: ") and "\x1b" not in err


def test_a_folder_that_holds_another_run_is_refused(tmp_path, refusal):
    folder = tmp_path / "DoubleIntegrator-random-0"
    capax.train("capax/Integrator-v0", method="random", steps=100, out=folder, loggers=[])
    assert "holds a run of capax/Integrator-v0 with the method random" in refusal(*RANDOM, "--out", str(tmp_path))


def test_a_signal_says_how_to_continue(tmp_path):
    code = f"import sys; from capax.cli.main import main; main({[*RANDOM[:-2], '1e7', '--out', str(tmp_path)]})"
    with script(code) as child:
        wait_until((tmp_path / "DoubleIntegrator-random-0" / "episodes.jsonl").exists)
        child.terminate()
        _, err = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 143
    assert (
        err.splitlines()[-1]
        == f"capax: terminated; finished episodes are safe in {tmp_path}; continue with the same command"
    )
