"""Does a run that was stopped and resumed give the rows of one that never was?"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import capax
from capax import recording, training
from capax.cli import main
from capax.errors import DiskFailed, EnvironmentFailed, InputError
from capax.runs import journal
from capax.runs.checkpoint import Checkpoints
from capax.runs.lock import locked
from capax.runs.run import INTERRUPTED, Run
from capax.types import Spec

SMALL = dict(
    hidden=8, layers=1, members=2, particles=4, population=12, elites=3, iterations=2, horizon=4, batch=16,
    least_updates=5, most_updates=10, start_steps=20, fit_every=10,
)  # fmt: skip


class Stop(BaseException):
    """As abrupt as a signal."""


class Walk(gym.Env[Any, Any]):
    """A noisy walk on a line that may end early, and whose cost may be 0 or 1."""

    def __init__(self, binary: bool = False, ends: bool = False) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,))
        self.action_space = spaces.Box(-1.0, 3.0, (1,), np.float32)
        self.binary, self.ends = binary, ends

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x, self.t = self.np_random.normal(size=2), 0
        return self.x.copy(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        self.x = 0.9 * self.x + 0.1 * float(action[0]) + 0.05 * self.np_random.normal(size=2)
        cost = float(np.abs(self.x).sum())
        ended = self.ends and bool(self.np_random.random() < 0.1)
        return (
            self.x.copy(),
            float(self.x[0]),
            ended,
            self.t >= 10,
            {"cost": float(cost > 1.0) if self.binary else cost},
        )


def walk(**options: bool) -> Any:
    return lambda: Walk(**options)


def policy(obs: Any) -> list[float]:
    return [float(np.clip(obs[0], -1.0, 3.0))]


def logged() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(25, 2))
    return dict(obs=obs, action=rng.uniform(-1, 3, 25), reward=obs[:, 0], cost=np.abs(obs[:, 1]), next_obs=0.9 * obs)


BOX = dict(env=walk(), steps=60, cost_limit=12.0, episode_steps=10, settings=SMALL, preset="fast")
GRADIENT = dict(batch=20, minibatch=8, epochs=2, hidden=8)
TOGETHER = 2
"""Episodes of at most 10 steps in a batch of 20."""
FINITE = dict(env="capax/Gridworld-v0", steps=400, episode_steps=50)
IMAGE = dict(env="capax/Dot-v0", steps=48, episode_steps=8, preset="fast", violation_rate=0.2)
IMAGE["settings"] = dict(
    deter=6, stoch=3, hidden=6, depth=1, members=2, batch=2, chunk=4, updates=2, horizon=3, iterations=2, population=8,
    elites=2, start_steps=16,
)  # fmt: skip
AGENTS: dict[str, dict[str, Any]] = {
    "cap conformal": BOX | dict(violation_rate=0.2),
    "cap adam": BOX | dict(kappa="adam"),
    "cap pi": BOX | dict(kappa="pi"),
    "cap fixed": BOX | dict(kappa=0.3),
    "ccem": BOX | dict(method="ccem"),
    "cem": BOX | dict(method="cem"),
    "random": BOX | dict(method="random", settings={}),
    "binary cost, endings": BOX | dict(env=walk(binary=True, ends=True), cost_limit=1.0),
    "discounted": BOX | dict(discounted=True),
    "a small buffer": BOX | dict(settings=SMALL | dict(buffer=24)),
    "logged data": BOX | dict(initial_data=logged()),
    "initial policy": BOX | dict(initial_policy=policy),
    "logged data, policy": BOX | dict(initial_data=logged(), initial_policy=policy),
    "own cost": BOX | dict(cost=lambda obs, action, next_obs, info: float(next_obs[0] ** 2)),
    "rare fits": BOX | dict(settings=SMALL | dict(fit_every=10), env=walk(ends=True)),
    "ppo": BOX | dict(method="ppo", settings=GRADIENT),
    "ppo-lag, endings": BOX | dict(method="ppo-lag", settings=GRADIENT, env=walk(ends=True)),
    "focops, discounted": BOX | dict(method="focops", settings=GRADIENT, discounted=True),
    "image ppo": IMAGE | dict(method="ppo", settings=GRADIENT, episode_steps=10),
    "image conformal": IMAGE,
    "image adam": IMAGE | dict(kappa="adam"),
    "image, a small buffer": IMAGE | dict(settings=IMAGE["settings"] | dict(buffer=20)),
    "tabular pi": FINITE,
    "tabular fixed": FINITE | dict(kappa=0.05),
    "tabular ccem": FINITE | dict(method="ccem"),
    "tabular cem": FINITE | dict(method="cem"),
    "tabular random": FINITE | dict(method="random"),
    "tabular calibrated": FINITE | dict(method="calibrated"),
}


def timeless(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "time"} for row in rows]


def resumed(run: Path, options: dict[str, Any], **more: Any) -> Run:
    env = options["env"]
    again = {name: options[name] for name in ("cost", "initial_policy") if name in options}
    return capax.resume(run, env=None if isinstance(env, str) else env, **again, **more)


def stop_after(monkeypatch: pytest.MonkeyPatch, episodes: int) -> None:
    """Have the loop stop when it has given so many outcomes, as a signal in the next episode's first step would."""
    real = training.loop

    def stopped(*arguments: Any, **options: Any) -> Any:
        for number, outcome in enumerate(real(*arguments, **options), start=1):
            yield outcome
            if number == episodes:
                raise Stop

    monkeypatch.setattr(training, "loop", stopped)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Runs that never stopped, made when they are asked for."""
    folder = tmp_path_factory.mktemp("whole")

    class Made(dict[str, Run]):
        def __missing__(self, name: str) -> Run:
            self[name] = capax.train(out=folder / name.replace(" ", "-"), **AGENTS[name])
            return self[name]

    return Made()


@pytest.mark.parametrize("name", AGENTS)
def test_rows_are_those_of_a_run_that_never_stopped(name, whole, tmp_path, monkeypatch):
    # stopped after one episode, then after each further one
    options, rows = AGENTS[name], whole[name].episodes
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        with pytest.raises(Stop):
            capax.train(out=tmp_path, **options)
        for _ in range(len(rows) - 2):
            with pytest.raises(Stop):
                resumed(tmp_path, options)
    run = resumed(tmp_path, options)
    assert timeless(run.episodes) == timeless(rows) and run.episodes[-1]["steps"] >= options["steps"]
    # where episodes are played side by side, those whose turn had not come when the run stopped are played again
    again = {row["episode"] for row in run.interrupted}
    assert again <= {n for n in range(len(rows)) if n % TOGETHER} and bool(again) == (
        options.get("settings") is GRADIENT
    )


# What an interrupted episode leaves.


def stop_in(monkeypatch: pytest.MonkeyPatch, *, episode: int, step: int) -> None:
    """Have the process stop right after a step, whatever it was doing."""
    real = recording.Recorder.step

    def stopped(self: Any, action: Any, at: Any) -> None:
        real(self, action, at)
        if self.number == episode and self._done - self._at.steps == step:
            raise Stop

    monkeypatch.setattr(recording.Recorder, "step", stopped)


class Counting(gym.Env[Any, Any]):
    """Earns 1, 2, 3, … and pays ten times that, in four steps."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(-9.0, 9.0, (1,)), spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.array([float(self.t)]), float(self.t), False, self.t == 4, {"cost": 10.0 * self.t}


