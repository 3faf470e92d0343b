"""The rows of the paper's tables: which there are, what makes them, and what decides their state."""

from __future__ import annotations

import json

import pytest

import capax
from benchmarks import same_rows
from benchmarks.figures import paper_rows, stored
from capax.cli.paper import make_row
from capax.cli.train import Train
from capax.core.errors import InputError
from capax.envs.make import make
from capax.paper import protocol
from capax.paper.gridworld import PAPER_RESULTS
from capax.paper.rows import CARRACING, GRIDWORLD, HALFCHEETAH, PRESET, ROWS
from capax.training.methods import METHODS, settings_of
from capax.training.presets import PRESETS, as_table
from capax.training.request import Request, resolve


def test_every_row_of_the_tables_is_there():
    # gridworld: 5 values of κ; each of two tasks: 5 of CAP, CEM, random, and three methods at two lengths
    assert len(ROWS) == 5 + 2 * (5 + 2 + 3 * 2)
    assert {row.task for row in ROWS.values()} == {"gridworld", HALFCHEETAH, CARRACING}
    assert all(row.method in METHODS for row in ROWS.values())
    assert PRESET in PRESETS
    assert {row.agent for row in ROWS.values()} == set(protocol.TAGS)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("halfcheetah-cap-adam", (1456.3, 144.3, 1.7)),
        ("halfcheetah-focops-1m", (1591.4, 160.2, 202.8)),
        ("carracing-cap-kappa-0.1", (35.4, 2.3, 149.0)),
        ("carracing-ppo-200k", (48.8, 224.8, 196.0)),
        ("carracing-random", (3.9, 159.3, None)),
        ("gridworld-kappa-0.05", (0.468, 0.091, 2.22)),
    ],
)
def test_the_papers_numbers(name, numbers):
    row = ROWS[name]
    assert (row.earned, row.paid, row.violations) == numbers


def test_two_rows_are_read_off_one_long_run():
    short, long = ROWS["halfcheetah-ppo-lag-100k"], ROWS["halfcheetah-ppo-lag-1m"]
    assert (short.steps, long.steps, short.run_steps) == (100_000, 1_000_000, 1_000_000)
    assert protocol.folder(short, 5001) == protocol.folder(long, 5001)
    assert protocol.folder(long, 5001).parts == ("runs", "paper", "policy-gradient-1", "halfcheetah-ppo-lag-5001")
    assert protocol.folder(ROWS["halfcheetah-cem"], 5002).name == "halfcheetah-cem-5002"


def test_every_row_has_a_folder_of_its_own_but_for_those_of_one_run():
    folders = {protocol.folder(row, 5001) for row in ROWS.values()}
    assert len(folders) == len(ROWS) - 2 * 3


def test_only_seeds_of_the_protocol_make_rows():
    row = ROWS["halfcheetah-cem"]
    assert protocol.check_seed(row, 5003) == 5003
    for seed in (None, 0, 5006):
        with pytest.raises(InputError, match="5001, 5002, 5003, 5004, 5005"):
            protocol.check_seed(row, seed)
    text = (stored.RESULTS / "PROTOCOL.md").read_text()
    assert f"{protocol.SEEDS[0]} to {protocol.SEEDS[-1]}" in text
    assert all(f"`{agent}`" in text for agent in protocol.TAGS)


def test_no_committed_run_of_the_development_has_a_seed_of_the_protocol():
    paths = [path for path in stored.RESULTS.rglob(stored.CONFIG) if "paper" not in path.parts]
    assert paths
    assert not {json.loads(path.read_text())["seed"] for path in paths} & set(protocol.SEEDS)


def test_the_packaged_states_are_those_of_the_committed_rows():
    assert paper_rows.STATE.read_text() == paper_rows.text(), "run `make figures`"
    assert list(protocol.states()) == list(ROWS)


def test_a_row_without_a_run_is_missing():
    entry = protocol.states()["carracing-cap-kappa-1"]
    assert (entry["state"], entry["ours"], entry["seeds"]) == ("missing", None, [])


def test_earlier_runs_decide_no_state():
    entry = protocol.states()["halfcheetah-ppo-1m"]
    assert entry["state"] == "missing"
    assert entry["earlier"]["seeds"] == [0, 1, 2]


