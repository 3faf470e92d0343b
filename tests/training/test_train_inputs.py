"""`capax.train` takes environments, data and policies of many kinds, and refuses what cannot be run."""

from __future__ import annotations

import io
import math
import os
import pickle
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib import format as npy
from support import toy_envs
from support.small_settings import TINY_VECTOR
from support.tiny_runs import counting, train_tiny, without_times
from support.toy_envs import Maker, limited

from capax.core.errors import InputError
from capax.data.logged_data import initial_episode
from capax.envs.make import make
from capax.runs.run import Run


def check_refused(tmp_path: Path, *words: str, **options: Any) -> None:
    """Check that a run is refused in these words, and that nothing is written."""
    with pytest.raises(InputError) as error:
        train_tiny(tmp_path / "out", **options)
    message = str(error.value)
    assert all(word in message for word in words), message
    assert not (tmp_path / "out").exists()


# Environments.


def test_episodes_of_different_lengths(tmp_path):
    # five steps until the world ends, in episodes of at most seven
    rows = train_tiny(tmp_path, counting(7, ends=5)).episodes
    assert [row["steps"] for row in rows] == [5, 6, 11]
    assert [row["terminated"] for row in rows] == [True, False, True]


def test_a_cost_function_takes_the_place_of_the_environments(tmp_path):
    run = train_tiny(tmp_path, method="random", cost=lambda obs, action, next_obs, info: next_obs[1] ** 2)
    assert [row["cost"] for row in run.episodes] == [30.0, 30.0, 5.0]  # 1 + 4 + 9 + 16; 1 + 4
    assert run.config.own_cost is True


@pytest.mark.parametrize("options", [{"method": "ppo", "settings": {}}, {"initial_data": "logged"}])
def test_an_endless_environment_needs_a_length_or_a_discount_where_no_random_episode_shows_it(tmp_path, options):
    options = options | ({"initial_data": logged()} if "initial_data" in options else {})
    check_refused(tmp_path, "sets no end", "--episode-steps", "--discounted", env=counting(None), **options)


def test_an_endless_environment_can_be_trained_in_with_a_length_or_a_discount(tmp_path):
    rows = train_tiny(tmp_path / "cut", counting(None), episode_steps=3, method="random").episodes
    assert [row["length"] for row in rows] == [3, 3, 3, 1]
    rows = train_tiny(tmp_path / "ends", counting(None, ends=5), discounted=True).episodes
    assert [row["length"] for row in rows] == [5, 1, 5]


def test_an_endless_discounted_episode_is_cut_where_it_no_longer_counts(tmp_path):
    # 10/(1 − .5) = 20 steps
    run = train_tiny(tmp_path, counting(None), discounted=True, steps=21, settings=TINY_VECTOR | {"gamma": 0.5})
    assert [row["length"] for row in run.episodes] == [6, 20] and run.config.episode_steps == 20


@pytest.mark.parametrize("method", ["cap", "ccem"])
def test_a_limit_is_needed_where_it_is_kept(tmp_path, method):
    check_refused(tmp_path, "--cost-limit", method=method, cost_limit=None)


@pytest.mark.parametrize("method", ["cem", "random"])
def test_a_limit_is_not_needed_where_it_is_not(tmp_path, method):
    run = train_tiny(tmp_path, method=method, cost_limit=None)
    assert run.config.cost_limit is None and [row["violations"] for row in run.episodes] == [0, 0, 0]
    assert "no limit" in str(run)


def test_cem_counts_violations_of_a_limit_that_it_does_not_keep(tmp_path):
    rows = train_tiny(tmp_path, method="cem", cost_limit=65.0).episodes
    assert rows[-1]["violations"] == 2 and rows[-1]["feasible"] == 1.0


def test_plans_without_a_feasible_one_are_warned_of(tmp_path, capsys):
    # every step pays 5: the model learns that, and no plan keeps a limit of 0. κ = 0 rules the penalty out
    learn = TINY_VECTOR | {"least_updates": 200, "most_updates": 200, "learning_rate": 0.03, "start_steps": 40}
    free = {"cost_limit": 0.0, "kappa": 0.0, "cost": lambda *transition: 5.0}
    train_tiny(tmp_path, "capax/Integrator-v0", steps=48, episode_steps=4, settings=learn, **free)
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
        run = train_tiny(tmp_path / str(number), initial_data=data)
        assert [row["phase"] for row in run.episodes] == ["plan"] * 3
        assert run.episodes[0]["model_loss"] is not None
    rows = [without_times(Run(tmp_path / str(number)).episodes) for number in range(3)]
    assert rows[0] == rows[1] == rows[2]


def test_logged_actions_are_taken_to_the_planners_units():
    # −1 … 3 are the environment's bounds
    episode = initial_episode(logged(5), make(counting()))
    np.testing.assert_allclose(episode.action, [[-1.0], [-0.5], [0.0], [0.5], [1.0]])
    assert episode.random and not episode.terminated.any()


def test_flat_actions_and_endings_are_taken(tmp_path):
    data = logged() | {"action": logged()["action"][:, 0], "terminated": np.arange(12) == 11}
    assert train_tiny(tmp_path, initial_data=data).episodes[0]["phase"] == "plan"


