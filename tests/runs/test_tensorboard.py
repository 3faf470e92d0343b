"""TensorBoard reads the curves that a run writes, each row as soon as it is logged, and each step once after a restart."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capax.core.errors import InputError
from capax.runs import tensorboard
from capax.runs.loggers import LoggerGroup, open_loggers
from capax.runs.tensorboard import TensorBoard, scalars

needs_library = pytest.mark.skipif(not tensorboard.installed(), reason="tensorboardX is not installed")


def row(steps: int, **numbers: Any) -> dict[str, Any]:
    """A row of `episodes.jsonl`, with fewer columns."""
    return {"episode": 3, "steps": steps, "phase": "plan", "limit": None, **numbers}


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """(step, value) of every curve, as TensorBoard reads the folder."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    reader = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    reader.Reload()
    return {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def started(folder: Path, first_step: int = 0) -> TensorBoard:
    """A logger of a run that continues after `first_step` steps."""
    logger = TensorBoard()
    logger.start(folder, {}, first_step)
    return logger


# The numbers of a row.


def test_a_row_has_its_numbers_and_those_of_its_clock():
    numbers = {"return": -1.5, "violation": True, "κ": 0, "time": {"seconds": 8.0, "steps_per_second": 7.5}}
    assert scalars(row(5, **numbers)) == {
        "episode": 3.0, "return": -1.5, "violation": 1.0, "κ": 0.0, "steps_per_second": 7.5
    }  # fmt: skip
    # no curve: the steps are the axis, the seconds rise with them, and words and missing numbers have no value


# The files.


@needs_library
def test_tensorboard_reads_the_curves(tmp_path):
    logger = started(tmp_path)
    logger.log(row(1, **{"return": -1.5, "cost": 2.0}))
    logger.log(row(3_000_000_000, **{"return": 2.5}))  # a step of more than 32 bits
    logger.close()
    assert curves(tmp_path) == {
        "episode": [(1, 3.0), (3_000_000_000, 3.0)],
        "return": [(1, -1.5), (3_000_000_000, 2.5)],
        "cost": [(1, 2.0)],
    }


@needs_library
def test_values_are_float32_and_need_not_be_finite(tmp_path):
    logger = started(tmp_path)
    values = (0.1, 1e300, -1e300, 7, True, math.nan, math.inf, -math.inf)
    for step, value in enumerate(values, start=1):
        logger.log(row(step, x=value))
    logger.close()
    expected = [float(np.float32(0.1)), math.inf, -math.inf, 7.0, 1.0, math.nan, math.inf, -math.inf]
    np.testing.assert_equal([value for _, value in curves(tmp_path)["x"]], expected)


@needs_library
def test_every_row_is_on_the_disk_after_log(tmp_path):
    logger = started(tmp_path)
    for step in range(1, 21):
        logger.log(row(step, x=step))
        assert [step for step, _ in curves(tmp_path)["x"]] == list(range(1, step + 1))
    logger.close()


@needs_library
def test_rows_with_many_curves(tmp_path):
    values = {f"{'long' * 50}/{number}": float(number) for number in range(500)}
    logger = started(tmp_path)
    logger.log(row(1, **values))
    logger.close()
    assert {tag: points[0][1] for tag, points in curves(tmp_path).items() if tag != "episode"} == values


@needs_library
def test_a_restart_purges_the_steps_that_are_done_again(tmp_path):
    # a run was stopped after step 4 and continues after step 2
    for first_step, steps in ((0, range(1, 5)), (2, range(3, 8))):
        logger = started(tmp_path, first_step)
        for step in steps:
            logger.log(row(step, x=10 * first_step + step))
        logger.close()
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 2
    assert curves(tmp_path)["x"] == [(1, 1.0), (2, 2.0), *((step, 20.0 + step) for step in range(3, 8))]


@needs_library
def test_two_starts_within_one_second_make_two_files(tmp_path):
    for number in range(2):
        logger = started(tmp_path, number)
        logger.log(row(number + 1, x=number))
        logger.close()
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 2
    assert curves(tmp_path)["x"] == [(1, 0.0), (2, 1.0)]  # TensorBoard reads files in the order of their names


@needs_library
def test_a_logger_can_be_closed_twice_and_started_again(tmp_path):
    logger = TensorBoard()
    logger.close()
    logger.start(tmp_path, {}, 0)
    logger.log(row(1, x=1))
    logger.close()
    logger.close()
    logger.start(tmp_path, {}, 1)
    logger.log(row(2, x=2))
    logger.close()
    assert curves(tmp_path)["x"] == [(1, 1.0), (2, 2.0)]


@needs_library
def test_a_disk_that_fails_stops_the_curves_and_not_the_run(tmp_path, monkeypatch):
    from tensorboardX.record_writer import RecordWriter

    warnings: list[str] = []
    loggers = LoggerGroup([TensorBoard()], warnings.append)
    loggers.start(tmp_path, {}, 0)
    loggers.log(row(1, x=1))
    assert warnings == []

    def full(self: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(RecordWriter, "flush", full)
        for step in range(2, 300):  # more than any queue would hold
            loggers.log(row(step, x=step))
        loggers.close()
    (warning,) = warnings
    assert "TensorBoard raised OSError" in warning and "the run continues" in warning
    assert curves(tmp_path)["x"][0] == (1, 1.0)


# Without the library.


def test_without_the_library_its_name_is_refused_and_the_default_has_no_logger(monkeypatch):
    monkeypatch.setattr(tensorboard, "INSTALLED", False)
    assert not tensorboard.installed() and open_loggers(None) == []
    message = "the logger tensorboard needs tensorboardX: run pip install 'capax[tensorboard]'."
    for choice in (TensorBoard, lambda: open_loggers(["tensorboard"])):
        with pytest.raises(InputError) as caught:
            choice()
        assert str(caught.value) == message
