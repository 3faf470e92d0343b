"""A stopped gridworld experiment is resumed with the missing worlds and gives the same results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capax.cli.main import main
from capax.paper import gridworld as experiment

ARGUMENTS = [
    "gridworld",
    "--worlds",
    "5",
    "--iterations",
    "2",
    "--samples",
    "50",
    "--jobs",
    "1",
    "--methods",
    "0.05",
    "calibrated",
]


class Interruption(BaseException):
    """Stops the process as abruptly as a signal."""


def rows_without_time(folder: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (folder / "episodes.jsonl").read_text().splitlines())
    return [{name: value for name, value in row.items() if name != "time"} for row in lines]


@pytest.fixture
def run_numbers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the worlds that were computed. World 2 stops the process the first time."""
    original, numbers = experiment._run_world, []

    def run_world(settings: Any, number: int) -> Any:
        numbers.append(number)
        if numbers == [0, 1, 2]:
            raise Interruption
        return original(settings, number)

    monkeypatch.setattr(experiment, "_run_world", run_world)
    return numbers


@pytest.mark.parametrize("incomplete_line", ["", '{"world": 2, "rows": ['])
def test_an_experiment_is_resumed_with_the_missing_worlds(tmp_path, run_numbers, capsys, incomplete_line):
    with pytest.raises(Interruption):
        main([*ARGUMENTS, "--out", str(tmp_path / "cut"), "--resume"])
    assert [json.loads(line).get("world") for line in (tmp_path / "cut/worlds.jsonl").read_text().splitlines()] == [
        None,
        0,
        1,
    ]
    with (tmp_path / "cut/worlds.jsonl").open("a") as file:
        file.write(incomplete_line)
    main([*ARGUMENTS, "--out", str(tmp_path / "cut"), "--resume"])
    assert run_numbers == [0, 1, 2, 2, 3, 4] and not (tmp_path / "cut/worlds.jsonl").exists()
    main([*ARGUMENTS, "--out", str(tmp_path / "whole")])
    assert rows_without_time(tmp_path / "cut") == rows_without_time(tmp_path / "whole")
    for name in ("table.json", "world.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    capsys.readouterr()
    main([*ARGUMENTS, "--out", str(tmp_path / "cut"), "--resume"])
    assert "is complete: " in capsys.readouterr().out and len(run_numbers) == 11


@pytest.mark.parametrize(
    ("options", "message_part"),
    [
        (["--seed", "1", "--resume"], "was started with other settings"),
        (["--resume", "--force"], "contradict each other"),
        ([], "already holds worlds.jsonl"),
    ],
)
def test_an_experiment_that_cannot_be_resumed_is_refused(tmp_path, run_numbers, capsys, options, message_part):
    with pytest.raises(Interruption):
        main([*ARGUMENTS, "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        main([*ARGUMENTS, "--out", str(tmp_path), *options])
    assert message_part in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["resume", str(tmp_path)])
    assert "give that command again, with --resume" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]\n", "{}\n5\n", "no JSON\n"])
def test_a_damaged_file_is_refused(tmp_path, capsys, text):
    (tmp_path / "worlds.jsonl").write_text(text)
    (tmp_path / ".lock").touch()  # otherwise the file would be somebody else's
    with pytest.raises(SystemExit, match="2"):
        main([*ARGUMENTS, "--out", str(tmp_path), "--resume"])
    assert "start over with --force" in capsys.readouterr().err