def counted(out: Path, **options: Any) -> Run:
    return capax.train(
        Counting, **{**dict(steps=12, out=out, method="random", cost_limit=25.0, episode_steps=4), **options}
    )


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


@pytest.mark.parametrize("name", ["cap conformal", "cap adam", "initial policy"])
def test_an_interrupted_episode_is_played_again_from_its_start(name, whole, tmp_path, monkeypatch):
    options, rows = AGENTS[name], whole[name].episodes
    for episode, step in ((0, 7), (3, 1), (4, 9)):
        with monkeypatch.context() as patch:
            stop_in(patch, episode=episode, step=step)
            with pytest.raises(Stop):
                capax.train(out=tmp_path, resume=True, **options)
    run = resumed(tmp_path, options)
    assert timeless(run.episodes) == timeless(rows)
    assert [(row["episode"], row["length"]) for row in run.interrupted] == [(0, 7), (3, 1), (4, 9)]


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


# Damage.


def cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, episodes: int) -> Path:
    with monkeypatch.context() as patch:
        stop_after(patch, episodes)
        with pytest.raises(Stop):
            capax.train(out=tmp_path, **AGENTS[name])
    return tmp_path / "checkpoints"


@pytest.mark.parametrize("name", ["cap conformal", "tabular pi"])
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_it_used(name, whole, tmp_path, monkeypatch, capsys):
    rows = whole[name].episodes
    folder = cut_short(tmp_path, monkeypatch, name, 4)
    newest = folder / "episode-000004.safetensors"
    data = bytearray(newest.read_bytes())
    data[-100] ^= 1
    newest.write_bytes(data)
    capsys.readouterr()
    run = resumed(tmp_path, AGENTS[name])
    assert "episode-000004.safetensors is damaged (its checksum does not fit its content)" in capsys.readouterr().err
    assert timeless(run.episodes) == timeless(rows) and (folder / "episode-000004.safetensors.damaged").exists()
    # episode 3 was played twice: what it paid the first time happened
    (lost,) = run.interrupted
    assert lost["episode"] == 3 and lost["reason"] == "its checkpoint is lost" and lost["cost"] == rows[3]["cost"]


