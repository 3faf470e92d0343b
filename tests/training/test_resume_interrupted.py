"""The cost of an interrupted episode is kept and counted once, and the episode is played again as it was."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.interruption import Stop, stop, stop_in
from support.scripts import PATIENCE_S, script, wait_for, wait_until_busy
from support.small_settings import GRADIENT
from support.tiny_runs import counting, train_random, without_times
from support.toy_envs import Toy, limited

import capax
from capax.core.types import Spec
from capax.runs import journal
from capax.runs.folder import Folder
from capax.runs.run import INTERRUPTED, Run
from capax.training import recorder, run_loop

# What an interrupted episode leaves.


def test_the_cost_of_an_interrupted_episode_is_kept(tmp_path, monkeypatch):
    # two steps earn 1 + 2 and pay 10 + 20, above the limit of 25; with γ = .99, 2.98 and 29.8
    with monkeypatch.context() as patch:
        stop_in(patch, episode=1, step=2)
        with pytest.raises(Stop):
            train_random(tmp_path)
    (row,) = Run(tmp_path).interrupted
    assert row == {
        "episode": 1, "steps": 4, "phase": "random", "length": 2, "return": 3.0, "discounted_return": pytest.approx(2.98),
        "cost": 30.0, "discounted_cost": pytest.approx(29.8), "limit": 25.0, "violation": True, "reason": "stopped",
    }  # fmt: skip
    run = capax.resume(tmp_path, env=counting())
    assert len(run.episodes) == 3 and run.interrupted == [row] and not (tmp_path / "running.jsonl").exists()
    in_random = "0 violations in planned episodes, {} in random ones".format
    assert str(run).endswith(f"{in_random(3)}; 1 more interrupted, with {in_random(1)}")


def test_a_killed_process_has_written_down_every_step(tmp_path, monkeypatch):
    # nothing is done on the way out, as after kill -9
    with monkeypatch.context() as patch:
        stop_in(patch, episode=1, step=3)
        patch.setattr(run_loop, "count_interrupted", lambda *_: None)
        with pytest.raises(Stop):
            train_random(tmp_path)
    assert Run(tmp_path).interrupted == []
    run = capax.resume(tmp_path, env=counting())
    assert [(row["episode"], row["length"], row["cost"], row["reason"]) for row in run.interrupted] == [
        (1, 3, 60.0, "killed")
    ]


def test_each_interruption_counts_once(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_in(patch, episode=1, step=1)
        with pytest.raises(Stop):
            train_random(tmp_path)
        for _ in range(2):
            with pytest.raises(Stop):
                capax.resume(tmp_path, env=counting())
    run = capax.resume(tmp_path, env=counting())
    assert [row["length"] for row in run.interrupted] == [1, 1, 1] and len(run.episodes) == 3


def test_the_cost_of_interrupted_episodes_side_by_side_is_kept(tmp_path, monkeypatch):
    # of two episodes that are played side by side, one has taken two steps and the other one step
    options = dict(method="ppo", settings=GRADIENT | dict(batch=8), steps=16)
    whole = without_times(train_random(tmp_path / "whole", **options).episodes)
    real, episodes = recorder.Recorder.step_ahead, []

    def stopped(self: Any, ahead: int, action: Any, outcome: Any) -> None:
        real(self, ahead, action, outcome)
        episodes.append(self.at.number + ahead)
        if episodes.count(2) == 2:
            raise Stop

    out = tmp_path / "cut"
    with monkeypatch.context() as patch:
        patch.setattr(recorder.Recorder, "step_ahead", stopped)
        with pytest.raises(Stop):
            train_random(out, **options)
    columns = ("episode", "steps", "length", "cost", "violation")
    assert [tuple(row[name] for name in columns) for row in Run(out).interrupted] == [
        (2, 8, 2, 30.0, True),
        (3, 8, 1, 10.0, False),
    ]
    run = capax.resume(out, env=counting())
    assert without_times(run.episodes) == whole and len(run.interrupted) == 2 and not (out / "running.jsonl").exists()


def count(run: Path, traces: Any, spec: Spec) -> None:
    """Count interrupted episodes in a folder."""
    with Folder(run) as folder:
        journal.count(folder, traces, 25.0, spec, "killed")


def test_a_process_killed_while_it_counted_interrupted_episodes_counts_the_others_later(tmp_path):
    spec, head = Spec(25.0, 0.99, False, 4), {"steps": 0, "phase": "plan", "first": 0, "after": 0}
    lines = [json.dumps({"episode": number, **head}) for number in range(3)]
    lines += [json.dumps([1.0, 10.0 * (ahead + 1), 0, 0, *([ahead] * bool(ahead))]) for ahead in range(3)]
    (tmp_path / journal.RUNNING).write_text("\n".join(lines) + "\n")
    traces = journal.left_over(tmp_path)
    count(tmp_path, traces, spec)
    whole = (tmp_path / INTERRUPTED).read_bytes()
    assert [json.loads(line)["cost"] for line in whole.splitlines()] == [10.0, 20.0, 30.0]
    for cut in range(len(whole)):
        (tmp_path / INTERRUPTED).write_bytes(whole[:cut])
        count(tmp_path, traces, spec)
        assert (tmp_path / INTERRUPTED).read_bytes() == whole


def test_an_episode_whose_row_was_missed_is_not_interrupted(tmp_path, monkeypatch):
    # stopped between the checkpoint and the row: the episode is safe, and its row comes from the checkpoint
    whole = without_times(train_random(tmp_path / "whole").episodes)
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "append", stop)
        with pytest.raises(Stop):
            train_random(tmp_path / "cut")
    assert Run(tmp_path / "cut").episodes == []
    run = capax.resume(tmp_path / "cut", env=counting())
    assert without_times(run.episodes) == whole and run.interrupted == []


# Environments that a seed does not determine.


def noisy(*, in_reset: bool = False) -> Any:
    """A function that makes a toy whose noise, in its steps or in its resets, comes from nowhere that a seed reaches."""
    rng = np.random.default_rng(0)

    def observation(toy: Toy) -> Any:
        noise = rng.normal() if in_reset == (toy.count == 0) else 0.0
        return np.array([noise, toy.count])

    parts = dict(start=observation, move=lambda toy: (observation(toy), 1.0, {"cost": 0.0}))
    return limited(lambda: Toy(**parts), 4)


def test_a_reset_that_ignores_its_seed_is_warned_of(tmp_path, capsys):
    train_random(tmp_path, env=noisy(in_reset=True), steps=4)
    err = capsys.readouterr().err
    assert err.count("warning: ") == 1 and "Toy begins differently after two resets with the same seed" in err


@pytest.mark.parametrize(("env", "words"), [
    (noisy(), "differs in step 1, after the same actions"), (counting(), ""),
], ids=["steps that ignore the seed", "steps that the seed determines"])  # fmt: skip
def test_steps_that_ignore_the_seed_are_warned_of_when_an_episode_is_repeated(
    env, words, tmp_path, capsys, monkeypatch
):
    with monkeypatch.context() as patch:
        stop_in(patch, episode=1, step=2)
        with pytest.raises(Stop):
            train_random(tmp_path, env=env)
    assert "warning" not in capsys.readouterr().err
    capax.resume(tmp_path, env=env)
    err = capsys.readouterr().err
    assert words in err and err.count("warning: ") == bool(words)


# Signals, in processes of their own.

SLOW = """
import gymnasium as gym, hashlib, numpy as np
from capax.envs.integrator import Integrator

