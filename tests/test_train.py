"""Does `capax.train` write what it says, refuse what it should, and can what it learned be used again?"""

from __future__ import annotations

import json
import math
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

import capax
from capax.cli import main
from capax.envs.adapt import make
from capax.errors import InputError
from capax.initial import initial_episode
from capax.runs.run import Run

TINY: dict[str, Any] = dict(
    members=2, hidden=8, layers=1, particles=2, batch=32, least_updates=5, most_updates=5, horizon=2, iterations=1,
    population=8, elites=2, start_steps=6,
)  # fmt: skip

CONFIG = {
    "task", "method", "kappa", "violation_rate", "cost_limit", "discounted", "gamma", "steps", "seed", "preset",
    "version", "commit", "episode_steps", "settings", "device",
}  # fmt: skip
ROW = {
    "episode", "steps", "phase", "return", "discounted_return", "cost", "discounted_cost", "limit", "violation",
    "violations", "kappa", "model_loss", "feasible", "time",
}  # fmt: skip
PLANNED = {"planned_cost", "planned_uncertainty", "paid_cost", "residual", "quantile", "k"}


class Counting(gym.Env):
    """Earns 1, 2, 3, … and pays 10, 20, 30, … in its steps; it ends by itself after `ends` of them."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def __init__(self, ends: int | None = None, low: float = -1.0, high: float = 3.0, on_step: Any = None) -> None:
        self.action_space = spaces.Box(low, high, (1,), np.float64)
        self.ends, self.on_step, self.count, self.seen = ends, on_step, 0, []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count, self.at = 0, self.np_random.normal()
        return np.array([self.at, 0.0]), {}

    def step(self, action: Any) -> Any:
        if self.on_step is not None:
            self.on_step()
        self.count += 1
        self.seen.append(float(action[0]))
        obs = np.array([self.at, float(self.count)])
        return obs, float(self.count), self.count == self.ends, False, {"cost": 10.0 * self.count}


def counting(steps: int | None = 4, **parts: Any) -> Callable[[], Any]:
    return lambda: Counting(**parts) if steps is None else TimeLimit(Counting(**parts), steps)


def trained(out: Path, env: Any = None, **options: Any) -> Run:
    """A run of ten steps in episodes of four, of which six are random."""
    given = {"steps": 10, "settings": TINY, "cost_limit": 65.0, **options}
    return capax.train(env or counting(), out=out, **given)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    """CAP with its default rule on the integrator: two random episodes and two planned ones."""
    settings = TINY | {"start_steps": 100}
    return capax.train("capax/Integrator-v0", steps=200, out=tmp_path_factory.mktemp("run"), settings=settings, seed=4)


def refused(tmp_path: Path, *words: str, **options: Any) -> str:
    """What is said of a run that is refused, without anything being written."""
    with pytest.raises(InputError) as error:
        trained(tmp_path / "out", **options)
    said = str(error.value)
    assert all(word in said for word in words), said
    assert not (tmp_path / "out").exists()
    return said


# What is written.


def test_config_is_there_before_the_first_step(tmp_path):
    found = []

    def look() -> None:
        found.append(json.loads((tmp_path / "config.json").read_text()))
        raise RuntimeError("the environment breaks")

    with pytest.raises(RuntimeError, match="breaks"):
        trained(tmp_path, counting(on_step=look), method="random", seed=7)
    assert found[0].keys() >= CONFIG
    assert (found[0]["seed"], found[0]["cost_limit"], found[0]["made_by"]) == (7, 65.0, "function")


def test_config_says_what_was_asked(run):
    config = run.config
    assert config.keys() >= CONFIG
    assert (config["task"], config["method"], config["kappa"]) == ("capax/Integrator-v0", "cap", "conformal")
    assert (config["cost_limit"], config["discounted"], config["episode_steps"]) == (25.0, False, 50)
    assert config["settings"]["cem"]["population"] == 8 and config["settings"]["ensemble"]["hidden"] == 8
    assert config["version"] == capax.__version__


def test_rows_have_the_documented_keys(run):
    rows = run.episodes
    assert [row["phase"] for row in rows] == ["random", "random", "plan", "plan"]
    for row in rows:
        assert row.keys() >= ROW
    for row in rows[2:]:
        assert row.keys() >= ROW | PLANNED
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
    rows = trained(tmp_path, discounted=discounted, settings=TINY | {"gamma": 0.5}).episodes
    assert [row["steps"] for row in rows] == [4, 6, 10] and [row["episode"] for row in rows] == [0, 1, 2]
    assert [row["return"] for row in rows] == [10.0, 3.0, 10.0]
    assert [row["cost"] for row in rows] == [100.0, 30.0, 100.0]
    assert [row["discounted_return"] for row in rows] == [3.25, 2.0, 3.25]
    assert [row["discounted_cost"] for row in rows] == [32.5, 20.0, 32.5]
    assert [row["violation"] for row in rows] == [not discounted, False, not discounted]
    assert [row["violations"] for row in rows] == ([0, 0, 0] if discounted else [1, 1, 2])
    assert [row["limit"] for row in rows] == [65.0] * 3
    assert rows[-1].get("paid_cost") == (32.5 if discounted else 100.0)


def test_the_last_episode_is_played_to_its_end(tmp_path):
    rows = trained(tmp_path, steps=7).episodes
    assert [row["steps"] for row in rows] == [4, 6, 10]


def test_folder_holds_the_run_and_curves(run):
    names = sorted(path.name for path in run.folder.iterdir())
    (events,) = run.folder.glob("events.out.tfevents.*")
    assert names == [".lock", "checkpoints", "config.json", "episodes.jsonl", events.name]
    assert b"discounted_cost" in events.read_bytes()
    kept = sorted(path.name for path in (run.folder / "checkpoints").iterdir())
    assert kept == ["buffer.log", "episode-000003.safetensors", "episode-000004.safetensors"]


def timeless(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "time"}


def test_the_same_seed_gives_the_same_rows_and_another_does_not(tmp_path):
    rows = [
        [timeless(row) for row in trained(tmp_path / str(number), seed=seed).episodes]
        for number, seed in enumerate((0, 0, 1))
    ]
    assert rows[0] == rows[1] != rows[2]


def test_a_run_says_in_a_line_what_it_was(run):
    rows = run.episodes
    mean = sum(row["return"] for row in rows) / 4
    text = repr(run)
    assert text == f"<Run {run}>" and "\n" not in text
    assert "capax/Integrator-v0, cap, seed 4, 4 episodes, 200 steps; last 4: " in text
    assert f"return {mean:.4g}, cost " in text and "(limit 25)" in text and f"{rows[-1]['violations']} viol" in text


# Environments.


def test_episodes_of_different_lengths(tmp_path):
    # five steps until the world ends, in episodes of at most seven
    rows = trained(tmp_path, counting(7, ends=5)).episodes
    assert [row["steps"] for row in rows] == [5, 6, 11]
    assert [row["terminated"] for row in rows] == [True, False, True]


def test_a_cost_function_takes_the_place_of_the_environments(tmp_path):
    run = trained(tmp_path, method="random", cost=lambda obs, action, next_obs, info: next_obs[1] ** 2)
    assert [row["cost"] for row in run.episodes] == [30.0, 30.0, 5.0]  # 1 + 4 + 9 + 16; 1 + 4
    assert run.config["own_cost"] is True


def test_an_endless_environment_needs_a_length_or_a_discount(tmp_path):
    assert "--episode-steps" in refused(tmp_path, "sets no end", "--discounted", env=counting(None))
    rows = trained(tmp_path / "cut", counting(None), episode_steps=3, method="random").episodes
    assert [row["length"] for row in rows] == [3, 3, 3, 1]
    rows = trained(tmp_path / "ends", counting(None, ends=5), discounted=True).episodes
    assert [row["length"] for row in rows] == [5, 1, 5]


def test_an_endless_discounted_episode_is_cut_where_it_no_longer_counts(tmp_path):
    # 10/(1 − .5) = 20 steps
    run = trained(tmp_path, counting(None), discounted=True, steps=21, settings=TINY | {"gamma": 0.5})
    assert [row["length"] for row in run.episodes] == [6, 20] and run.config["episode_steps"] == 20


@pytest.mark.parametrize("method", ["cap", "ccem"])
def test_a_limit_is_needed_where_it_is_kept(tmp_path, method):
    refused(tmp_path, "--cost-limit", method=method, cost_limit=None)


@pytest.mark.parametrize("method", ["cem", "random"])
def test_a_limit_is_not_needed_where_it_is_not(tmp_path, method):
    run = trained(tmp_path, method=method, cost_limit=None)
    assert run.config["cost_limit"] is None and [row["violations"] for row in run.episodes] == [0, 0, 0]
    assert "no limit" in str(run)


def test_cem_counts_violations_of_a_limit_that_it_does_not_keep(tmp_path):
    rows = trained(tmp_path, method="cem", cost_limit=65.0).episodes
    assert rows[-1]["violations"] == 2 and rows[-1]["feasible"] == 1.0


def test_nothing_feasible_is_said(tmp_path, capsys):
    # every step pays 5: the model learns that, and no plan keeps a limit of 0. κ = 0 rules the penalty out
    learn = TINY | {"least_updates": 200, "most_updates": 200, "learning_rate": 0.03, "start_steps": 40}
    free = {"cost_limit": 0.0, "kappa": 0.0, "cost": lambda *seen: 5.0}
    trained(tmp_path, "capax/Integrator-v0", steps=48, episode_steps=4, settings=learn, **free)
    captured = capsys.readouterr()
    warned = [line for line in captured.err.splitlines() if line.startswith("warning:")]
    assert "within the limit of 0" in warned[0] and "raise the cost limit" in warned[0]
    assert captured.out == ""


# How it begins.


def logged(n: int = 12) -> dict[str, Any]:
    """Transitions of the counting environment whose actions fill its bounds of −1 and 3."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(n, 2))
    return dict(
        obs=obs, action=np.linspace(-1.0, 3.0, n)[:, None], reward=obs[:, 0], cost=np.abs(obs[:, 1]), next_obs=obs + 1
    )