def test_a_damaged_end_of_the_log_costs_one_episode(whole, tmp_path, monkeypatch):
    folder = cut_short(tmp_path, monkeypatch, "cap conformal", 5)
    log = folder / "buffer.log"
    log.write_bytes(log.read_bytes()[:-40])
    run = resumed(tmp_path, AGENTS["cap conformal"])
    assert timeless(run.episodes) == timeless(whole["cap conformal"].episodes)
    assert [row["episode"] for row in run.interrupted] == [4]


def test_nothing_left_that_is_whole(tmp_path, monkeypatch):
    folder = cut_short(tmp_path, monkeypatch, "cap conformal", 3)
    for path in folder.glob("*.safetensors"):
        path.write_bytes(b"")
    with pytest.raises(
        InputError, match=r"no checkpoint in .* is whole .*: restore one, or train anew with --force\.$"
    ):
        resumed(tmp_path, AGENTS["cap conformal"])
    with pytest.raises(InputError, match=r"has episodes but no checkpoint: restore one"):
        resumed(tmp_path, AGENTS["cap conformal"])


@pytest.mark.parametrize("name", ["cap conformal", "logged data", "tabular pi"])
def test_a_run_that_was_stopped_before_it_began(name, whole, tmp_path, monkeypatch):
    def stop(*_: Any) -> None:
        raise Stop

    options, rows = AGENTS[name], whole[name].episodes
    if name == "logged data":  # from a file, which can be read again
        np.savez(tmp_path / "log.npz", **options["initial_data"])
        options = options | dict(initial_data=tmp_path / "log.npz")
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", stop)
        with pytest.raises(Stop):
            capax.train(out=tmp_path / "run", **options)
    assert timeless(resumed(tmp_path / "run", options).episodes) == timeless(rows)


@pytest.mark.parametrize("rows", ["", "{}\n{}\n", "[]\n", "no JSON\n"])
def test_rows_that_are_gone_are_not_made_up(tmp_path, monkeypatch, rows):
    cut_short(tmp_path, monkeypatch, "cap conformal", 3)
    (tmp_path / "episodes.jsonl").write_text(rows)
    with pytest.raises(InputError, match=r"episodes\.jsonl has"):
        resumed(tmp_path, AGENTS["cap conformal"])