def test_a_row_is_reproduced_if_every_number_lies_within_its_interval():
    row = ROWS["halfcheetah-cap-adam"]
    ours = {"return": [1450.0, 1400.0, 1500.0], "cost": [140.0, 135.0, 144.3], "violations": [2.0, 1.8, 3.0]}
    assert paper_rows.differing_columns(row, ours) == ["violations"]
    assert paper_rows.differing_columns(row, {**ours, "violations": [1.0, 0.0, 2.0]}) == []


def test_a_run_of_the_protocol_gives_its_row_a_state(monkeypatch):
    old = stored.group("halfcheetah/adam")
    monkeypatch.setattr(paper_rows, "protocol_runs", lambda row: list(old))
    entry = paper_rows.state_of(ROWS["halfcheetah-cap-adam"])
    assert (entry["state"], entry["seeds"]) == ("differs", [0, 1, 2])
    assert entry["ours"]["violations"] == pytest.approx([137 / 3, 39.0, 53.0])  # none of the random episodes violates


def test_one_seed_gives_a_row_no_state_and_no_interval(monkeypatch):
    old = stored.group("halfcheetah/adam")
    monkeypatch.setattr(paper_rows, "protocol_runs", lambda row: [old[0]])
    entry = paper_rows.state_of(ROWS["halfcheetah-cap-adam"])
    assert (entry["state"], entry["differing"], entry["seeds"]) == ("missing", [], [0])
    text = paper_rows.numbers(entry["ours"], 1)
    assert text and "[" not in text
    assert "[" in paper_rows.numbers(entry["ours"], 2)


@pytest.mark.parametrize(
    ("name", "group", "keys", "shown"),
    [
        ("halfcheetah-cap-adam", "halfcheetah/adam",
         ("return", "discounted_return", "discounted_cost", "cost"), "1,506 (142) / 150 (1,573) / 45.7"),
        ("carracing-cap-adam", "carracing/worth-0.4",
         ("discounted_return", "return", "cost", "discounted_cost"), "26.2 (41.1), median −3.29 / 0.10"),
    ],
)  # fmt: skip
def test_return_and_cost_are_there_in_both_conventions(name, group, keys, shown):
    # the paper's convention first: undiscounted returns and discounted costs on HalfCheetah, and the reverse on Car-Racing
    runs = stored.group(group)
    figures = paper_rows.figures_of(ROWS[name], runs)
    for figure, key in zip(("return", "other_return", "cost", "other_cost"), keys, strict=True):
        means = [sum(row[key] for row in run.rows[-10:]) / 10 for run in runs]
        assert figures[figure][0] == pytest.approx(sum(means) / len(means), rel=1e-6)
    assert ("median_return" in figures) == name.startswith("carracing")
    assert paper_rows.numbers(figures, 1).startswith(shown)


def test_a_run_that_was_not_made_as_the_protocol_says_is_refused():
    row, run = ROWS["halfcheetah-cap-adam"], stored.run("halfcheetah/adam-0")
    settings = as_table(settings_of("cap", "vector", PRESET))
    config = {**run.config, "preset": PRESET, "settings": settings, "rule": {"least": -1e30}}
    paper_rows.check_protocol(row, 0, run._replace(config=config))
    for name, value in {"preset": "fast", "kappa": "pi", "steps": 50_000, "seed": 1}.items():
        with pytest.raises(ValueError, match=f"{name} is {value}, not"):
            paper_rows.check_protocol(row, 0, run._replace(config={**config, name: value}))
    with pytest.raises(ValueError, match="settings differ from those of the preset"):
        paper_rows.check_protocol(row, 0, run._replace(config={**config, "settings": {**settings, "gamma": 0.9}}))
    with pytest.raises(ValueError, match="rule differs from those of the preset"):
        paper_rows.check_protocol(row, 0, run._replace(config={**config, "rule": {}}))
    with pytest.raises(ValueError, match="it has 99000 of 100000 steps"):
        paper_rows.check_protocol(row, 0, run._replace(config=config, rows=run.rows[:-1]))


