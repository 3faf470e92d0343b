"""Standard output holds results and standard error progress; neither of them ends a run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from support.scripts import PATIENCE_S, environment, script
from support.tiny_runs import counting, train_random
from support.toy_envs import Toy

import capax
from capax.cli.main import COMMANDS, main
from capax.runs.progress import ProgressLine
from capax.runs.run import Run
from capax.training.evaluate import Evaluation


def noisy_evaluation(*_: Any, **__: Any) -> Evaluation:
    """Stands for an evaluation during which everything prints: Python, a library in C, another program."""
    print("from Python")
    os.write(1, b"from C\n")
    subprocess.run(["echo", "from a program"], check=True)
    return Evaluation([], 1.0, 1.0, 0.0, 0.0, 9.0, False, 0, None)


def test_json_of_an_environment_that_prints_is_json(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("capax.training.evaluate.evaluate", noisy_evaluation)
    run = train_random(tmp_path / "run", env=counting())
    capfd.readouterr()
    main(["evaluate", str(run.folder), "--json"])
    out, err = capfd.readouterr()
    assert json.loads(out)["limit"] == 9.0
    assert sorted(err.splitlines()) == ["from C", "from Python", "from a program"]
    main(["evaluate", str(run.folder)])
    out, err = capfd.readouterr()
    assert "from C" in out and "mean of 10" in out and err == ""


def test_what_is_printed_after_the_json_is_not_on_standard_output():
    code = "import atexit, sys; atexit.register(print, 'bye'); from capax.cli.main import main; main()"
    with script("import sys; sys.argv[1:] = ['tasks', '--json']\n" + code) as child:
        out, err = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 0 and json.loads(out) and err == "bye\n"


def test_a_refused_command_prints_no_json(tmp_path, capfd):
    with pytest.raises(SystemExit):
        main(["evaluate", str(tmp_path / "nothing"), "--json"])
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("capax: ")
    os.write(1, b"restored\n")
    assert capfd.readouterr().out == "restored\n"


class Broken:
    """A stream that can no longer be written."""

    encoding = "utf-8"

    def __init__(self, error: Exception) -> None:
        self.error = error

    def write(self, text: str) -> int:
        raise self.error

    def flush(self) -> None:
        raise self.error

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("error", [
    BrokenPipeError(32, "Broken pipe"), OSError(28, "No space left on device"), ValueError("I/O operation on closed file"),
], ids=repr)  # fmt: skip
def test_a_broken_standard_error_does_not_end_a_run(error, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Broken(error))
    assert len(train_random(tmp_path).episodes) == 3


def test_no_standard_error_does_not_end_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with ProgressLine(task="toy", steps=4, limit=1.0, discounted=False) as line:
        line.warn("nobody reads this")


LOUD = """
import os, sys
import gymnasium as gym
from capax.envs.integrator import Integrator

class Loud(Integrator):
    def step(self, action):
        print("x" * 1000, flush=True)
        print("x" * 1000, file=sys.stderr, flush=True)
        return super().step(action)

gym.register(id="Loud-v0", entry_point="loud:Loud", max_episode_steps=50, kwargs={"cost_limit": 25.0})
"""


@pytest.mark.parametrize(("streams", "code"), [("2>&1 | true", "141"), ("2>&-", "0")])
def test_a_run_goes_on_without_readers(streams, code, tmp_path):
    (tmp_path / "loud.py").write_text(LOUD)
    train = f"{sys.executable} -m capax train loud:Loud-v0 --method random --steps 100 --out run"
    command = f"{train} {streams}; echo ${{PIPESTATUS[0]}} > code"
    subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment(), check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "code").read_text().strip() == code
    assert len(Run(tmp_path / "run").episodes) == 2
    for path in (tmp_path / "run").rglob("*"):  # no file has got the number of a closed stream
        assert path.is_dir() or b"xxx" not in path.read_bytes()


def test_closed_standard_streams_are_opened():
    """Otherwise the next file would get the number that libraries write errors to."""
    code = """
import os
from capax.runtime.streams import open_missing
os.close(0), os.close(2)
open_missing()
null = os.stat(os.devnull)
print(all(os.path.samestat(os.fstat(number), null) and os.get_inheritable(number) for number in (0, 2)))
"""
    with script(code) as child:
        assert child.communicate(timeout=PATIENCE_S)[0] == "True\n"


@pytest.mark.parametrize("command", ["--version", "tasks"])
def test_a_full_standard_output_is_one_sentence(command):
    code = f"{sys.executable} -m capax {command} >/dev/full"
    done = subprocess.run(code, shell=True, env=environment(), capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stderr == "capax: the output could not be written (No space left on device).\n"


@pytest.mark.parametrize("command", ["settings", "tasks"])
def test_a_reader_that_has_gone_is_no_error(command):
    with script(f"import sys; sys.argv[1:] = ['{command}']; from capax.cli.main import main; main()") as child:
        child.stdout.close()
        assert child.wait(PATIENCE_S) == 141
        assert child.stderr.read() == ""


def test_a_full_standard_error_does_not_change_the_exit_code(tmp_path):
    command = f"{sys.executable} -m capax report {tmp_path} 2>/dev/full"
    assert subprocess.run(command, shell=True, env=environment()).returncode == 2


NASTY = """
import os, signal, sys, time
import gymnasium as gym
from capax.envs.integrator import Integrator

