"""Is what was paid in an interrupted episode kept, counted once, and played again as it was?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
from stopping import GRADIENT, Counting, Stop, counted, stop_in, timeless

import capax
from capax import recording, training
from capax.runs import journal
from capax.runs.run import INTERRUPTED, Run
from capax.types import Spec

# What an interrupted episode leaves.


def test_what_was_paid_in_an_interrupted_episode_is_kept(tmp_path, monkeypatch):
    # two steps earn 1 + 2 and pay 10 + 20, above the limit of 25; with γ = .99, 2.98 and 29.8
    with monkeypatch.context() as patch:
        stop_in(patch, episode=1, step=2)
        with pytest.raises(Stop):
            counted(tmp_path)
    (row,) = Run(tmp_path).interrupted
    assert row == {
        "episode": 1, "steps": 4, "phase": "random", "length": 2, "return": 3.0, "discounted_return": pytest.approx(2.98),
        "cost": 30.0, "discounted_cost": pytest.approx(29.8), "limit": 25.0, "violation": True, "reason": "stopped",
    }  # fmt: skip
    run = capax.resume(tmp_path, env=Counting)
    assert len(run.episodes) == 3 and run.interrupted == [row] and not (tmp_path / "running.jsonl").exists()
    assert str(run).endswith("3 violations; 1 more interrupted, with 1 violation")


def test_a_killed_process_has_written_down_every_step(tmp_path, monkeypatch):
    # nothing is done on the way out, as after kill -9
    with monkeypatch.context() as patch:
        stop_in(patch, episode=1, step=3)
        patch.setattr(training, "interrupted", lambda *_: None)
        with pytest.raises(Stop):
            counted(tmp_path)
    assert Run(tmp_path).interrupted == []
    run = capax.resume(tmp_path, env=Counting)
    assert [(row["episode"], row["length"], row["cost"], row["reason"]) for row in run.interrupted] == [
        (1, 3, 60.0, "killed")
    ]


def test_each_interruption_counts_once(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_in(patch, episode=1, step=1)
        with pytest.raises(Stop):
            counted(tmp_path)
        for _ in range(2):
            with pytest.raises(Stop):
                capax.resume(tmp_path, env=Counting)
    run = capax.resume(tmp_path, env=Counting)
    assert [row["length"] for row in run.interrupted] == [1, 1, 1] and len(run.episodes) == 3


def test_what_was_paid_in_episodes_side_by_side_is_kept(tmp_path, monkeypatch):
    # of two episodes that are played together, the one has taken two steps and the other one
    options = dict(method="ppo", settings=GRADIENT | dict(batch=8), steps=16)
    whole = timeless(counted(tmp_path / "whole", **options).episodes)
    real, taken = recording.Recorder.step_ahead, []

    def stopped(self: Any, ahead: int, action: Any, at: Any) -> None:
        real(self, ahead, action, at)
        taken.append(self.number + ahead)
        if taken.count(2) == 2:
            raise Stop

    out = tmp_path / "cut"
    with monkeypatch.context() as patch:
        patch.setattr(recording.Recorder, "step_ahead", stopped)
        with pytest.raises(Stop):
            counted(out, **options)
    left = [
        (row["episode"], row["steps"], row["length"], row["cost"], row["violation"]) for row in Run(out).interrupted
    ]
    assert left == [(2, 8, 2, 30.0, True), (3, 8, 1, 10.0, False)]
    run = capax.resume(out, env=Counting)
    assert timeless(run.episodes) == whole and len(run.interrupted) == 2 and not (out / "running.jsonl").exists()


def test_what_was_killed_while_it_wrote_down_interrupted_episodes_writes_the_others(tmp_path):
    spec, head = Spec(25.0, 0.99, False, 4), {"steps": 0, "phase": "plan", "first": 0, "after": 0}
    lines = [json.dumps({"episode": number, **head}) for number in range(3)]
    lines += [json.dumps([1.0, 10.0 * (ahead + 1), 0, 0, *([ahead] * bool(ahead))]) for ahead in range(3)]
    (tmp_path / journal.RUNNING).write_text("\n".join(lines) + "\n")
    traces = journal.left_over(tmp_path)
    journal.count(tmp_path, traces, 25.0, spec, "killed")
    whole = (tmp_path / INTERRUPTED).read_bytes()
    assert [json.loads(line)["cost"] for line in whole.splitlines()] == [10.0, 20.0, 30.0]
    for cut in range(len(whole)):
        (tmp_path / INTERRUPTED).write_bytes(whole[:cut])
        journal.count(tmp_path, traces, 25.0, spec, "killed")
        assert (tmp_path / INTERRUPTED).read_bytes() == whole


def test_an_episode_whose_row_was_missed_is_not_interrupted(tmp_path, monkeypatch):
    # stopped between the checkpoint and the row: the episode is safe, and its row comes from the checkpoint
    whole = timeless(counted(tmp_path / "whole").episodes)
    with monkeypatch.context() as patch:
        patch.setattr(recording.folder, "append", lambda *_: (_ for _ in ()).throw(Stop))
        with pytest.raises(Stop):
            counted(tmp_path / "cut")
    assert Run(tmp_path / "cut").episodes == []
    run = capax.resume(tmp_path / "cut", env=Counting)
    assert timeless(run.episodes) == whole and run.interrupted == []


# Environments that a seed does not determine.


class Drifting(Counting):
    """Its noise comes from nowhere that a seed reaches."""

    where = "step"
    draws = np.random.default_rng(0)

    def noise(self, here: str) -> Any:
        return self.draws.normal(size=1) if here == self.where else np.zeros(1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.noise("reset"), {}

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return obs + self.noise("step"), *rest


def test_a_reset_that_ignores_its_seed_is_warned_of(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Drifting, "where", "reset")
    capax.train(Drifting, steps=4, out=tmp_path, method="random", cost_limit=1.0, episode_steps=4)
    said = capsys.readouterr().err
    assert said.count("warning: ") == 1 and "Drifting begins differently after two resets with the same seed" in said


def test_steps_that_ignore_the_seed_are_warned_of_when_an_episode_is_repeated(tmp_path, capsys, monkeypatch):
    for env, words in ((Drifting, "differs in step 1, after the same actions"), (Counting, "")):
        out = tmp_path / env.__name__
        with monkeypatch.context() as patch:
            stop_in(patch, episode=1, step=2)
            with pytest.raises(Stop):
                capax.train(env, steps=12, out=out, method="random", cost_limit=25.0, episode_steps=4)
        assert "warning" not in capsys.readouterr().err
        capax.resume(out, env=env)
        said = capsys.readouterr().err
        assert words in said and said.count("warning: ") == bool(words)


# Signals, in processes of their own.


SLOW = """
import gymnasium as gym, hashlib, numpy as np
from capax.envs.integrator import Integrator

class Slow(Integrator):
    def step(self, action):
        self.count = getattr(self, "count", 0) + 1
        if self.count == 120:
            print("deep in compiled code", flush=True)
            hashlib.pbkdf2_hmac("sha256", b"", b"", 300_000_000)
        return super().step(action)

gym.register(id="Slow-v0", entry_point="slow:Slow", max_episode_steps=50, kwargs={"cost_limit": 25.0})
"""


@pytest.mark.parametrize(
    ("number", "code", "words"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_signal_ends_the_run_at_once_even_in_compiled_code(number, code, words, tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    command = [sys.executable, "-m", "capax.cli", "train", "slow:Slow-v0", "--method", "random", "--out", "run"]
    child = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == "deep in compiled code\n"
    began = time.monotonic()
    child.send_signal(number)
    _, said = child.communicate(timeout=60)
    assert child.returncode == code and time.monotonic() - began < 10.0
    assert said.strip().splitlines()[-1] == f"capax: {words}; 2 episodes safe in run; go on with: capax resume run"
    assert len(Run(tmp_path / "run").episodes) == 2