@pytest.mark.parametrize("task_id", [HALFCHEETAH, CARRACING])
def test_the_command_makes_runs_that_the_protocol_accepts(task_id, monkeypatch):
    task, configs = make(task_id), []
    monkeypatch.setattr(Train, "run", lambda command: configs.append((command, resolve(request_of(command), task))))
    rows = [row for row in ROWS.values() if row.task == task_id]
    for row in rows:
        make_row(row, 5001, protocol.OUT, None)
    task.close()
    for row, (command, config) in zip(rows, configs, strict=True):
        run = stored.StoredRun("x", json.loads(config.to_json()), ({"steps": row.run_steps},))
        paper_rows.check_protocol(row, 5001, run)
        assert command.out == protocol.folder(row, 5001)


def request_of(command):
    names = ("method", "kappa", "steps", "seed", "preset", "out")
    return Request(env=command.task, loggers=(), **{name: getattr(command, name) for name in names})


def test_the_runs_that_decide_a_tag_have_tasks_methods_and_preset_of_the_rows(monkeypatch, tmp_path):
    calls = []

    def train(env, **options):
        kappa = options.get("kappa")
        rule = "fixed" if isinstance(kappa, float) else kappa
        calls.append((env, options.get("method", "cap"), rule, options.get("preset")))

    monkeypatch.setattr(capax, "train", train)
    monkeypatch.setattr(capax, "resume", lambda *words, **options: None)
    for case in same_rows.cases().values():
        case(tmp_path)
    for row in ROWS.values():
        rule = "fixed" if isinstance(row.kappa, float) else row.kappa
        if row.task == GRIDWORLD:
            wanted = ("capax/Gridworld-v0", "cap", "pi" if rule == "adaptive" else rule, None)
        else:
            wanted = (row.task, row.method, rule, PRESET)
        assert wanted in calls, row.name


def test_the_gridworld_is_compared_by_both_standard_errors():
    # κ = 0: 7.922 with sd 8.511 in 1,000 worlds, 10.23 with sd 10.08 in 100: 2.308 / √(.2692² + 1.008²) = 2.21 > 1.96
    entry = paper_rows.state_of(ROWS["gridworld-kappa-0"])
    assert (entry["state"], entry["differing"]) == ("differs", ["return", "violations"])
    assert PAPER_RESULTS["cap", 0.0][4] == 10.23
    assert "violations" not in paper_rows.state_of(ROWS["gridworld-kappa-0.01"])["differing"]


def test_worlds_of_the_protocol_replace_the_earlier_ones(monkeypatch, tmp_path):
    row = ROWS["gridworld-adaptive"]
    rows = [
        {
            "world": world,
            "method": "cap",
            "rule": "adaptive",
            "return": 0.5,
            "cost": 0.09 + 0.01 * world,
            "violations": count,
        }
        for world in (0, 1)
        for count in (1, 3)
    ]
    monkeypatch.setattr(stored, "RESULTS", tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "episodes.jsonl").write_text("".join(json.dumps(item) + "\n" for item in rows))
    stored.pack(tmp_path / "run", tmp_path / "paper" / "gridworld-1" / "gridworld-adaptive-5002")
    worlds = paper_rows.worlds_of(row)
    assert worlds == (
        {"return": (0.5, 0.0), "cost": (pytest.approx(0.095), pytest.approx(0.005)), "violations": (3.0, 0.0)},
        2,
        [5002],
        "gridworld-1",
    )


def test_runs_of_the_protocol_are_listed_with_code_device_and_time(monkeypatch, tmp_path):
    assert "No run under the protocol" in paper_rows.protocol_runs_table() or (stored.RESULTS / "paper").exists()
    monkeypatch.setattr(stored, "RESULTS", tmp_path)
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "episodes.jsonl").write_text(json.dumps({"time": {"seconds": 1234.4}}) + "\n")
    (folder / "config.json").write_text(json.dumps({"commit": "0123456789", "device": "a GPU"}))
    stored.pack(folder, tmp_path / "paper" / "policy-gradient-1" / "halfcheetah-ppo-5003")
    lines = paper_rows.protocol_runs_table().splitlines()
    assert len(lines) == 3  # two rows are read off this run
    assert "`capax paper halfcheetah-ppo-100k --seed 5003` | 0123456 | a GPU | 1,234 | 1 |" in lines[2]


def test_a_misspelt_row_is_named():
    with pytest.raises(InputError, match=r"did you mean .*halfcheetah-cem"):
        protocol.find_row("halfcheetah-cen")
