"""Loggers get every row of a run; one that raises is dropped with a warning, and the run continues."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.tiny_runs import counting, train_random

import capax
from capax.core.errors import InputError
from capax.runs import loggers as module
from capax.runs import tensorboard
from capax.runs.loggers import LOGGERS, LoggerGroup, open_loggers
from capax.runs.run import Run


class CallRecorder(capax.Logger):
    """Keeps what it gets, and raises in one of its methods."""

    def __init__(self, failing: str | None = None) -> None:
        self.failing = failing
        self.calls: list[tuple[str, Any]] = []

    def start(self, folder: Path, config: Mapping[str, Any], first_step: int) -> None:
        self._record("start", (folder, config, first_step))

    def log(self, row: Mapping[str, Any]) -> None:
        self._record("log", row)

    def close(self) -> None:
        self._record("close", None)

    def _record(self, method: str, content: Any) -> None:
        self.calls.append((method, content))
        if method == self.failing:
            raise RuntimeError(f"no\n{method}")

    @property
    def methods(self) -> list[str]:
        return [method for method, _ in self.calls]


class LogAlone:
    """A plain class with `log` and nothing else."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def log(self, row: Any) -> None:
        self.rows.append(row)


class RowChanger(capax.Logger):
    """Empties the rows that it gets."""

    def log(self, row: Any) -> None:
        row.clear()


# Which loggers a user chooses.


def test_names_become_new_loggers_and_objects_stay(monkeypatch):
    monkeypatch.setattr(module, "LOGGERS", LOGGERS.__class__("logger", {"recorder": CallRecorder}))
    own = LogAlone()
    first, kept = open_loggers(["recorder", own])
    assert isinstance(first, CallRecorder) and kept is own
    assert open_loggers(("recorder",))[0] is not first
    assert open_loggers([]) == [] and open_loggers(()) == []


@pytest.mark.skipif(not tensorboard.installed(), reason="tensorboardX is not installed")
def test_tensorboard_is_the_default_where_its_library_is_installed():
    (logger,) = open_loggers(None)
    assert isinstance(logger, tensorboard.TensorBoard)
    assert isinstance(open_loggers(["tensorboard"])[0], tensorboard.TensorBoard)


@pytest.mark.parametrize(("choice", "message"), [
    (["tensorbord"], "there is no logger 'tensorbord': did you mean tensorboard?"),
    (["x"], "there is no logger 'x': choose tensorboard."),
    (["tensorboard", 3], "the logger 3 has no method log(row): give it one."),
    ([None], "the logger None has no method log(row): give it one."),
    ([type("Plain", (), {"log": 1, "__repr__": lambda self: "Plain()"})()],
     "the logger Plain() has no method log(row): give it one."),
    ("tensorboard", "loggers is 'tensorboard': give a list of loggers, as in [MyLogger()] or ['tensorboard']."),
    (3, "loggers is 3: give a list of loggers, as in [MyLogger()] or ['tensorboard']."),
    ({"tensorboard"}, "loggers is {'tensorboard'}: give a list of loggers, as in [MyLogger()] or ['tensorboard']."),
])  # fmt: skip
def test_a_choice_that_is_no_list_of_loggers_is_refused(tmp_path, choice, message):
    with pytest.raises(InputError) as caught:
        open_loggers(choice)
    assert str(caught.value) == message
    with pytest.raises(InputError) as caught:
        train_random(tmp_path / "run", loggers=choice)
    assert str(caught.value) == message and not (tmp_path / "run").exists()


# A group of them.


def test_every_logger_gets_every_call_in_order():
    recorders = [CallRecorder(), CallRecorder()]
    group = LoggerGroup(recorders, pytest.fail)
    group.start(Path("run"), {"seed": 1}, 7)
    group.log({"steps": 8})
    group.log({"steps": 9})
    group.close()
    calls = [("start", (Path("run"), {"seed": 1}, 7)), ("log", {"steps": 8}), ("log", {"steps": 9}), ("close", None)]
    assert [recorder.calls for recorder in recorders] == [calls, calls]


def test_a_plain_class_may_have_log_alone():
    logger = LogAlone()
    group = LoggerGroup([logger], pytest.fail)
    group.start(Path("run"), {}, 0)
    group.log({"steps": 8})
    group.close()
    assert logger.rows == [{"steps": 8}]


def test_a_logger_that_changes_its_row_changes_nobody_elses():
    recorder, row = CallRecorder(), {"steps": 8}
    LoggerGroup([RowChanger(), recorder], pytest.fail).log(row)
    assert recorder.calls == [("log", {"steps": 8})] and row == {"steps": 8}


@pytest.mark.parametrize(("failing", "methods"), [
    ("start", ["start", "close"]), ("log", ["start", "log", "close"]), ("close", ["start", "log", "log", "close"])
])  # fmt: skip
def test_a_logger_that_raises_is_closed_and_dropped_with_a_warning(failing, methods):
    broken, sound, warnings = CallRecorder(failing), CallRecorder(), []
    group = LoggerGroup([broken, sound], warnings.append)
    group.start(Path("run"), {}, 0)
    group.log({"steps": 8})
    group.log({"steps": 9})
    group.close()
    assert broken.methods == methods
    assert sound.methods == ["start", "log", "log", "close"]
    assert warnings == [
        f"the logger CallRecorder raised RuntimeError (no {failing}) in {failing} and was dropped; the run continues, and "
        "episodes.jsonl is complete."
    ]


def test_an_interrupt_in_a_logger_is_not_caught():
    def interrupt(row: Any) -> None:
        raise KeyboardInterrupt

    logger = LogAlone()
    logger.log = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        LoggerGroup([logger], pytest.fail).log({})


# In a run.


def test_a_run_hands_its_config_and_rows_to_its_loggers(tmp_path):
    recorder, plain = CallRecorder(), LogAlone()
    run = train_random(tmp_path / "run", loggers=[recorder, plain])
    assert recorder.calls[0] == ("start", (run.folder, run.config.as_dict(), 0))
    assert recorder.methods == ["start", "log", "log", "log", "close"]
    assert [row for _, row in recorder.calls[1:-1]] == plain.rows == run.episodes
    assert not list(run.folder.glob("events.out.tfevents.*"))


def test_a_run_that_continues_starts_its_loggers_where_it_stands(tmp_path):
    run = train_random(tmp_path / "run", loggers=[])
    recorder = CallRecorder()
    capax.resume(run, steps=16, env=counting(), loggers=[recorder])
    assert recorder.calls[0] == ("start", (run.folder, run.config.as_dict(), 12))
    assert recorder.methods == ["start", "log", "close"] and recorder.calls[1][1] == run.episodes[3]


@pytest.mark.parametrize("failing", ["start", "log", "close"])
def test_a_logger_that_raises_does_not_stop_a_run(tmp_path, capsys, failing):
    run = train_random(tmp_path / "run", loggers=[CallRecorder(failing)])
    assert len(Run(run.folder).episodes) == 3
    err = capsys.readouterr().err
    assert (
        err.count("warning: the logger CallRecorder raised RuntimeError") == 1
        and f"in {failing} and was dropped" in err
    )