def test_settings_changed_by_hand_are_refused(tmp_path, monkeypatch):
    cut_short(tmp_path, monkeypatch, "cap conformal", 3)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"cost_limit": 99.0}))
    with pytest.raises(InputError, match=r"belongs to other settings \(cost_limit\)"):
        resumed(tmp_path, AGENTS["cap conformal"])


# Longer, complete, again.


def test_more_steps(tmp_path, monkeypatch):
    options = AGENTS["cap conformal"]
    long = capax.train(out=tmp_path / "long", **options)
    assert long.episodes[-1]["steps"] == 60
    long = resumed(tmp_path / "long", options, steps=100)
    assert long.episodes[-1]["steps"] == 100 and long.config["steps"] == 100
    with monkeypatch.context() as patch:
        capax.train(out=tmp_path / "cut", **options)
        stop_after(patch, 2)
        with pytest.raises(Stop):
            resumed(tmp_path / "cut", options, steps=100)
    assert timeless(resumed(tmp_path / "cut", options, steps=100).episodes) == timeless(long.episodes)


def test_a_complete_run_stays_as_it_is(whole, tmp_path):
    run = shutil.copytree(whole["cap conformal"].folder, tmp_path / "run")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    for steps in (None, 1, 60):
        assert len(resumed(run, AGENTS["cap conformal"], steps=steps).episodes) == 6
    assert {path: path.read_bytes() for path in before} == before


def test_train_begins_or_goes_on(whole, tmp_path, monkeypatch):
    options, rows = AGENTS["cap adam"], whole["cap adam"].episodes
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Stop):
            capax.train(out=tmp_path, resume=True, **options)
    with pytest.raises(InputError, match=r"other settings \(seed 0\): give these again, or choose another --out\."):
        capax.train(out=tmp_path, resume=True, seed=1, **options)
    run = capax.train(out=tmp_path, resume=True, **options)
    assert timeless(run.episodes) == timeless(rows)


def test_functions_are_asked_for_again(whole, tmp_path, monkeypatch, capsys):
    with pytest.raises(InputError, match=r"environment that a function made: capax\.resume\(run, env=make\) in Python"):
        capax.resume(whole["cap conformal"].folder)
    with pytest.raises(SystemExit, match="2"):
        main(["resume", str(whole["cap conformal"].folder)])
    assert "capax.resume(run, env=make) in Python goes on with it." in capsys.readouterr().err
    with pytest.raises(InputError, match=r"cost function: capax\.resume\(run, cost=\.\.\.\)"):
        capax.resume(whole["own cost"].folder, env=walk())
    cut_short(tmp_path, monkeypatch, "initial policy", 1)
    with pytest.raises(InputError, match=r"capax\.resume\(run, initial_policy=\.\.\.\) in Python goes on with it\.$"):
        capax.resume(tmp_path, env=walk())
    with pytest.raises(InputError, match="give the environment that was trained in"):
        capax.resume(whole["cap conformal"].folder, env=Counting)


# Environments that fail.


class Failing(Walk):
    """Does something wrong in one step of one episode; the episode is known by its first observation."""

    wrong: Any = None
    count = 0

    def reset(self, **options: Any) -> Any:
        Failing.count += 1
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        right = super().step(action)
        return type(self).wrong(*right) if self.t == 4 and Failing.count == 5 and self.wrong is not None else right


def raises(*_: Any) -> Any:
    raise ValueError("boom")


WRONG = {
    "raised ValueError (boom) in step 4": raises,
    "observation of Failing is not finite": lambda obs, *rest: (obs * np.nan, *rest),
    "observation of Failing has shape": lambda obs, *rest: (obs[:1], *rest),
    "reward of Failing is not finite": lambda obs, reward, *rest: (obs, np.inf, *rest),
    "reports no cost": lambda obs, reward, end, cut, info: (obs, reward, end, cut, {}),
    "cost of Failing is 'much'": lambda obs, reward, end, cut, info: (obs, reward, end, cut, {"cost": "much"}),
    "cost of Failing is not finite": lambda obs, reward, end, cut, info: (obs, reward, end, cut, {"cost": np.nan}),
}


