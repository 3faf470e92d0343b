"""`capax.train` writes the documented files, what it has learned can be used again, and the command does the same."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.small_settings import TINY_VECTOR
from support.tiny_runs import counting, train_tiny, without_times
from support.toy_envs import Toy

import capax
from capax.cli.main import main
from capax.core.errors import EnvironmentFailed, InputError
from capax.runs.run import Run

CONFIG = {
    "format", "task", "kind", "method", "kappa", "rule", "violation_rate", "cost_limit", "discounted", "gamma", "steps",
    "seed", "preset", "version", "commit", "episode_steps", "settings", "device", "env_kwargs", "own_kappa", "own_cost",
}  # fmt: skip
ROW = {
    "episode", "steps", "phase", "return", "discounted_return", "cost", "discounted_cost", "limit", "violation",
    "violations", "planned_violations", "kappa", "model_loss", "feasible", "time",
}  # fmt: skip
PLANNED_ROW = {"planned_cost", "planned_uncertainty", "paid_cost", "residual", "quantile", "k"}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    """CAP with its default rule on the integrator: two random episodes and two planned ones."""
    settings = TINY_VECTOR | {"start_steps": 100}
    return capax.train("capax/Integrator-v0", steps=200, out=tmp_path_factory.mktemp("run"), settings=settings, seed=4)


# What is written.


def test_config_is_there_before_the_first_step(tmp_path):
    configs = []

    def read_config(toy: Toy) -> None:
        configs.append(json.loads((tmp_path / "config.json").read_text()))
        raise RuntimeError("the environment breaks")

    with pytest.raises(EnvironmentFailed, match="breaks"):
        train_tiny(tmp_path, counting(on_step=read_config), method="random", seed=7)
    (config,) = configs
    assert config.keys() >= CONFIG
    assert (config["seed"], config["cost_limit"], config["made_by"]) == (7, 65.0, "function")


def test_config_says_what_the_run_was_trained_with(run):
    config = run.config
    assert (config.task, config.method, config.kappa) == ("capax/Integrator-v0", "cap", "conformal")
    assert (config.cost_limit, config.discounted, config.episode_steps) == (25.0, False, 50)
    assert config.settings["cem"]["population"] == TINY_VECTOR["population"]
    assert config.settings["ensemble"]["hidden"] == TINY_VECTOR["hidden"]
    assert config.version == capax.__version__ and json.loads(config.to_json()).keys() >= CONFIG


def test_rows_have_the_documented_keys(run):
    rows = run.episodes
    assert [row["phase"] for row in rows] == ["random", "random", "plan", "plan"]
    for row in rows:
        assert row.keys() >= ROW
    for row in rows[2:]:
        assert row.keys() >= ROW | PLANNED_ROW
        assert isinstance(row["model_loss"], float) and 0.0 <= row["feasible"] <= 1.0
        assert row["paid_cost"] == pytest.approx(row["cost"], rel=1e-6)
        assert row["residual"] == pytest.approx(
            (row["paid_cost"] - row["planned_cost"]) / row["planned_uncertainty"], rel=1e-9
        )
    assert rows[0]["model_loss"] is rows[0]["feasible"] is None


@pytest.mark.parametrize("discounted", [False, True])
def test_sums_by_hand(tmp_path, discounted):
    # four steps earn 1 + 2 + 3 + 4 = 10 and pay ten times that; with γ = .5, 1 + 1 + .75 + .5 = 3.25. The limit of 65 is
    # below 100 and above 32.5. Steps: 4, then 2 of 6 random ones, which are cut short there (1 + 2; 1 + 1), then 4
    rows = train_tiny(tmp_path, discounted=discounted, settings=TINY_VECTOR | {"gamma": 0.5}).episodes
    assert [row["steps"] for row in rows] == [4, 6, 10] and [row["episode"] for row in rows] == [0, 1, 2]
    assert [row["return"] for row in rows] == [10.0, 3.0, 10.0]
    assert [row["cost"] for row in rows] == [100.0, 30.0, 100.0]
    assert [row["discounted_return"] for row in rows] == [3.25, 2.0, 3.25]
    assert [row["discounted_cost"] for row in rows] == [32.5, 20.0, 32.5]
    assert [row["violation"] for row in rows] == [not discounted, False, not discounted]
    assert [row["violations"] for row in rows] == ([0, 0, 0] if discounted else [1, 1, 2])
    assert [row["planned_violations"] for row in rows] == ([0, 0, 0] if discounted else [0, 0, 1])
    assert [row["limit"] for row in rows] == [65.0] * 3
    assert rows[-1].get("paid_cost") == (32.5 if discounted else 100.0)


def test_the_last_episode_is_played_to_its_end(tmp_path):
    rows = train_tiny(tmp_path, steps=7).episodes
    assert [row["steps"] for row in rows] == [4, 6, 10]


def test_folder_holds_the_run_and_curves(run):
    names = sorted(path.name for path in run.folder.iterdir())
    (events,) = run.folder.glob("events.out.tfevents.*")
    assert names == [".lock", "checkpoints", "config.json", "episodes.jsonl", events.name]
    assert b"discounted_cost" in events.read_bytes()
    kept = sorted(path.name for path in (run.folder / "checkpoints").iterdir())
    assert kept == ["buffer.log", "buffer.parity", "episode-000003.safetensors", "episode-000004.safetensors"]


def test_the_same_seed_gives_the_same_rows_and_another_does_not(tmp_path):
    one, same, other = (
        without_times(train_tiny(tmp_path / str(number), seed=seed).episodes) for number, seed in enumerate((0, 0, 1))
    )
    assert one == same != other


def test_a_run_says_in_a_line_what_it_was(run):
    rows = run.episodes
    mean = sum(row["return"] for row in rows) / 4
    text = str(run)
    assert repr(run) == f"Run('{run.folder}')" and "\n" not in text
    assert "capax/Integrator-v0, cap, seed 4, 4 episodes, 200 steps; last 4: " in text
    planned, total = rows[-1]["planned_violations"], rows[-1]["violations"]
    assert f"return {mean:.4g}, cost " in text and "(limit 25)" in text
    assert f"; {planned} violation" in text and f" in planned episodes, {total - planned} in random ones" in text
    assert text.endswith(f"; at most {rows[-1]['violation_bound']:.0%} of the planned ones by the rule's count")


# What was learned is used again.


def test_a_policy_acts_in_the_environments_units(tmp_path):
    low, high = -0.3, 5.0
    run = train_tiny(tmp_path, counting(low=low, high=high))
    policy = capax.load(run)
    for _ in range(3):
        policy.reset()
        actions = np.array([policy(np.array([0.1, step])) for step in range(5)])
        assert actions.shape == (5, 1) and (actions >= low).all() and (actions <= high).all()
    assert policy.metrics["plan_feasible"] >= 0.0


def test_a_loaded_policy_repeats_itself(run):
    def actions(seed: int) -> list[float]:
        policy = capax.load(run.folder, seed=seed)
        policy.reset()
        return [float(policy([x])[0]) for x in (0.0, 0.1, 0.3)]

    assert actions(0) == actions(0) != actions(1)


def test_a_policy_needs_no_reset_before_its_first_episode(run):
    one, other = capax.load(run), capax.load(run)
    other.reset()
    np.testing.assert_array_equal(one([0.2]), other([0.2]))


@pytest.mark.parametrize("obs", [[0.0, 1.0], [math.nan], []])
def test_a_policy_refuses_other_observations(run, obs):
    with pytest.raises(InputError, match="give the 1 finite numbers"):
        capax.load(run)(obs)


def test_a_random_run_can_be_loaded_and_a_missing_one_is_refused(tmp_path):
    policy = capax.load(train_tiny(tmp_path, method="random"))
    assert -1.0 <= float(policy([0.0, 0.0])[0]) <= 3.0
    with pytest.raises(InputError, match=r"holds no config\.json"):
        capax.load(tmp_path / "none")


def test_a_run_that_never_planned_has_no_policy_yet(tmp_path):
    run = train_tiny(tmp_path, steps=4)
    with pytest.raises(InputError, match="has not learned a policy yet"):
        capax.load(run)


def test_a_damaged_policy_gives_way_to_the_one_before_and_nothing_is_moved(run, tmp_path):
    copy = Path(shutil.copytree(run.folder, tmp_path / "copy"))
    newest, before = sorted((copy / "checkpoints").glob("*.safetensors"), reverse=True)
    newest.write_bytes(newest.read_bytes()[:500])
    with pytest.warns(RuntimeWarning, match="episode-000004.* is damaged"):
        policy = capax.load(copy)
    assert np.isfinite(policy([0.5])).all() and newest.exists()
    before.write_bytes(b"")
    with pytest.warns(RuntimeWarning), pytest.raises(InputError, match="holds no whole checkpoint"):
        capax.load(copy)


def test_evaluation_repeats_itself_and_sums_its_rows(run):
    one, same, other = (capax.evaluate(run, episodes=2, seed=seed) for seed in (0, 0, 1))
    assert one == same and one.rows != other.rows
    assert one.mean_return == pytest.approx(sum(row["return"] for row in one.rows) / 2)
    assert (one.limit, one.discounted, one.video) == (25.0, False, None)
    assert one.violations == sum(row["cost"] > 25.0 for row in one.rows)
    assert one.rows[0]["cost"] != run.episodes[0]["cost"]


def test_evaluation_by_hand(tmp_path):
    run = train_tiny(tmp_path, settings=TINY_VECTOR | {"gamma": 0.5})
    result = capax.evaluate(run, episodes=3, env=counting())
    assert [row["cost"] for row in result.rows] == [100.0] * 3 and result.mean_discounted_cost == 32.5
    assert result.violations == 3  # 100 is above 65


def test_evaluation_needs_the_functions_again(tmp_path):
    run = train_tiny(tmp_path, method="random", cost=lambda *transition: 0.0)
    with pytest.raises(InputError, match=r"call capax\.evaluate\(run, env=make\)"):
        capax.evaluate(run)
    with pytest.raises(InputError, match=r"call capax\.evaluate\(run, cost=\.\.\.\) with it"):
        capax.evaluate(run, env=counting())


def test_evaluation_refuses_an_environment_of_other_sizes(run, tmp_path):
    with pytest.raises(InputError, match="give the environment that was trained in"):
        capax.evaluate(run, env=counting(None))
    scaled = train_tiny(tmp_path, method="random")
    with pytest.raises(InputError, match="actions between"):
        capax.evaluate(scaled, env=counting(high=4.0))


@pytest.mark.parametrize("options", [{"episodes": 0}, {"episodes": 1.5}, {"seed": -1}])
def test_evaluation_refuses_what_cannot_be_played(run, options):
    with pytest.raises(InputError, match="whole number"):
        capax.evaluate(run, **options)


# The command.


SETTINGS = [f"{name}={value}" for name, value in TINY_VECTOR.items()]


def refusal(capsys: Any, *arguments: str) -> str:
    """The one line on stderr with which the command refuses these arguments."""
    with pytest.raises(SystemExit) as exit_:
        main([*arguments])
    out, err = capsys.readouterr()
    assert exit_.value.code == 2 and out == ""
    assert err.startswith("capax: ") and err.count("\n") == 1 and "Traceback" not in err
    return err


def test_tasks_are_listed_as_json(capsys):
    main(["tasks", "--json"])
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["capax/Integrator-v0"] == {
        "id": "capax/Integrator-v0", "limit": 25.0, "discounted": False, "episode_steps": 50
    }  # fmt: skip


def test_tasks_are_listed_as_text(capsys):
    main(["tasks"])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("capax/Integrator-v0"))
    assert line.split() == ["capax/Integrator-v0", "25", "undiscounted", "50"]


def test_train_and_evaluate_from_the_command_line(tmp_path, capsys):
    out = tmp_path / "run"
    main(["train", "capax/Integrator-v0", "--steps", "60", "--episode-steps", "10", "--kappa", "0.5", "--preset",
          "fast", "--discounted", "--out", str(out), "--set", *SETTINGS])  # fmt: skip
    captured = capsys.readouterr()
    assert captured.out == f"{Run(out)}\n" and "capax/Integrator-v0: 60 steps" in captured.err
    config, rows = Run(out).config, Run(out).episodes
    assert (config.preset, config.kappa, config.discounted) == ("fast", 0.5, True)
    assert {row["kappa"] for row in rows if row["phase"] == "plan"} == {0.5}
    main(["evaluate", str(out), "--episodes", "2", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert len(result["episodes"]) == 2 and result["limit"] == 25.0 and result["discounted"] is True
    main(["evaluate", str(out), "--episodes", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[0].startswith("episode 0  return ") and lines[1].startswith("mean of 1: ")


@pytest.mark.parametrize(("arguments", "words"), [
    (["--discounted", "--undiscounted"], ["--discounted and --undiscounted contradict each other"]),
    (["--set", "popuation=3"], ["did you mean population"]),
    (["--set", "population"], ["write NAME=VALUE"]),
    (["--kappa", "big"], ["kappa is 'big'"]),
    (["--steps", "0"], ["steps is 0"]),
    (["--initial-data", "nowhere.npz"], ["nowhere.npz is not there"]),
])  # fmt: skip
def test_the_command_refuses_in_one_sentence(tmp_path, capsys, arguments, words):
    message = refusal(capsys, "train", "capax/Integrator-v0", "--out", str(tmp_path / "run"), *arguments)
    assert all(word in message for word in words)
    assert not (tmp_path / "run").exists()


def test_the_command_refuses_what_is_not_there(tmp_path, capsys):
    assert "there is no environment" in refusal(capsys, "train", "Nowhere-v0", "--out", str(tmp_path / "run"))
    assert "holds no config.json" in refusal(capsys, "evaluate", str(tmp_path / "run"))