@pytest.mark.parametrize(("change", "words"), [
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
def test_bad_initial_data_are_refused(tmp_path, change, words):
    data = {name: value for name, value in (logged() | change).items() if value is not None}
    check_refused(tmp_path, words, initial_data=data)


@pytest.mark.parametrize("data", [5, [], [("obs", 1)], b"data.npz", np.zeros(3)])
def test_initial_data_of_another_kind_are_refused(tmp_path, data):
    check_refused(tmp_path, "initial_data is ", "name an .npz file, or give arrays by their names", initial_data=data)


def test_a_single_transition_is_refused(tmp_path):
    check_refused(tmp_path, "have 1 transitions: give at least 2", initial_data=logged(1))


def test_files_that_hold_no_transitions_are_refused(tmp_path):
    names = ("text.npz", "pickle.npz", "cut.npz", "objects.npz", "one.npy")
    text, pickled, cut, objects, single = (tmp_path / name for name in names)
    text.write_text("hello")
    pickled.write_bytes(pickle.dumps(logged()))
    np.save(single, np.zeros(3))
    np.savez(objects, **(logged() | {"cost": np.array([{}] * 12, object)}))
    cut.write_bytes(objects.read_bytes()[:500])
    for path in (text, pickled, cut, objects):
        check_refused(tmp_path, str(path), "no .npz file of plain arrays", initial_data=path)
    check_refused(tmp_path, "holds one array", initial_data=single)
    check_refused(tmp_path, "is not there", initial_data=tmp_path / "none.npz")
    check_refused(tmp_path, "cannot be read", initial_data=tmp_path)


def test_arrays_that_are_not_needed_are_not_read(tmp_path):
    path = tmp_path / "log.npz"
    np.savez(path, **logged(), frames=np.array([{}], object))  # it could only be unpickled
    assert len(initial_episode(path, make(counting())).reward) == 12
    read: list[str] = []

    class Lazy(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            read.append(name)
            return super().__getitem__(name)

    initial_episode(Lazy(logged() | {"frames": None}), make(counting()))
    assert "frames" not in read


def test_a_pipe_of_transitions_is_refused(tmp_path):
    os.mkfifo(tmp_path / "log.npz")
    check_refused(tmp_path, "is no plain file", initial_data=tmp_path / "log.npz")


@pytest.mark.parametrize("shape", [(2**61, 0), (2**40,), (12, 2**30)])
def test_an_array_that_claims_more_than_its_file_holds_takes_no_memory(tmp_path, shape):
    path = tmp_path / "log.npz"
    np.savez(path, **logged())
    lie = io.BytesIO()
    npy.write_array_header_1_0(lie, {"descr": "<f8", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()} | {"obs.npy": lie.getvalue()}
    with zipfile.ZipFile(path, "w") as file:
        for name, data in members.items():
            file.writestr(name, data)
    tracemalloc.start()
    check_refused(tmp_path, "no .npz file of plain arrays", initial_data=path)
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


def test_an_initial_policy_acts_before_the_model(tmp_path):
    maker = Maker(toy_envs.counting)
    rows = train_tiny(tmp_path, limited(maker, 4), initial_policy=lambda obs: [2.5 - obs[1] / 4.0]).episodes
    assert [row["phase"] for row in rows] == ["random", "random", "plan"]
    actions = np.concatenate(maker.toys[-1].actions[:6])
    np.testing.assert_allclose(actions, [2.5, 2.25, 2.0, 1.75, 2.5, 2.25])  # in the environment's own units


@pytest.mark.parametrize(("policy", "words"), [
    (lambda obs: [1.0, 2.0], "initial_policy returned [1.0, 2.0]: give 1 finite numbers"),
    (lambda obs: [math.nan], "initial_policy returned [nan]"),
    (lambda obs: "left", "initial_policy failed on an observation"),
])  # fmt: skip
def test_an_initial_policy_of_another_kind_is_refused(tmp_path, policy, words):
    with pytest.raises(InputError) as error:
        train_tiny(tmp_path, initial_policy=policy)
    assert words in str(error.value)


# What is refused.


@pytest.mark.parametrize(("options", "words"), [
    ({"method": "capp"}, ["'capp'", "cap, ccem, cem, random"]),
    ({"kappa": "conformant"}, ["'conformant'", "conformal, adam, pi"]),
    ({"kappa": -1.0}, ["kappa is -1.0"]),
    ({"kappa": "nan"}, ["kappa is nan"]),
    ({"violation_rate": 0.0}, ["violation rate is 0.0"]),
    ({"preset": "slow"}, ["'slow'", "choose paper, fast"]),
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
    check_refused(tmp_path, *words, **options)


def test_a_used_folder_is_refused_unless_forced(tmp_path):
    train_tiny(tmp_path, method="random")
    (tmp_path / "notes.txt").write_text("mine")
    before = (tmp_path / "episodes.jsonl").read_text()
    with pytest.raises(
        InputError, match=r"already holds config\.json, episodes\.jsonl: add --resume \(resume=True\) to"
    ):
        train_tiny(tmp_path, method="random", steps=4)
    assert (tmp_path / "episodes.jsonl").read_text() == before
    forced = train_tiny(tmp_path, method="random", steps=4, force=True)
    assert len(forced.episodes) == 1 and (tmp_path / "notes.txt").read_text() == "mine"
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 1
