"""Curves for TensorBoard, written by tensorboardX into the run folder."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from capax.core.contracts import Logger
from capax.core.errors import InputError

INSTALLED = find_spec("tensorboardX") is not None
"""Found out at once: later, the current folder may be on the path, and hold anything of that name."""
HIDDEN = ("steps", "seconds")
"""Numbers of a row that are no curves."""
OWN_END = ".capax"
"""Ends the names of our event files: others in the folder are left alone."""


def is_own(name: str) -> bool:
    """Whether a file of this name was written by `TensorBoard`."""
    return name.startswith("events.out.tfevents.") and name.endswith(OWN_END)


def installed() -> bool:
    """Whether tensorboardX is there."""
    return INSTALLED


class TensorBoard(Logger):
    """One event file per start of a run. A run that continues undoes what an earlier file says about later steps.

    Rows are written without tensorboardX's queue and thread: a row is on the disk when `log` returns, and a full disk raises
    here instead of filling a queue that nobody empties.
    """

    def __init__(self) -> None:
        if not installed():
            raise InputError("the logger tensorboard needs tensorboardX: run pip install 'capax[tensorboard]'.")
        self._file: Any = None

    def start(self, folder: Path, config: Mapping[str, Any], first_step: int) -> None:
        from tensorboardX.proto.event_pb2 import SessionLog  # slow to import
        from tensorboardX.record_writer import RecordWriter

        now = time.time_ns()  # two starts within a second get different names, in their order
        path = folder / f"events.out.tfevents.{now // 10**9:010d}.{socket.gethostname()}.{now % 10**9:09d}{OWN_END}"
        path.open("xb").close()  # a new file, whatever waits under this name
        self._file = RecordWriter(str(path))
        self._write(file_version="brain.Event:2")
        self._write(step=first_step + 1, session_log=SessionLog(status=SessionLog.START))
        self._file.flush()

    def log(self, row: Mapping[str, Any]) -> None:
        from tensorboardX.proto.summary_pb2 import Summary

        if self._file is not None:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars(row).items()]
            self._write(step=row["steps"], summary=Summary(value=values))
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            file.close()

    def _write(self, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._file.write(Event(wall_time=time.time(), **content).SerializeToString())


def scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row, those of its clock included."""
    return {
        name: float(value)
        for name, value in {**row, **row.get("time", {})}.items()
        if isinstance(value, int | float) and name not in HIDDEN
    }
