"""Does a run that was stopped and resumed give the rows of one that never was?"""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stopping import AGENTS, GRADIENT, SMALL, TOGETHER, Counting, Stop, Walk, counted, stop_in, timeless, walk

import capax
from capax import training
from capax.cli import main
from capax.errors import DiskFailed, EnvironmentFailed, InputError
from capax.runs.checkpoint import Checkpoints
from capax.runs.lock import locked
from capax.runs.run import Run


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