def test_logged_transitions_take_the_place_of_the_random_start(tmp_path):
    np.savez(tmp_path / "data.npz", **logged())
    for number, data in enumerate((tmp_path / "data.npz", str(tmp_path / "data.npz"), logged())):
        run = trained(tmp_path / str(number), initial_data=data)
        assert [row["phase"] for row in run.episodes] == ["plan"] * 3
        assert run.episodes[0]["model_loss"] is not None
    rows = [[timeless(row) for row in Run(tmp_path / str(number)).episodes] for number in range(3)]
    assert rows[0] == rows[1] == rows[2]


def test_logged_actions_are_taken_to_the_planners_units():
    # −1 … 3 are the environment's bounds
    episode = initial_episode(logged(5), make(counting()))
    np.testing.assert_allclose(episode.action, [[-1.0], [-0.5], [0.0], [0.5], [1.0]])
    assert episode.random and not episode.terminated.any()


def test_flat_actions_and_endings_are_taken(tmp_path):
    data = logged() | {"action": logged()["action"][:, 0], "terminated": np.arange(12) == 11}
    assert trained(tmp_path, initial_data=data).episodes[0]["phase"] == "plan"


@pytest.mark.parametrize(("change", "said"), [
    ({"cost": None}, "have no 'cost': give the arrays obs, action, reward, cost, next_obs."),
    ({"obs": np.zeros((12, 3))}, "'obs' of the initial data has the shape (12, 3)"),
    ({"next_obs": np.zeros((11, 2))}, "'next_obs' of the initial data has the shape (11, 2)"),
    ({"reward": np.r_[np.zeros(11), np.nan]}, "'reward' of the initial data is not finite in row 11"),
    ({"action": np.full((12, 1), 3.5)}, "action in row 0 of the initial data leaves the bounds"),
    ({"cost": ["dear"] * 12}, "'cost' of the initial data holds no numbers"),
    ({"terminated": np.zeros(3)}, "'terminated' of the initial data has the shape (3,)"),
    ({"reward": [[1.0], [1.0, 2.0]]}, "'reward' of the initial data holds no numbers"),
    ({"reward": 3.0}, "have 0 transitions"),
    ({"cost": np.zeros(12, complex)}, "'cost' of the initial data holds no numbers"),
    ({"cost": np.full(12, 1e39)}, "'cost' of the initial data is not finite in row 0, or too large for float32"),
])  # fmt: skip
def test_bad_initial_data_are_refused(tmp_path, change, said):
    data = {name: value for name, value in (logged() | change).items() if value is not None}
    refused(tmp_path, said, initial_data=data)