class Slow(Integrator):
    def step(self, action):
        self.count = getattr(self, "count", 0) + 1
        if self.count == 120:
            print("deep in compiled code", flush=True)
            hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000_000)
        return super().step(action)

gym.register(id="Slow-v0", entry_point="slow:Slow", max_episode_steps=50, kwargs={"cost_limit": 25.0})
"""
TRAIN_SLOW = """
import sys
from capax.cli.main import main
from capax.runtime import watchdog
watchdog.MARGIN_S = 600.0  # on a busy machine it might be the first to end the command, by a kill
sys.argv[1:] = "train slow:Slow-v0 --method random --out run".split()
main()
"""


@pytest.mark.parametrize(
    ("number", "code", "words"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_signal_ends_the_run_at_once_even_in_compiled_code(number, code, words, tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    with script(TRAIN_SLOW, cwd=tmp_path) as child:
        wait_for(child, "deep in compiled code")
        wait_until_busy(child)
        child.send_signal(number)
        _, err = child.communicate(timeout=PATIENCE_S)  # much less than the compiled code takes
    assert child.returncode == code
    assert err.strip().splitlines()[-1] == f"capax: {words}; 2 episodes safe in run; continue with: capax resume run"
    assert len(Run(tmp_path / "run").episodes) == 2
