"""The length of an episode is found in the first random episode that the environment truncates, if nothing else says it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from support.interruption import Stop, stop, stop_in
from support.small_settings import TINY_VECTOR
from support.tiny_runs import without_times

import capax
from capax.core.errors import InputError
from capax.runs.checkpoint import Checkpoints
from capax.runs.run import Run
from capax.training import run_loop
from capax.training.recorder import Recorder

LENGTH = 10
"""Steps after which the environment truncates itself."""
ROW = {
    "episode",
    "steps",
    "phase",
    "return",
    "cost",
    "violation",
    "violations",
    "kappa",
    "length",
    "terminated",
    "time",
}


class Patrol:
    """A plain class, no Gymnasium environment: a noisy walk without a time limit. It truncates itself after `length` steps."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,))
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, length: int | None = LENGTH) -> None:
        self.length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.rng, self.steps = np.random.default_rng(seed), 0
        self.x = self.rng.normal(size=2)
        return self.x.copy(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.x = 0.9 * self.x + 0.1 * float(action[0]) + 0.05 * self.rng.normal(size=2)
        cost = float(np.abs(self.x).sum())
        return self.x.copy(), float(self.x[0]), False, self.steps == self.length, {"cost": cost}


OPTIONS = dict(steps=55, cost_limit=8.0, settings=TINY_VECTOR | dict(start_steps=24))
"""Two random episodes and a part of a third one, and four planned episodes."""


def train_patrol(out: Path, env: Any = Patrol, **options: Any) -> Run:
    """A run in an environment that says nothing about the length of its episodes."""
    return capax.train(env, out=out, **OPTIONS | options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that never stopped."""
    return train_patrol(tmp_path_factory.mktemp("length") / "whole")


def check_same(out: Path, whole: Run) -> None:
    """Check that a run has the rows and the configuration of the one that never stopped."""
    run = Run(out)
    assert without_times(run.episodes) == without_times(whole.episodes) and run.config == whole.config


def test_the_first_truncated_random_episode_shows_the_length(whole, tmp_path):
    configs = []

    def read_config(row: Any) -> None:
        configs.append(json.loads((tmp_path / "config.json").read_text()))

    class Watched(Patrol):
        def step(self, action: Any) -> Any:
            if not configs and not first:
                first.append(json.loads((tmp_path / "config.json").read_text()))
            return super().step(action)

    first: list[Any] = []
    run = train_patrol(tmp_path, Watched, on_episode=read_config)
    assert first[0]["episode_steps"] is None and first[0]["capacity"] == 55
    # the buffer makes room for all steps, and for the rest of an episode that passes them
    assert {(config["episode_steps"], config["capacity"]) for config in configs} == {(LENGTH, 55 + LENGTH)}
    assert without_times(run.episodes) == without_times(whole.episodes)


def test_rows_are_complete(whole):
    rows = whole.episodes
    assert [(row["phase"], row["length"], row["steps"]) for row in rows] == [
        ("random", 10, 10), ("random", 10, 20), ("random", 4, 24), ("plan", 10, 34), ("plan", 10, 44), ("plan", 10, 54),
        ("plan", 10, 64),
    ]  # fmt: skip
    assert [row["episode"] for row in rows] == list(range(7)) and all(row.keys() >= ROW for row in rows)
    assert all(row["feasible"] is not None and row["model_loss"] is not None for row in rows[3:])
    assert rows[-1]["violations"] == sum(row["violation"] for row in rows)


def test_later_rows_are_those_of_a_run_whose_length_was_chosen(whole, tmp_path):
    chosen = train_patrol(tmp_path, episode_steps=LENGTH)
    assert without_times(chosen.episodes) == without_times(whole.episodes)


def test_a_run_that_was_stopped_at_many_points_is_the_one_without_a_stop(whole, tmp_path, monkeypatch):
    points = [(0, 1), (0, 10), (1, 3), (2, 4), (3, 1), (3, 10), (4, 7), (6, 2)]
    for episode, step in points:
        with monkeypatch.context() as patch:
            stop_in(patch, episode=episode, step=step)
            with pytest.raises(Stop):
                train_patrol(tmp_path, resume=True)
    train_patrol(tmp_path, resume=True)
    check_same(tmp_path, whole)
    assert [(row["episode"], row["length"]) for row in Run(tmp_path).interrupted] == points


@pytest.mark.parametrize("episodes", range(1, 7))
def test_a_run_that_was_stopped_between_two_episodes_is_the_one_without_a_stop(episodes, whole, tmp_path):
    # after the first one, its length has just been found
    run = train_patrol(tmp_path, on_episode=lambda row: row["episode"] + 1 < episodes)
    assert len(run.episodes) == episodes and run.config.episode_steps == LENGTH
    capax.resume(run, env=Patrol)
    check_same(tmp_path, whole)


@pytest.mark.parametrize(("owner", "name"), [
    (run_loop, "capacity_of"),  # the length is found, and nothing is written yet
    (Checkpoints, "save"),  # config.json has the length, no checkpoint has the episode
    (Recorder, "_show"),  # the episode is recorded
], ids=["before config.json", "before the checkpoint", "after the row"])  # fmt: skip
def test_a_stop_around_the_episode_that_shows_the_length_changes_nothing(owner, name, whole, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        if name == "save":  # the first checkpoint is written before the first episode
            real, calls = Checkpoints.save, []
            patch.setattr(owner, name, lambda *args: stop() if calls else calls.append(real(*args)))
        else:
            patch.setattr(owner, name, stop)
        with pytest.raises(Stop):
            train_patrol(tmp_path)
    assert Run(tmp_path).config.episode_steps == (None if name == "capacity_of" else LENGTH)
    assert len(Run(tmp_path).episodes) == (name == "_show")
    capax.resume(tmp_path, env=Patrol)
    check_same(tmp_path, whole)


def test_a_longer_run_needs_no_length_again(whole, tmp_path):
    train_patrol(tmp_path)
    longer = capax.resume(tmp_path, env=Patrol, steps=80)
    assert [row["length"] for row in longer.episodes[7:]] == [LENGTH, LENGTH]
    assert without_times(longer.episodes[:7]) == without_times(whole.episodes)
    assert capax.evaluate(longer, env=Patrol, episodes=1).rows[0]["length"] == LENGTH


def test_an_environment_that_never_truncates_stops_after_the_random_steps_and_continues_with_a_length(tmp_path):
    endless = partial(Patrol, None)
    for _ in range(2):  # nothing is lost, and nothing more is learned by another try
        with pytest.raises(InputError) as error:
            train_patrol(tmp_path, endless, resume=True)
        assert str(error.value) == (
            "no random episode of Patrol was truncated, so nothing says how long an episode is: give --episode-steps "
            "(episode_steps=) and --resume (resume=True)."
        )
        assert [(row["phase"], row["length"]) for row in Run(tmp_path).episodes] == [("random", 24)]
    assert Run(tmp_path).config.episode_steps is None
    run = train_patrol(tmp_path, endless, episode_steps=LENGTH, resume=True)
    assert [(row["phase"], row["length"]) for row in run.episodes] == [("random", 24)] + [("plan", 10)] * 4
    assert run.config.episode_steps == LENGTH and run.config.capacity == 55 + LENGTH
    with pytest.raises(InputError, match=r"begun with other settings \(episode_steps 10\): give these again"):
        train_patrol(tmp_path, endless, episode_steps=LENGTH - 1, resume=True)


def test_the_random_method_needs_no_length(tmp_path):
    run = train_patrol(tmp_path, method="random", steps=25, settings={})
    assert [row["length"] for row in run.episodes] == [10, 10, 5] and run.config.episode_steps is None
