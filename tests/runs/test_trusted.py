"""What a user has named is remembered outside of all run folders, and whatever happens to that file, training works."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import pytest
from support.foreign_files import ENVIRONMENT, change_config
from support.scripts import PATIENCE_S
from support.tiny_runs import counting, train_random

import capax
from capax.core.errors import InputError
from capax.runs import trusted
from capax.runs.run import Run

FACT, OTHER = ("env", "my_env", "/mine/my_env.py"), ("cost", "my_costs:speed", "/mine/my_costs.py")


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that remembers, of this test alone."""
    monkeypatch.setenv(trusted.VARIABLE, str(tmp_path / "own" / "trusted.json"))
    return tmp_path / "own" / "trusted.json"


@pytest.fixture
def my_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The id of an environment in a module on the path."""
    (tmp_path / "my_env.py").write_text(ENVIRONMENT)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    yield "my_env:Line-v0"
    sys.modules.pop("my_env", None)
    gym.registry.pop("Line-v0", None)


def trusted_elsewhere(fact: trusted.Fact) -> bool:
    """Whether another process would trust it."""
    trusted._named_here.clear()
    return trusted.is_trusted(fact)


def train(out: Path, env: str) -> Run:
    """A run of one random episode."""
    return capax.train(env, method="random", steps=4, loggers=[], out=out)


def test_what_is_remembered_is_trusted_later_and_the_file_is_the_users_alone(memory):
    assert not trusted_elsewhere(FACT) and not memory.exists()
    trusted.remember([FACT])
    trusted.remember([OTHER, FACT])
    assert trusted_elsewhere(FACT) and trusted_elsewhere(OTHER)
    elsewhere = (*FACT[:2], "/other/my_env.py")
    assert not trusted_elsewhere(elsewhere) and trusted.was_another_file(elsewhere)
    assert not trusted.was_another_file(("env", "another", ""))
    assert memory.stat().st_mode & 0o777 == 0o600 and memory.parent.stat().st_mode & 0o777 == 0o700
    assert json.loads(memory.read_text()) == {"format": 1, "named": [[*OTHER], [*FACT]]}


def test_nothing_is_written_if_nothing_is_new(memory):
    trusted.remember([FACT])
    before = memory.stat().st_mtime_ns, memory.stat().st_ino
    trusted.remember([FACT])
    trusted.remember([])
    assert (memory.stat().st_mtime_ns, memory.stat().st_ino) == before


DAMAGES = ["", "[]", "null", '{"format": 2, "named": []}', '{"format": 1}', '{"format": 1, "named": [5]}',
           '{"format": 1, "named": [["env"]]}', '{"format": 1, "named": [["env", 5]]}', "{", "[" * 100_000, "\udcff"]  # fmt: skip


@pytest.mark.parametrize("text", DAMAGES)
def test_a_damaged_file_is_kept_aside_with_a_word(memory, text):
    memory.parent.mkdir()
    memory.write_bytes(text.encode(errors="surrogateescape"))
    memory.chmod(0o600)
    with pytest.warns(RuntimeWarning, match=r"trusted\.json is damaged\), so it has to be named again"):
        assert not trusted_elsewhere(FACT)
    with pytest.warns(
        RuntimeWarning, match=r"trusted\.json is damaged, so it is trusted\.json\.damaged now, and what you"
    ):
        trusted.remember([FACT])
    assert trusted_elsewhere(FACT)
    aside = memory.with_name("trusted.json.damaged")
    assert aside.read_bytes() == text.encode(errors="surrogateescape")


def test_a_file_that_others_can_write_is_not_believed(memory):
    trusted.remember([FACT])
    memory.chmod(0o620)
    with pytest.warns(RuntimeWarning, match=r"is unknown \(others can write .*trusted\.json\)"):
        assert not trusted_elsewhere(FACT)
    with pytest.warns(RuntimeWarning, match=r"others can write .*trusted\.json, so it is trusted\.json\.damaged now"):
        trusted.remember([OTHER])
    assert trusted_elsewhere(OTHER) and not trusted_elsewhere(FACT)


def test_training_works_where_nothing_can_be_remembered(tmp_path, memory, my_env):
    memory.parent.write_text("a file where a folder should be")
    words = r"^my_env cannot be remembered \(.*\), so .* Set CAPAX_TRUSTED to a file that can be written\.$"
    with pytest.warns(RuntimeWarning, match=words):
        run = train(tmp_path / "run", my_env)
    assert len(run.episodes) == 1
    assert len(capax.evaluate(run, episodes=1).rows) == 1  # in this process, nothing has to be named again
    trusted._named_here.clear()
    with (
        pytest.warns(RuntimeWarning, match="is unknown"),
        pytest.raises(InputError, match="allow it with --env my_env"),
    ):
        capax.resume(run, steps=8, loggers=[])
    with pytest.warns(RuntimeWarning, match="cannot be remembered"):
        assert len(capax.resume(run, steps=8, env=my_env, loggers=[]).episodes) == 2


def test_a_path_that_depends_on_the_current_folder_is_not_used(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(trusted.VARIABLE, "trusted.json")
    (tmp_path / "trusted.json").write_text(json.dumps({"format": 1, "named": [[*FACT]]}))
    (tmp_path / "trusted.json").chmod(0o600)
    with pytest.warns(RuntimeWarning, match=r"trusted\.json is no absolute path"):
        assert not trusted.is_trusted(FACT)


def test_without_the_variable_the_file_is_in_the_users_state_folder(tmp_path, monkeypatch):
    monkeypatch.delenv(trusted.VARIABLE)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert trusted.memory_file() == tmp_path / "state" / "capax" / "trusted.json"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert trusted.memory_file() == tmp_path / "home" / ".local" / "state" / "capax" / "trusted.json"


WRITER = """
import sys
from capax.runs import trusted
trusted.LOCK_TIMEOUT_S = 600.0
for number in range(15):
    trusted.remember([("env", f"{sys.argv[1]}{number}", "")])
