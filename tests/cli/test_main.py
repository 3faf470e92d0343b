"""`capax gridworld` and the entry point: what they print, write and refuse."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from support.scripts import PATIENCE_S, script

import capax
from capax.cli.gridworld import FILES, progress
from capax.cli.main import COMMANDS, main
from capax.paper.gridworld import PAPER_RESULTS, Settings

SMALL = ["gridworld", "--worlds", "2", "--iterations", "2", "--samples", "50", "--jobs", "1"]
ROW = ["method", "kappa", "return_mean", "return_sd", "cost_mean", "cost_sd", "violations_mean", "violations_sd",
       "oracle_share"]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a small experiment with every method."""
    folder = tmp_path_factory.mktemp("runs") / "below" / "gridworld"
    main([*SMALL, "--out", str(folder), "--json"])
    return folder


INTERRUPTIBLE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test runner may have been started with it ignored
from capax.cli.main import main
from capax.runtime import watchdog
watchdog.MARGIN_S = 600.0  # on a busy machine it might be the first to end the command, by a kill
if __name__ == "__main__":
    main(sys.argv[1:])
"""


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on stderr with which `capax` refuses these arguments."""
    with pytest.raises(SystemExit) as stop:
        main([*SMALL, *arguments])
    out, err = capsys.readouterr()
    assert stop.value.code == 2
    assert out == "" and err.count("\n") == 1 and err.startswith("capax: ") and err.endswith(".\n")
    return err


# What is printed.