@pytest.mark.parametrize("words", WRONG)
def test_an_environment_that_fails_stops_the_run_and_nothing_is_lost(words, whole, tmp_path, monkeypatch):
    options = AGENTS["cap conformal"] | dict(env=Failing)
    monkeypatch.setattr(Failing, "count", 0)
    monkeypatch.setattr(Failing, "wrong", staticmethod(WRONG[words]))
    with pytest.raises(EnvironmentFailed) as caught:  # two resets are the check of the seed, so this is episode 2
        capax.train(out=tmp_path, **options)
    said = str(caught.value)
    assert words in said and " in step 4 of the episode" in said and "\n" not in said and caught.value.exit_code == 3
    assert said.endswith(
        f"(in episode 2; all before it is kept, and capax.resume('{tmp_path}', env=...) in Python goes on from there)."
    )
    assert len(Run(tmp_path).episodes) == 2
    assert [(row["episode"], row["length"]) for row in Run(tmp_path).interrupted] == [(2, 3)]
    monkeypatch.setattr(Failing, "wrong", None)
    assert timeless(resumed(tmp_path, options).episodes) == timeless(whole["cap conformal"].episodes)


def test_training_that_diverges_stops_the_run(tmp_path, capsys):
    arguments = ["train", "capax/Integrator-v0", "--preset", "fast", "--steps", "600", "--out", str(tmp_path), "--set"]
    arguments += [f"{name}={value}" for name, value in SMALL.items()]
    with pytest.raises(SystemExit, match="3"):
        main([*arguments, "learning_rate=1e9"])
    said = capsys.readouterr().err
    assert "warning: a fit gave a model that is not finite: the last good parameters are used." in said
    assert "capax: 3 fits in a row gave a model that is not finite: lower learning_rate (it is 1e+09)" in said
    rows = Run(tmp_path).episodes
    assert [row.get("bad_fits") for row in rows] == [None, 1, 2] and len(said.strip().splitlines()[-1]) < 400


# The folder.


def test_a_folder_in_use_is_refused(tmp_path, monkeypatch, capsys):
    cut_short(tmp_path, monkeypatch, "tabular pi", 2)
    with locked(tmp_path):
        for command in (["resume", str(tmp_path)], ["train", "capax/Gridworld-v0", "--force", "--out", str(tmp_path)]):
            with pytest.raises(SystemExit, match="4"):
                main(command)
            assert f"is in use by process {os.getpid()} on " in capsys.readouterr().err
    main(["resume", str(tmp_path)])
    assert not capsys.readouterr().out.startswith("already complete")
    main(["resume", str(tmp_path)])
    assert capsys.readouterr().out.startswith(f"already complete: {tmp_path}: ")


def test_a_lock_that_a_dead_process_left_is_not_in_the_way(tmp_path):
    (tmp_path / ".lock").write_text('{"process": 1, "host": "elsewhere"}')
    assert len(counted(tmp_path).episodes) == 3


@pytest.mark.parametrize("name", ["cap conformal", "tabular pi"])
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_stops_the_run_and_nothing_is_lost(call, name, whole, tmp_path, monkeypatch):
    options, real, calls = AGENTS[name], getattr(os, call), 0

    def full(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 9:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(
            DiskFailed, match=r"could not be written: No space left on device \(in episode \d; all before"
        ):
            capax.train(out=tmp_path, **options | dict(steps=options["steps"] * 3))
    before = len(Run(tmp_path).episodes)
    assert before >= 1 and not list((tmp_path / "checkpoints").glob(".*"))
    run = resumed(tmp_path, options | {}, steps=options["steps"] * 3)
    rows = timeless(run.episodes)
    assert len(rows) > before
    longer = capax.train(out=tmp_path / "longer", **options | dict(steps=options["steps"] * 3))
    assert rows == timeless(longer.episodes)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match="3"):
        main(["train", "capax/Gridworld-v0", "--out", str(tmp_path / "file" / "run")])
    assert "cannot be written (Not a directory)" in capsys.readouterr().err


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