class Nasty(Integrator):
    def __init__(self, how="", **options):
        super().__init__(**options)
        self.how, self.count = how, 0

    def reset(self, **options):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return super().reset(**options)

    def step(self, action):
        self.count += 1
        if self.count == 70 and self.how == "forks":
            os.fork()  # the child goes on as if it were the parent
            if os.getppid() == int(os.environ["TEST"]):
                print("now", flush=True)
                time.sleep(600)
        if self.count == 70 and self.how == "exits":
            os._exit(0)
        return super().step(action)

    def close(self):
        while self.how == "forks" and "waiting up to" not in open("errors").read():  # so long that this is said
            time.sleep(0.01)
        print("parked", flush=True)

gym.register(id="Nasty-v0", entry_point="nasty:Nasty", max_episode_steps=50, kwargs={"cost_limit": 25.0})
"""
IN_TIME = """
import sys
from capax.cli.main import main
from capax.runtime import signals, watchdog
signals.EXIT_TIMEOUT_S = signals.UNWIND_TIMEOUT_S = watchdog.MARGIN_S = 600.0  # a busy machine may be slow
main(sys.argv[1:])
"""
TRAIN = ["train", "nasty:Nasty-v0", "--method", "random", "--steps", "150", "--out", "run"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The rows of a run that nothing disturbs."""
    folder = tmp_path_factory.mktemp("whole")
    return capax.train("capax/Integrator-v0", method="random", steps=150, out=folder, cost_limit=25.0).episodes


def test_a_forking_environment_that_sets_handlers_parks_and_can_be_resumed(tmp_path, workspace, whole, capfd):
    (tmp_path / "nasty.py").write_text(NASTY)
    variables = environment() | {"TEST": str(os.getpid())}
    arguments = [*TRAIN, "--env-kwargs", "how=forks", "--close-timeout", "600"]
    with (
        open("errors", "w") as errors,
        script(IN_TIME, *arguments, cwd=tmp_path, env=variables, stderr=errors) as child,
    ):
        assert child.stdout is not None and child.stdout.readline() == "now\n"
        child.terminate()
        out, _ = child.communicate(timeout=PATIENCE_S)
    err = Path("errors").read_text()
    assert child.returncode == 143 and out == "parked\n"
    assert re.search(r"waiting up to \d+ s for nasty:Nasty-v0 to close", err) and "Traceback" not in err
    assert err.splitlines()[-1] == "capax: terminated; 1 episode safe in run; continue with: capax resume run"
    run = Run(Path("run"))
    assert len(run.episodes) == 1 and [row["length"] for row in run.interrupted] == [19]
    assert_resumes(whole)


def test_an_environment_that_ends_the_process_loses_nothing(tmp_path, workspace, whole):
    (tmp_path / "nasty.py").write_text(NASTY)
    command = [sys.executable, "-m", "capax", *TRAIN, "--env-kwargs", "how=exits"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True)
    assert done.returncode == 0 and len(Run(Path("run")).episodes) == 1
    assert_resumes(whole)


def assert_resumes(whole: list[dict[str, Any]]) -> None:
    """The run continues, and its rows are those of a run that was not stopped."""
    run = capax.resume("run", env=lambda **_: gym.make("capax/Integrator-v0"))
    for row, expected in zip(run.episodes, whole, strict=True):
        assert {**row, "time": None} == {**expected, "time": None}


def test_an_environment_that_calls_exit_is_named(workspace, refusal):
    def reply(toy: Toy) -> Any:
        if toy.resets == 4 and toy.count == 2:
            sys.exit(0)
        return toy.result()

    options = {"max_episode_steps": 4, "kwargs": {"cost_limit": 9.0}}
    gym.register("test/Exits-v0", entry_point=lambda **_: Toy(reply=reply), **options)
    message = refusal("train", "test/Exits-v0", "--method", "random", "--steps", "40", "--out", "run", code=3)
    assert message.startswith("test/Exits-v0 called sys.exit(0) in step 2 of the episode: fix its step (in episode 1;")
    assert message.endswith("capax resume run continues from there).")


def test_an_exit_at_any_other_place_is_named(refusal, monkeypatch):
    monkeypatch.setattr(COMMANDS["tasks"], "run", lambda self: sys.exit(0))
    assert refusal("tasks", code=3) == "a module of yours called sys.exit(0): let it raise an error instead."


@pytest.mark.parametrize("command", [["train", "capax/Integrator-v0"], ["resume", "run"], ["evaluate", "run"]])
@pytest.mark.parametrize("seconds", ["-1", "nan", "1e9"])
def test_a_close_timeout_that_is_no_time_is_refused(command, seconds, refusal, workspace):
    assert refusal(*command, f"--close-timeout={seconds}").startswith("--close-timeout is ")
    assert not Path("run").exists() and not Path("runs").exists()


@pytest.mark.parametrize("command", ["train capax/Integrator-v0 --method random --out", "resume", "evaluate"])
def test_the_close_timeout_reaches_the_signals(command, tmp_path, monkeypatch):
    class Reached(Exception):
        pass

    def record(*_: Any, close_timeout: float, **__: Any) -> Any:
        assert close_timeout == 7.5
        raise Reached

    for module in ("options", "runs"):
        monkeypatch.setattr(f"capax.cli.{module}.leaving", record)
    with pytest.raises(Reached):
        main([*command.split(), str(tmp_path / "run"), "--close-timeout", "7.5"])