"""


def test_processes_that_write_at_once_forget_nothing(memory):
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, name], env={**os.environ}) for name in "ab"]
    assert [writer.wait(PATIENCE_S) for writer in writers] == [0, 0]
    assert len(json.loads(memory.read_text())["named"]) == 30


# Environments, costs, arguments and data.


def test_a_module_that_was_named_is_remembered_with_its_file(tmp_path, my_env):
    run = train(tmp_path / "run", my_env)
    assert trusted_elsewhere(("env", "my_env", str(tmp_path / "my_env.py")))
    assert len(capax.resume(run, steps=8, loggers=[]).episodes) == 2
    assert len(capax.evaluate(run, episodes=1).rows) == 1


def test_a_run_folder_that_modules_of_the_user_could_import_is_refused(tmp_path, my_env):
    # `import my_helper` in my_env would find the folder before the file my_helper.py beside it
    run = train(tmp_path / "my_helper", my_env)
    (run.folder / "__init__.py").write_text("")
    for call in (capax.resume, capax.evaluate):
        with pytest.raises(
            InputError, match=r"my_helper holds __init__\.py, so .*: delete that file, since run folders"
        ):
            call(run)
    (run.folder / "__init__.py").unlink()
    assert len(capax.evaluate(run, episodes=1).rows) == 1


def test_another_function_of_a_module_that_was_named_is_refused(tmp_path, my_env):
    run = capax.train(my_env, method="random", steps=4, cost="my_env:half", loggers=[], out=tmp_path / "run")
    assert run.config.cost_function == "my_env:half" and run.episodes[0]["cost"] == 2.0
    change_config(run.folder, cost_function="my_env:np")
    for call in (capax.resume, capax.evaluate):
        with pytest.raises(
            InputError, match=r"my_env:np of .*my_env.py, which you have never named: .* --cost my_env:np"
        ):
            call(run)


@pytest.mark.parametrize("task", ["capax/HalfCheetahVelocity-v0", "capax/Gridworld-v0", "capax/Integrator-v0"])
def test_arguments_that_the_user_has_never_given_are_refused(tmp_path, task):
    # an argument may name a file, a module or any amount of work: Velocity's `robot` is an id, with a module before it
    run = capax.train(task, method="random", steps=1, episode_steps=1, loggers=[], out=tmp_path / "run")
    change_config(run.folder, env_kwargs={"robot": "evil:Env-v0"}, steps=100)
    refusal = (
        r"""arguments that you have never given .*: if you trust them, .* --env-kwargs 'robot="evil:Env-v0"' \(env_kw"""
    )
    with pytest.raises(InputError, match=refusal):
        capax.resume(run)
    if task != "capax/Gridworld-v0":  # a finite world is not played
        with pytest.raises(InputError, match=refusal):
            capax.evaluate(run)


def test_arguments_of_a_folder_are_not_given_to_a_class_of_the_users(tmp_path):
    run = train_random(tmp_path / "run")
    change_config(run.folder, env_kwargs={"command": "rm"}, steps=100)
    with pytest.raises(InputError, match="arguments that you have never given"):
        capax.resume(run, env=counting())


def test_arguments_that_are_given_again_are_used_and_remembered(tmp_path, my_env, monkeypatch):
    run = capax.train(my_env, method="random", steps=4, env_kwargs={"push": 3.0}, loggers=[], out=tmp_path / "run")
    assert [row["return"] for row in capax.evaluate(run, episodes=1).rows] == [12.0]
    monkeypatch.setenv(trusted.VARIABLE, str(tmp_path / "of_another_user.json"))
    with pytest.raises(InputError, match="--env my_env"):
        capax.evaluate(run, episodes=1)
    with pytest.raises(InputError, match=r"--env-kwargs push=3\.0"):
        capax.evaluate(run, env=my_env, episodes=1)
    assert [row["return"] for row in capax.evaluate(run, env_kwargs={"push": 3.0}, episodes=1).rows] == [12.0]
    assert [row["return"] for row in capax.resume(run, steps=8, loggers=[]).episodes] == [12.0, 12.0]


def test_logged_data_that_the_user_has_never_named_are_not_read(tmp_path):
    run = train_random(tmp_path / "run")
    (run.folder / "episodes.jsonl").write_text("")
    shutil.rmtree(run.folder / "checkpoints")  # as if it had been stopped before it began
    log = tmp_path / "log.npz"
    log.write_text("no logged data")
    change_config(run.folder, initial_data=str(log))
    with pytest.raises(InputError, match=r"logged data that you have never named, .*log\.npz: begin the run again"):
        capax.resume(run, env=counting())
    trusted.remember([trusted.data_fact(str(log))])
    with pytest.raises(InputError, match=r"log\.npz is no \.npz file"):
        capax.resume(run, env=counting())