def test_json_is_all_that_is_printed(capsys):
    main([*SMALL, "--methods", "oracle", "0.05", "adaptive", "calibrated", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert [(row["method"], row["kappa"]) for row in rows] == [
        ("oracle", None), ("cap", 0.05), ("cap", "adaptive"), ("calibrated", None)
    ]  # fmt: skip
    assert all(sorted(row) == sorted(ROW) for row in rows)
    assert all(isinstance(row[name], float) for row in rows for name in ROW[2:])


def test_the_table_shows_the_papers_numbers_too(capsys):
    main([*SMALL, "--methods", "oracle", "0.1"])
    lines = capsys.readouterr().out.splitlines()
    (oracle,) = (line for line in lines if line.strip().startswith("oracle"))
    (fixed,) = (line for line in lines if "κ = 0.1" in line)
    assert "100.0 %" in oracle and "–" in oracle
    assert "0.454 ± 0.074" in fixed and "0.70 ± 2.48" in fixed  # the paper's return and violations


def test_without_a_terminal_progress_is_plain_lines_on_stderr(capsys):
    main([*SMALL, "--methods", "oracle", "--json"])
    assert capsys.readouterr().err == "1/2 worlds\n2/2 worlds\n"


def test_progress_of_many_is_ten_lines(capsys):
    assert list(progress(range(1000), 1000, "worlds")) == list(range(1000))
    assert capsys.readouterr().err.splitlines() == [f"{i}00/1000 worlds" for i in range(1, 11)]


def test_on_a_terminal_progress_is_a_bar(capsys, monkeypatch):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    assert list(progress(range(3), 3, "worlds")) == [0, 1, 2]
    err = capsys.readouterr().err
    assert "\x1b[" in err and "3/3" in err


def test_version(capsys):
    main(["--version"])
    assert capsys.readouterr().out == f"capax {capax.__version__}\n"


@pytest.mark.parametrize("module", ["capax", "capax.cli.main"])
def test_module_is_the_command(module):
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"capax {capax.__version__}\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_script_that_completes_commands_is_printed(capsys, shell):
    with pytest.raises(SystemExit) as stop:
        main(["--tyro-print-completion", shell])
    out, err = capsys.readouterr()
    assert stop.value.code in (0, None) and err == ""
    assert all(name in out for name in ("capax", *COMMANDS)) and "cost-limit" in out


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=" ".join)
def test_help_is_printed(capsys, command):
    with pytest.raises(SystemExit) as stop:
        main([*command, "--help"])
    out, err = capsys.readouterr()
    assert stop.value.code in (0, None) and err == ""
    assert out.startswith(f"usage: {' '.join(['capax', *command])} ")


# What is written.


def test_out_holds_the_files_and_nothing_else(folder):
    assert sorted(path.name for path in folder.iterdir()) == sorted((".lock", *FILES))


def test_rows_are_one_json_object_per_line_and_the_table_is_their_mean(folder):
    rows = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    assert len(rows) == 2 * (1 + 6 * 3)  # worlds × (the oracle, and six learners with three policies each)
    table = json.loads((folder / "table.json").read_text())
    last = [row for row in rows if row["method"] == "calibrated" and row["iteration"] == 2]
    (entry,) = (entry for entry in table if entry["method"] == "calibrated")
    assert entry["return_mean"] == pytest.approx(np.mean([row["return"] for row in last]), rel=1e-12)
    assert entry["violations_mean"] == np.mean([row["violations"] for row in last])


def test_table_on_disk_is_the_one_printed(folder, capsys):
    main([*SMALL, "--json"])
    assert capsys.readouterr().out == (folder / "table.json").read_text()


@pytest.mark.parametrize("name", ["figure.png", "world.png"])
def test_pictures_open_and_show_something(folder, name):
    pixels = np.asarray(Image.open(folder / name).convert("RGB"))
    assert min(pixels.shape[:2]) > 300
    assert len(np.unique(pixels @ np.array([1, 256, 65536]))) > 100  # colours
    # no half of the picture is blank
    for half in (*np.array_split(pixels, 2, axis=0), *np.array_split(pixels, 2, axis=1)):
        assert (half != 255).any(-1).mean() > 0.01


@pytest.mark.parametrize("methods", [["oracle"], ["0.3"], ["calibrated", "0.7", "0"]])
def test_pictures_can_be_drawn_for_any_choice_of_methods(tmp_path, methods):
    main([*SMALL, "--worlds", "1", "--iterations", "1", "--out", str(tmp_path), "--json", "--methods", *methods])
    for name in ("figure.png", "world.png"):
        Image.open(io.BytesIO((tmp_path / name).read_bytes())).verify()


# What is refused.


@pytest.mark.parametrize(("arguments", "option"), [
    (["--worlds", "0"], "--worlds"),
    (["--iterations", "-3"], "--iterations"),
    (["--samples", "0"], "--samples"),
    (["--jobs", "0"], "--jobs"),
    (["--seed", "-1"], "--seed"),
    (["--slip", "ice"], "--slip"),
    (["--methods", "oracle", "magic"], "--methods"),
    (["--methods", "-0.5"], "--methods"),
    (["--methods", "nan"], "--methods"),
])  # fmt: skip
def test_bad_settings_are_refused_before_anything_is_written(tmp_path, capsys, arguments, option):
    assert option in refused(capsys, *arguments, "--out", str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("arguments", [["--seed", "abc"], ["--worlds", "1.5"], ["--colour", "red"]])
def test_arguments_that_cannot_be_parsed_are_refused_without_a_traceback(capsys, arguments):
    with pytest.raises(SystemExit) as stop:
        main([*SMALL, *arguments])
    out, err = capsys.readouterr()
    assert stop.value.code == 2 and out == ""
    assert arguments[0] in err and "Traceback" not in err


@pytest.mark.parametrize("below", ["", "deeper", "deeper/still"])
def test_out_that_cannot_be_written_is_refused_at_once(tmp_path, capsys, below):
    file = tmp_path / "file"
    file.write_text("mine")
    assert "--out" in refused(capsys, "--out", str(file / below))
    assert file.read_text() == "mine"


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_overwritten_without_force(tmp_path, capsys, name):
    (tmp_path / name).write_text("precious")
    assert "--force" in refused(capsys, "--out", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "precious"


def test_force_overwrites_these_files_and_no_others(folder, tmp_path):
    out = shutil.copytree(folder, tmp_path / "copy")
    for name in ("table.json", "notes.txt"):
        (out / name).write_text("old")
    main([*SMALL, "--methods", "oracle", "--out", str(out), "--force", "--json"])
    assert json.loads((out / "table.json").read_text())[0]["method"] == "oracle"
    assert (out / "notes.txt").read_text() == "old"


@pytest.mark.parametrize("name", [*FILES, "worlds.jsonl"])
@pytest.mark.parametrize("how", ["--force", "--resume"])
def test_files_of_others_are_not_overwritten_with_force_either(tmp_path, capsys, name, how):
    (tmp_path / name).write_text("precious")
    assert "did not write is not overwritten" in refused(capsys, "--out", str(tmp_path), how)
    assert [path.name for path in tmp_path.iterdir()] == [name]  # not even a lock is there
    assert (tmp_path / name).read_text() == "precious"


def test_a_folder_in_the_place_of_a_file_is_refused_even_with_force(tmp_path, capsys):
    (tmp_path / "table.json").mkdir()
    assert "table.json" in refused(capsys, "--methods", "oracle", "--out", str(tmp_path), "--force")


def test_interrupting_writes_nothing(tmp_path, capsys, monkeypatch):
    def interrupted(settings: Any, done: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("capax.paper.gridworld.run_worlds", interrupted)
    with pytest.raises(SystemExit) as stop:
        main([*SMALL, "--out", str(tmp_path)])
    assert stop.value.code == 130 and [path.name for path in tmp_path.iterdir()] == [".lock"]
    assert capsys.readouterr().err.count("\n") == 1


def test_other_files_in_the_folder_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    main([*SMALL, "--methods", "oracle", "--out", str(tmp_path), "--json"])
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_the_command_refuses_without_a_traceback():
    done = subprocess.run([sys.executable, "-m", "capax", "gridworld", "--worlds", "0"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and "--worlds" in done.stderr


# The paper's table.


@pytest.mark.slow
def test_paper_size(tmp_path, capsys):
    main(["gridworld", "--out", str(tmp_path), "--json"])
    rows: dict[Any, dict[str, Any]] = {
        (row["method"], row["kappa"]): row for row in json.loads(capsys.readouterr().out)
    }
    for kappa in (0.0, 0.01, 0.05, 0.1):
        # two independent means over 100 worlds each: their difference has the variance (sd₁² + sd₂²)/100
        row, (mean, sd) = rows["cap", kappa], PAPER_RESULTS["cap", kappa][4:]
        assert abs(row["violations_mean"] - mean) < 3.0 * sqrt((sd**2 + row["violations_sd"] ** 2) / 100), kappa
    assert 3.0 < rows["cap", "adaptive"]["violations_mean"] < 8.0
    assert rows["calibrated", None]["violations_mean"] == 0.0
    assert rows["calibrated", None]["oracle_share"] >= 0.94


def test_an_empty_folder_name_is_refused(capsys):
    assert "--out is empty" in refused(capsys, "--methods", "oracle", "--out", "")


def test_a_narrow_terminal_gets_whole_numbers_in_two_tables():
    from capax.reporting.gridworld import SIDE_BY_SIDE_WIDTH, text_tables

    row = {"method": "cap", "kappa": 0.1, "oracle_share": 0.9}
    row |= {f"{what}_{of}": 0.5 for what in ("return", "cost", "violations") for of in ("mean", "sd")}
    settings = Settings(worlds=1)
    assert len(text_tables([row], settings, SIDE_BY_SIDE_WIDTH)) == 1
    for table in text_tables([row], settings, 80):
        console = Console(width=80, file=io.StringIO(), record=True)
        console.print(table)
        assert "…" not in console.export_text()


@pytest.mark.parametrize("gap", [0.05, 0.5])
def test_two_interrupts_end_the_command(gap, tmp_path):
    arguments = ["gridworld", "--worlds", "400", "--jobs", "2", "--methods", "0", "--out", str(tmp_path / "out")]
    with script(INTERRUPTIBLE, *arguments) as process:
        assert process.stderr is not None
        for line in process.stderr:  # the first progress line: the workers are at work
            if "/400" in line:
                break
        for _ in range(2):
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(gap)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
