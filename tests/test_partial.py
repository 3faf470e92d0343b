"""Does an experiment that was stopped go on with the worlds that are left, and give the same results?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capax.cli import main
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


class Stop(BaseException):
    """As abrupt as a signal."""


def rows(folder: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (folder / "episodes.jsonl").read_text().splitlines())
    return [{name: value for name, value in row.items() if name != "time"} for row in lines]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The worlds that were really run, of which number 2 stops the process the first time."""
    real, numbers = experiment._run_world, []

    def run_world(settings: Any, number: int) -> Any:
        numbers.append(number)
        if numbers == [0, 1, 2]:
            raise Stop
        return real(settings, number)

    monkeypatch.setattr(experiment, "_run_world", run_world)
    return numbers


@pytest.mark.parametrize("torn", ["", '{"world": 2, "rows": ['])
def test_an_experiment_goes_on_with_the_worlds_that_are_left(tmp_path, ran, capsys, torn):
    with pytest.raises(Stop):
        main([*ARGUMENTS, "--out", str(tmp_path / "cut"), "--resume"])
    assert [json.loads(line).get("world") for line in (tmp_path / "cut/worlds.jsonl").read_text().splitlines()] == [
        None,
        0,
        1,
    ]
    with (tmp_path / "cut/worlds.jsonl").open("a") as file:
        file.write(torn)
    main([*ARGUMENTS, "--out", str(tmp_path / "cut"), "--resume"])
    assert ran == [0, 1, 2, 2, 3, 4] and not (tmp_path / "cut/worlds.jsonl").exists()
    main([*ARGUMENTS, "--out", str(tmp_path / "whole")])
    assert rows(tmp_path / "cut") == rows(tmp_path / "whole")
    for name in ("table.json", "world.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    capsys.readouterr()
    main([*ARGUMENTS, "--out", str(tmp_path / "cut"), "--resume"])
    assert "is complete: " in capsys.readouterr().out and len(ran) == 11


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--seed", "1", "--resume"], "was begun with other settings"),
        (["--resume", "--force"], "contradict each other"),
        ([], "already holds worlds.jsonl"),
    ],
)
def test_what_cannot_go_on_is_refused(tmp_path, ran, capsys, options, words):
    with pytest.raises(Stop):
        main([*ARGUMENTS, "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        main([*ARGUMENTS, "--out", str(tmp_path), *options])
    assert words in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["resume", str(tmp_path)])
    assert "give that command again, with --resume" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]\n", "{}\n5\n", "no JSON\n"])
def test_a_damaged_file_is_refused(tmp_path, capsys, text):
    (tmp_path / "worlds.jsonl").write_text(text)
    with pytest.raises(SystemExit, match="2"):
        main([*ARGUMENTS, "--out", str(tmp_path), "--resume"])
    assert "begin anew with --force" in capsys.readouterr().err