@pytest.mark.parametrize("data", [5, [], [("obs", 1)], b"data.npz", np.zeros(3)])
def test_initial_data_of_another_kind_are_refused(tmp_path, data):
    refused(tmp_path, "initial_data is ", "name an .npz file, or give arrays by their names", initial_data=data)


def test_a_single_transition_is_refused(tmp_path):
    refused(tmp_path, "have 1 transitions: give at least 2", initial_data=logged(1))


def test_files_that_hold_no_transitions_are_refused(tmp_path):
    names = ("text.npz", "pickle.npz", "cut.npz", "objects.npz", "one.npy")
    text, pickled, cut, objects, single = (tmp_path / name for name in names)
    text.write_text("hello")
    pickled.write_bytes(pickle.dumps(logged()))
    np.save(single, np.zeros(3))
    np.savez(objects, **(logged() | {"cost": np.array([{}] * 12, object)}))
    cut.write_bytes(objects.read_bytes()[:500])
    for path in (text, pickled, cut, objects):
        refused(tmp_path, str(path), "no .npz file of plain arrays", initial_data=path)
    refused(tmp_path, "holds one array", initial_data=single)
    refused(tmp_path, "is not there", initial_data=tmp_path / "none.npz")
    refused(tmp_path, "cannot be read", initial_data=tmp_path)


