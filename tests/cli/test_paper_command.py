"""`capax paper`: the list of rows, and what a row's run is."""

from __future__ import annotations

import json

import pytest

from capax.cli.gridworld import Gridworld
from capax.cli.main import main
from capax.cli.paper import cells
from capax.cli.train import Train
from capax.paper import protocol
from capax.paper.rows import PRESET, ROWS, PaperRow
from capax.runs.run import Run


def test_the_list_shows_every_row_with_its_state(capsys):
    main(["paper"])
    text = capsys.readouterr().out
    assert all(name in text for name in ROWS)
    lines = {line.split()[0]: line for line in text.splitlines() if line.split()[0] in ROWS}
    for name, entry in protocol.states().items():
        assert entry["state"] in lines[name]
        assert entry["tag"] in lines[name]
    assert f"{len(ROWS)} rows" in text
    assert "other return" in text


def test_a_line_shows_both_conventions():
    names = ("return", "cost", "violations", "random_violations", "other_return", "other_cost")
    ours = {name: [float(number), 0.0, 0.0] for number, name in enumerate(names, 1)}
    entry = {**protocol.states()["halfcheetah-cem"], "ours": ours, "seeds": [5001]}
    assert cells(entry)[4:10] == ["1", "2", "3", "4", "5", "6"]


def test_the_list_for_programs(capsys):
    main(["paper", "--list", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(ROWS)
    assert {"state", "seeds", "preset", "tag", "paper", "ours"} <= set(rows[0])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["halfcheetah-cem"], "--seed is missing"),
        (["halfcheetah-cem", "--seed", "0"], "--seed is 0"),
        (["cem", "--seed", "5001"], "the paper's tables have no row cem"),
        (["halfcheetah-cem", "--list"], "--list and a name contradict each other"),
        (["--seed", "5001"], "name the row too"),
        (["halfcheetah-cem", "--seed", "5001", "--json"], "omit --json"),
    ],
)
def test_a_wrong_request_is_one_sentence(words, sentence, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["paper", *words])
    assert stop.value.code == 2
    assert sentence in capsys.readouterr().err


def test_a_row_is_trained_as_the_protocol_says(monkeypatch, tmp_path):
    commands = []
    monkeypatch.setattr(Train, "run", lambda self: commands.append(self))
    main(["paper", "carracing-cap-kappa-0.1", "--seed", "5002", "--out", str(tmp_path)])
    (command,) = commands
    assert (command.task, command.method, command.kappa) == ("capax/CarRacingSkid-v0", "cap", "0.1")
    assert (command.steps, command.seed, command.preset, command.resume) == (200_000, 5002, PRESET, True)
    assert command.out == tmp_path / "planning-images-1" / "carracing-cap-kappa-0.1-5002"
    assert command.set == ()


def test_a_row_of_the_gridworld_is_its_experiment(monkeypatch, tmp_path):
    commands = []
    monkeypatch.setattr(Gridworld, "run", lambda self: commands.append(self))
    for name in ("gridworld-adaptive", "gridworld-kappa-0.05"):
        main(["paper", name, "--seed", "5001", "--out", str(tmp_path)])
    assert [command.methods for command in commands] == [("oracle", "adaptive"), ("oracle", "0.05")]
    assert [(command.worlds, command.seed, command.resume) for command in commands] == [(100, 5001, True)] * 2
    assert commands[0].settings.methods == ("oracle", "adaptive")


def test_a_row_is_made_once(monkeypatch, tmp_path, capsys):
    row = PaperRow("tiny", "capax/Integrator-v0", "random", None, 100, 100, 0.0, 0.0, None, "random")
    monkeypatch.setitem(ROWS, "tiny", row)
    words = ["paper", "tiny", "--seed", "5001", "--out", str(tmp_path)]
    main(words)
    folder = tmp_path / "random-1" / "tiny-5001"
    rows = Run(folder).episodes
    assert rows[-1]["steps"] >= 100
    assert Run(folder).config.seed == 5001
    main(words)
    assert "already complete" in capsys.readouterr().out
    assert Run(folder).episodes == rows
