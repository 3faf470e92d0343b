"""A run that was stopped and resumed gives the rows of one that never was."""

from __future__ import annotations

import errno
import json
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.interruption import GROUP, RUNS, Stop, stop, stop_in
from support.small_settings import GRADIENT, VECTOR
from support.tiny_runs import counting, train_random, without_times
from support.toy_envs import Toy, walk

import capax
from capax.cli.main import main
from capax.core.errors import DiskFailed, EnvironmentFailed, InputError
from capax.runs.checkpoint import Checkpoints
from capax.runs.lock import locked
from capax.runs.run import Run
from capax.training import run_loop


def resume(run: Path, options: dict[str, Any], **more: Any) -> Run:
    """Resume a run that was trained with these options; objects are handed over again."""
    env = options["env"]
    objects = {name: options[name] for name in ("cost", "initial_policy") if name in options}
    return capax.resume(run, env=None if isinstance(env, str) else env, **objects, **more)


def stop_after(monkeypatch: pytest.MonkeyPatch, episodes: int) -> None:
    """Have the loop stop after this many episodes, as a signal in the next one's first step would."""
    real = run_loop.loop

    def stopped(*arguments: Any, **options: Any) -> Any:
        for number, outcome in enumerate(real(*arguments, **options), start=1):
            yield outcome
            if number == episodes:
                raise Stop

    monkeypatch.setattr(run_loop, "loop", stopped)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Runs that never stopped, each trained when it is first used."""
    folder = tmp_path_factory.mktemp("whole")

    class TrainedRuns(dict[str, Run]):
        def __missing__(self, name: str) -> Run:
            self[name] = capax.train(out=folder / name.replace(" ", "-"), **RUNS[name])
            return self[name]

    return TrainedRuns()


@pytest.mark.parametrize("name", RUNS)
def test_rows_are_those_of_a_run_that_never_stopped(name, whole, tmp_path, monkeypatch):
    # stopped after one episode, then after each further one
    options, rows = RUNS[name], whole[name].episodes
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        with pytest.raises(Stop):
            capax.train(out=tmp_path, **options)
        for _ in range(len(rows) - 2):
            with pytest.raises(Stop):
                resume(tmp_path, options)
    run = resume(tmp_path, options)
    assert without_times(run.episodes) == without_times(rows) and run.episodes[-1]["steps"] >= options["steps"]
    # where episodes are played side by side, those whose turn had not come when the run stopped are played again
    repeated = {row["episode"] for row in run.interrupted}
    assert repeated <= {n for n in range(len(rows)) if n % GROUP}
    assert bool(repeated) == (options.get("settings") is GRADIENT)


@pytest.mark.parametrize("name", ["cap conformal", "cap adam", "initial policy"])
def test_an_interrupted_episode_is_played_again_from_its_start(name, whole, tmp_path, monkeypatch):
    options, rows = RUNS[name], whole[name].episodes
    for episode, step in ((0, 7), (3, 1), (4, 9)):
        with monkeypatch.context() as patch:
            stop_in(patch, episode=episode, step=step)
            with pytest.raises(Stop):
                capax.train(out=tmp_path, resume=True, **options)
    run = resume(tmp_path, options)
    assert without_times(run.episodes) == without_times(rows)
    assert [(row["episode"], row["length"]) for row in run.interrupted] == [(0, 7), (3, 1), (4, 9)]


# Damage.


def stop_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, episodes: int) -> Path:
    """Stop a run after this many episodes, and return the folder of its checkpoints."""
    with monkeypatch.context() as patch:
        stop_after(patch, episodes)
        with pytest.raises(Stop):
            capax.train(out=tmp_path, **RUNS[name])
    return tmp_path / "checkpoints"


@pytest.mark.parametrize("name", ["cap conformal", "tabular pi"])
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_it_used(name, whole, tmp_path, monkeypatch, capsys):
    rows = whole[name].episodes
    folder = stop_early(tmp_path, monkeypatch, name, 4)
    newest = folder / "episode-000004.safetensors"
    data = bytearray(newest.read_bytes())
    data[-100] ^= 1
    newest.write_bytes(data)
    capsys.readouterr()
    run = resume(tmp_path, RUNS[name])
    assert "episode-000004.safetensors is damaged (its checksum does not fit its content)" in capsys.readouterr().err
    assert (
        without_times(run.episodes) == without_times(rows) and (folder / "episode-000004.safetensors.damaged").exists()
    )
    # episode 3 was played twice: what it paid the first time happened
    (lost,) = run.interrupted
    assert lost["episode"] == 3 and lost["reason"] == "its checkpoint is lost" and lost["cost"] == rows[3]["cost"]


def test_a_damaged_end_of_the_log_costs_one_episode(whole, tmp_path, monkeypatch):
    folder = stop_early(tmp_path, monkeypatch, "cap conformal", 5)
    log = folder / "buffer.log"
    log.write_bytes(log.read_bytes()[:-40])
    (folder / "buffer.parity").unlink()  # it would repair the log
    run = resume(tmp_path, RUNS["cap conformal"])
    assert without_times(run.episodes) == without_times(whole["cap conformal"].episodes)
    assert [row["episode"] for row in run.interrupted] == [4]


def test_nothing_left_that_is_whole(tmp_path, monkeypatch):
    folder = stop_early(tmp_path, monkeypatch, "cap conformal", 3)
    for path in folder.glob("*.safetensors"):
        path.write_bytes(b"")
    with pytest.raises(InputError, match=r"no checkpoint in .* is whole .*: restore one, or retrain with --force\.$"):
        resume(tmp_path, RUNS["cap conformal"])
    with pytest.raises(InputError, match=r"has episodes but no checkpoint: restore one"):
        resume(tmp_path, RUNS["cap conformal"])


@pytest.mark.parametrize("name", ["cap conformal", "logged data", "tabular pi"])
def test_a_run_that_was_stopped_before_it_began(name, whole, tmp_path, monkeypatch):
    options, rows = RUNS[name], whole[name].episodes
    if name == "logged data":  # from a file, which can be read again
        np.savez(tmp_path / "log.npz", **options["initial_data"])
        options = options | dict(initial_data=tmp_path / "log.npz")
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", stop)
        with pytest.raises(Stop):
            capax.train(out=tmp_path / "run", **options)
    assert without_times(resume(tmp_path / "run", options).episodes) == without_times(rows)


@pytest.mark.parametrize("rows", ["", "{}\n{}\n", "[]\n", "no JSON\n"])
def test_rows_that_are_gone_are_not_made_up(tmp_path, monkeypatch, rows):
    stop_early(tmp_path, monkeypatch, "cap conformal", 3)
    (tmp_path / "episodes.jsonl").write_text(rows)
    with pytest.raises(InputError, match=r"episodes\.jsonl has"):
        resume(tmp_path, RUNS["cap conformal"])


def test_settings_changed_by_hand_are_refused(tmp_path, monkeypatch):
    stop_early(tmp_path, monkeypatch, "cap conformal", 3)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"cost_limit": 99.0}))
    with pytest.raises(InputError, match=r"belongs to other settings \(cost_limit\)"):
        resume(tmp_path, RUNS["cap conformal"])


# Longer, complete, again.


def test_more_steps(tmp_path, monkeypatch):
    options = RUNS["cap conformal"]
    long = capax.train(out=tmp_path / "long", **options)
    assert long.episodes[-1]["steps"] == 60
    long = resume(tmp_path / "long", options, steps=100)
    assert long.episodes[-1]["steps"] == 100 and long.config.steps == 100
    with monkeypatch.context() as patch:
        capax.train(out=tmp_path / "cut", **options)
        stop_after(patch, 2)
        with pytest.raises(Stop):
            resume(tmp_path / "cut", options, steps=100)
    assert without_times(resume(tmp_path / "cut", options, steps=100).episodes) == without_times(long.episodes)


@pytest.mark.parametrize("name", ["cap conformal", "ppo", "tabular pi"])
def test_train_continues_a_run_with_more_steps(name, whole, tmp_path):
    options, steps = RUNS[name], RUNS[name]["steps"]
    shutil.copytree(whole[name].folder, tmp_path / "train")
    shutil.copytree(whole[name].folder, tmp_path / "resume")
    run = capax.train(out=tmp_path / "train", resume=True, **options | dict(steps=2 * steps))
    assert run.config.steps == 2 * steps and run.episodes[-1]["steps"] >= 2 * steps
    resumed = resume(tmp_path / "resume", options, steps=2 * steps)
    assert without_times(run.episodes) == without_times(resumed.episodes) and run.config == resumed.config


def test_a_complete_run_stays_as_it_is(whole, tmp_path):
    run = shutil.copytree(whole["cap conformal"].folder, tmp_path / "run")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    for steps in (None, 1, 60):
        assert len(resume(run, RUNS["cap conformal"], steps=steps).episodes) == 6
    assert {path: path.read_bytes() for path in before} == before


def test_train_begins_or_continues(whole, tmp_path, monkeypatch):
    options, rows = RUNS["cap adam"], whole["cap adam"].episodes
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Stop):
            capax.train(out=tmp_path, resume=True, **options)
    with pytest.raises(InputError, match=r"other settings \(seed 0\): give these again, or choose another --out\."):
        capax.train(out=tmp_path, resume=True, seed=1, **options)
    run = capax.train(out=tmp_path, resume=True, **options)
    assert without_times(run.episodes) == without_times(rows)


def test_functions_must_be_handed_over_again(whole, tmp_path, monkeypatch, capsys):
    with pytest.raises(InputError, match=r"environment that a function made: call capax\.resume\(run, env=make\)"):
        capax.resume(whole["cap conformal"].folder)
    with pytest.raises(SystemExit, match="2"):
        main(["resume", str(whole["cap conformal"].folder)])
    assert "call capax.resume(run, env=make) in Python." in capsys.readouterr().err
    with pytest.raises(InputError, match=r"cost function: .*call capax\.resume\(run, cost=\.\.\.\) with it"):
        capax.resume(whole["own cost"].folder, env=walk)
    stop_early(tmp_path, monkeypatch, "initial policy", 1)
    with pytest.raises(InputError, match=r"capax\.resume\(run, initial_policy=\.\.\.\) in Python continues it\.$"):
        capax.resume(tmp_path, env=walk)
    with pytest.raises(InputError, match="give the environment that was trained in"):
        capax.resume(whole["cap conformal"].folder, env=counting(10, high=4.0))


# Environments that fail.


def raise_error(*_: Any) -> Any:
    raise ValueError("boom")


FAILURES = {
    "raised ValueError (boom) in step 4": raise_error,
    "observation of Toy is not finite": lambda obs, *rest: (obs * np.nan, *rest),
    "observation of Toy has shape": lambda obs, *rest: (obs[:1], *rest),
    "reward of Toy is not finite": lambda obs, reward, *rest: (obs, np.inf, *rest),
    "reports no cost": lambda obs, reward, end, cut, info: (obs, reward, end, cut, {}),
    "cost of Toy is 'much'": lambda obs, reward, end, cut, info: (obs, reward, end, cut, {"cost": "much"}),
    "cost of Toy is not finite": lambda obs, reward, end, cut, info: (obs, reward, end, cut, {"cost": np.nan}),
}
"""What replaces the result of a step, and the words of the error."""


@pytest.mark.parametrize("words", FAILURES)
def test_an_environment_that_fails_stops_the_run_and_nothing_is_lost(words, whole, tmp_path):
    def fail_once(toy: Toy) -> Any:
        # two resets are the check of the seed, so the fifth begins episode 2
        return FAILURES[words](*toy.result()) if toy.count == 4 and toy.resets == 5 else toy.result()

    options = RUNS["cap conformal"]
    with pytest.raises(EnvironmentFailed) as caught:
        capax.train(out=tmp_path, **options | dict(env=partial(walk, reply=fail_once)))
    message = str(caught.value)
    assert words in message and " in step 4 of the episode" in message and "\n" not in message
    assert caught.value.exit_code == 3
    assert message.endswith(
        f"(in episode 2; all before it is kept, and capax.resume('{tmp_path}', env=...) in Python continues from there)."
    )
    assert len(Run(tmp_path).episodes) == 2
    steps = 4 if "observation" in words or "reward" in words else 3  # a step counts if its cost is known
    assert [(row["episode"], row["length"]) for row in Run(tmp_path).interrupted] == [(2, steps)]
    assert without_times(resume(tmp_path, options).episodes) == without_times(whole["cap conformal"].episodes)


def test_training_that_diverges_stops_the_run(tmp_path, capsys):
    arguments = ["train", "capax/Integrator-v0", "--preset", "fast", "--steps", "600", "--out", str(tmp_path), "--set"]
    arguments += [f"{name}={value}" for name, value in VECTOR.items()]
    with pytest.raises(SystemExit, match="3"):
        main([*arguments, "learning_rate=1e9"])
    err = capsys.readouterr().err
    assert "warning: a fit gave a model that is not finite: the last good parameters are used." in err
    assert "capax: 3 fits in a row gave a model that is not finite: lower learning_rate (it is 1e+09)" in err
    rows = Run(tmp_path).episodes
    assert [row.get("bad_fits") for row in rows] == [None, 1, 2] and len(err.strip().splitlines()[-1]) < 400


# The folder.


def test_a_folder_in_use_is_refused(tmp_path, monkeypatch, capsys):
    stop_early(tmp_path, monkeypatch, "tabular pi", 2)
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
    assert len(train_random(tmp_path).episodes) == 3


@pytest.mark.parametrize("name", ["cap conformal", "tabular pi"])
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_stops_the_run_and_nothing_is_lost(call, name, whole, tmp_path, monkeypatch):
    options, real, calls = RUNS[name], getattr(os, call), 0

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
    run = resume(tmp_path, options, steps=options["steps"] * 3)
    rows = without_times(run.episodes)
    assert len(rows) > before
    longer = capax.train(out=tmp_path / "longer", **options | dict(steps=options["steps"] * 3))
    assert rows == without_times(longer.episodes)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match="3"):
        main(["train", "capax/Gridworld-v0", "--out", str(tmp_path / "file" / "run")])
    assert "cannot be written (Not a directory)" in capsys.readouterr().err