def test_an_initial_policy_acts_before_the_model(tmp_path):
    made: list[Any] = []

    def env() -> Any:
        made.append(Counting())
        return TimeLimit(made[-1], 4)

    rows = trained(tmp_path, env, initial_policy=lambda obs: [2.5 - obs[1] / 4.0]).episodes
    assert [row["phase"] for row in rows] == ["random", "random", "plan"]
    np.testing.assert_allclose(made[-1].seen[:6], [2.5, 2.25, 2.0, 1.75, 2.5, 2.25])  # in the environment's own units


@pytest.mark.parametrize(("policy", "said"), [
    (lambda obs: [1.0, 2.0], "initial_policy returned [1.0, 2.0]: give 1 finite numbers"),
    (lambda obs: [math.nan], "initial_policy returned [nan]"),
    (lambda obs: "left", "initial_policy failed on an observation"),
])  # fmt: skip
def test_an_initial_policy_of_another_kind_is_refused(tmp_path, policy, said):
    with pytest.raises(InputError) as error:
        trained(tmp_path, initial_policy=policy)
    assert said in str(error.value)


# What is refused.


@pytest.mark.parametrize(("options", "words"), [
    ({"method": "capp"}, ["'capp'", "cap, ccem, cem, random"]),
    ({"kappa": "conformant"}, ["'conformant'", "conformal, adam, pi"]),
    ({"kappa": -1.0}, ["kappa is -1.0"]),
    ({"kappa": "nan"}, ["kappa is nan"]),
    ({"violation_rate": 0.0}, ["violation rate is 0.0"]),
    ({"preset": "slow"}, ["'slow'", "paper or fast"]),
    ({"settings": {"popuation": 3}}, ["'popuation'", "did you mean population"]),
    ({"settings": {"population": 3.5}}, ["population is 3.5: give a whole number"]),
    ({"settings": {"population": "many"}}, ["population is 'many': give a whole number"]),
    ({"settings": {"exact": 1}}, ["exact is 1: give True or False"]),
    ({"settings": {"elites": 0}}, ["elites is 0"]),
    ({"settings": {"gamma": 1.0}}, ["gamma is 1.0"]),
    ({"cost_limit": -1.0}, ["cost limit is -1.0"]),
    ({"cost_limit": math.nan}, ["cost limit is nan"]),
    ({"steps": 0}, ["steps is 0"]),
    ({"steps": 1.5}, ["steps is 1.5"]),
    ({"seed": -1}, ["seed is -1"]),
    ({"env": "capax/Integrater-v0"}, ["did you mean capax/Integrator-v0"]),
    ({"episode_steps": 9}, ["episode_steps is 9, but"]),
])  # fmt: skip
def test_what_cannot_be_run_is_refused_before_anything_is_written(tmp_path, options, words):
    refused(tmp_path, *words, **options)


def test_a_used_folder_is_refused_unless_forced(tmp_path):
    trained(tmp_path, method="random")
    (tmp_path / "notes.txt").write_text("mine")
    before = (tmp_path / "episodes.jsonl").read_text()
    with pytest.raises(InputError, match=r"already holds config\.json, episodes\.jsonl: choose another folder, or add"):
        trained(tmp_path, method="random", steps=4)
    assert (tmp_path / "episodes.jsonl").read_text() == before
    forced = trained(tmp_path, method="random", steps=4, force=True)
    assert len(forced.episodes) == 1 and (tmp_path / "notes.txt").read_text() == "mine"
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 1


# What was learned is used again.


def test_a_policy_acts_in_the_environments_units(tmp_path):
    low, high = -0.3, 5.0
    run = trained(tmp_path, counting(low=low, high=high))
    policy = capax.load(run)
    for _ in range(3):
        policy.reset()
        actions = np.array([policy(np.array([0.1, step])) for step in range(5)])
        assert actions.shape == (5, 1) and (actions >= low).all() and (actions <= high).all()
    assert policy.said["plan_feasible"] >= 0.0


