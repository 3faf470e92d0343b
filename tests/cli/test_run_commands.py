"""`capax report`, `capax compare`, `capax resume` and `capax evaluate`: what they print of runs, and what they refuse."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.tiny_runs import train_random, train_tiny

from capax.cli.main import main
from capax.runs.run import Run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs: one of random episodes alone, and one that plans its last episode."""
    folder = tmp_path_factory.mktemp("runs")
    return [train_random(folder / "random").folder, train_tiny(folder / "cap").folder]


def copy_without_episodes(run: Path, to: Path) -> Path:
    """A run that has not yet had an episode."""
    to.mkdir()
    (to / "config.json").write_bytes((run / "config.json").read_bytes())
    return to


# report.


def test_the_table_has_a_row_per_run_with_planned_and_random_violations(runs, capsys):
    main(["report", *map(str, runs), "--json"])
    random, cap = json.loads(capsys.readouterr().out)
    # three random episodes of four steps: each pays 10 + 20 + 30 + 40 = 100 > 25
    assert (random["method"], random["episodes"], random["cost"], random["limit"]) == ("random", 3, 100.0, 25.0)
    assert (random["planned_violations"], random["planned_episodes"]) == (0, 0)
    assert (random["random_violations"], random["random_episodes"]) == (3, 3)
    assert cap["method"] == "cap, κ conformal" and cap["planned_episodes"] > 0
    assert cap["planned_episodes"] + cap["random_episodes"] == cap["episodes"] == len(Run(runs[1]).episodes)
    assert cap["steps"] == Run(runs[1]).episodes[-1]["steps"]


def test_the_table_is_printed_as_text(runs, capsys):
    main(["report", *map(str, runs)])
    out, err = capsys.readouterr()
    heading, *rows = out.splitlines()
    assert err == "" and len(rows) == 2 and "violations planned" in heading
    assert rows[0].split()[-6:] == ["0", "of", "0", "3", "of", "3"] and "100 / 25" in rows[0]


def test_a_picture_is_written_with_out(runs, tmp_path, capsys):
    picture = tmp_path / "runs.png"
    main(["report", *map(str, runs), "--out", str(picture)])
    assert capsys.readouterr().out.splitlines()[-1] == f"Written to {picture}"
    pixels = np.asarray(Image.open(io.BytesIO(picture.read_bytes())).convert("RGB"))
    assert min(pixels.shape[:2]) > 300 and len(np.unique(pixels)) > 50
    main(["report", str(runs[0]), "--out", str(picture), "--json"])
    assert len(json.loads(capsys.readouterr().out)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["runs.png"]


def test_a_run_without_episodes_has_a_row_but_no_picture(runs, tmp_path, capsys, refusal):
    empty = copy_without_episodes(runs[0], tmp_path / "empty")
    main(["report", str(empty), "--json"])
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["episodes"], row["steps"], row["return"], row["cost"]) == (0, 0, None, None)
    main(["report", str(empty)])
    assert "0 of 0" in capsys.readouterr().out
    assert "no episode yet" in refusal("report", str(empty), "--out", str(tmp_path / "x.png"))
    assert not (tmp_path / "x.png").exists()


def test_a_report_of_no_run_is_refused(refusal, tmp_path):
    for option in ([], ["--json"], ["--out", str(tmp_path / "x.png")]):
        assert refusal("report", *option).startswith("no run is named: give the folders of one or more runs")
    assert not (tmp_path / "x.png").exists()


@pytest.mark.parametrize("name", ["x.jpg", "x", "nowhere/x.png"])
def test_a_picture_that_cannot_be_written_is_refused_before_anything_is_printed(runs, tmp_path, refusal, name):
    for option in ([], ["--json"]):
        assert "name a .png in a folder that exists" in refusal(
            "report", str(runs[0]), "--out", str(tmp_path / name), *option
        )
    assert not any(tmp_path.iterdir())


# Folders that hold no run.


# compare.


def test_methods_are_compared_as_text_json_and_files(runs, tmp_path, capsys):
    main(["compare", *map(str, runs), "--json"])
    random, cap = json.loads(capsys.readouterr().out)
    assert (random["label"], cap["label"]) == ("random", "cap, κ conformal") and random["seeds"] == [0]
    assert random["paid"]["centre"] == 100.0 and random["random_violations"] == 3
    for ending in ("md", "csv", "tex"):
        main(["compare", *map(str, runs), "--table", str(tmp_path / f"t.{ending}")])
        assert capsys.readouterr().out.splitlines()[-1] == f"Written to {tmp_path / f't.{ending}'}"
        assert "cap, " in (tmp_path / f"t.{ending}").read_text()


@pytest.mark.parametrize("name", ["t.html", "t", "no/t.md"])
def test_a_table_of_another_ending_or_place_is_refused_before_anything_is_printed(runs, tmp_path, refusal, name):
    assert refusal("compare", str(runs[0]), "--table", str(tmp_path / name)).startswith("the table is ")


def test_a_comparison_of_no_run_is_refused(refusal):
    assert refusal("compare").startswith("no run is named")


@pytest.mark.parametrize("command", ["report", "compare", "resume", "evaluate"])
def test_a_folder_without_a_run_is_refused(tmp_path, refusal, command):
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        assert (
            refusal(command, str(folder))
            == f"{folder} holds no config.json: name a folder that capax train has written."
        )
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("command", ["resume", "evaluate"])
def test_a_run_in_an_environment_of_a_function_names_python(runs, refusal, command):
    assert f"capax.{command}(run, env=make)" in refusal(command, str(runs[0]))


@pytest.mark.parametrize("row", ['{"episode": 0}', '{"episode": 0, "phase": "plan", "violation": 1, "return": "x"}'])
@pytest.mark.parametrize("option", [[], ["--json"], ["--out", "runs.png"]])
def test_a_report_of_odd_rows_names_the_file(runs, tmp_path, refusal, monkeypatch, row, option):
    monkeypatch.chdir(tmp_path)
    run = copy_without_episodes(runs[0], tmp_path / "run")
    (run / "episodes.jsonl").write_text(f"{row}\n")
    message = refusal("report", str(run), *option)
    assert message.startswith(f"{run / 'episodes.jsonl'} has a row that capax did not write (")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_row_whose_steps_are_none_does_not_make_a_run_complete(tmp_path, capsys):
    main(["train", "capax/Integrator-v0", "--method", "random", "--steps", "50", "--out", str(tmp_path / "run")])
    path = tmp_path / "run" / "episodes.jsonl"
    (row,) = Run(tmp_path / "run").episodes
    path.write_text(json.dumps(row | {"steps": "fifty"}) + "\n")
    capsys.readouterr()
    with pytest.raises(SystemExit, match="2"):  # it is not the checkpoint's row
        main(["resume", str(tmp_path / "run")])
    assert not capsys.readouterr().out.startswith("already complete")