def test_a_loaded_policy_repeats_itself(run):
    def acted(seed: int) -> list[float]:
        policy = capax.load(run.folder, seed=seed)
        policy.reset()
        return [float(policy([x])[0]) for x in (0.0, 0.1, 0.3)]

    assert acted(0) == acted(0) != acted(1)


def test_a_policy_needs_no_reset_before_its_first_episode(run):
    one, other = capax.load(run), capax.load(run)
    other.reset()
    np.testing.assert_array_equal(one([0.2]), other([0.2]))


@pytest.mark.parametrize("obs", [[0.0, 1.0], [math.nan], []])
def test_a_policy_refuses_other_observations(run, obs):
    with pytest.raises(InputError, match="give the 1 finite numbers"):
        capax.load(run)(obs)


def test_a_random_run_can_be_loaded_and_a_missing_one_is_refused(tmp_path):
    policy = capax.load(trained(tmp_path, method="random"))
    assert -1.0 <= float(policy([0.0, 0.0])[0]) <= 3.0
    with pytest.raises(InputError, match=r"holds no config\.json"):
        capax.load(tmp_path / "none")


def test_a_run_that_never_planned_has_no_policy_yet(tmp_path):
    run = trained(tmp_path, steps=4)
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
    run = trained(tmp_path, settings=TINY | {"gamma": 0.5})
    result = capax.evaluate(run, episodes=3, env=counting())
    assert [row["cost"] for row in result.rows] == [100.0] * 3 and result.mean_discounted_cost == 32.5
    assert result.violations == 3  # 100 is above 65


def test_evaluation_asks_again_for_functions(tmp_path):
    run = trained(tmp_path, method="random", cost=lambda *seen: 0.0)
    with pytest.raises(InputError, match=r"call capax\.evaluate\(run, env=make\)"):
        capax.evaluate(run)
    with pytest.raises(InputError, match=r"call capax\.evaluate\(run, cost=\.\.\.\) with it"):
        capax.evaluate(run, env=counting())


def test_evaluation_refuses_an_environment_of_other_sizes(run, tmp_path):
    with pytest.raises(InputError, match="give the environment that was trained in"):
        capax.evaluate(run, env=counting(None))
    scaled = trained(tmp_path, method="random")
    with pytest.raises(InputError, match="actions between"):
        capax.evaluate(scaled, env=counting(high=4.0))


@pytest.mark.parametrize("options", [{"episodes": 0}, {"episodes": 1.5}, {"seed": -1}])
def test_evaluation_refuses_what_cannot_be_played(run, options):
    with pytest.raises(InputError, match="whole number"):
        capax.evaluate(run, **options)


# The command.


ASKED = [f"{name}={value}" for name, value in TINY.items()]


def stopped(capsys: Any, *arguments: str) -> str:
    """The one line on stderr with which the command refuses these arguments."""
    with pytest.raises(SystemExit) as stop:
        main([*arguments])
    out, err = capsys.readouterr()
    assert stop.value.code == 2 and out == ""
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
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "Integrator" in line)
    assert line.split() == ["capax/Integrator-v0", "25", "undiscounted", "50"]


def test_train_and_evaluate_from_the_command_line(tmp_path, capsys):
    out = tmp_path / "run"
    main(["train", "capax/Integrator-v0", "--steps", "60", "--episode-steps", "10", "--kappa", "0.5", "--preset",
          "fast", "--discounted", "--out", str(out), "--set", *ASKED])  # fmt: skip
    told = capsys.readouterr()
    assert told.out == f"{Run(out)}\n" and "capax/Integrator-v0: 60 steps" in told.err
    config, rows = Run(out).config, Run(out).episodes
    assert (config["preset"], config["kappa"], config["discounted"]) == ("fast", 0.5, True)
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
    said = stopped(capsys, "train", "capax/Integrator-v0", "--out", str(tmp_path / "run"), *arguments)
    assert all(word in said for word in words)
    assert not (tmp_path / "run").exists()


def test_the_command_refuses_what_is_not_there(tmp_path, capsys):
    assert "There is no environment" in stopped(capsys, "train", "Nowhere-v0", "--out", str(tmp_path / "run"))
    assert "holds no config.json" in stopped(capsys, "evaluate", str(tmp_path / "run"))
