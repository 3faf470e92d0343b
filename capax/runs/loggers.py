"""Loggers of a run, in addition to `episodes.jsonl`: TensorBoard, and those of a user. One line here adds a named logger."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from capax.core.checks import failure_text, short_repr
from capax.core.contracts import Logger
from capax.core.errors import InputError
from capax.core.registry import Registry
from capax.runs import tensorboard
from capax.runs.tensorboard import TensorBoard
from capax.runtime.processes import contained
from capax.runtime.signals import after_user_code, closing

LOGGERS: Registry[Callable[[], Logger]] = Registry("logger", {"tensorboard": TensorBoard})
"""What a name in `loggers` stands for."""
Loggers = Sequence[str | Any] | None
"""Names and objects; None: TensorBoard if its library is installed."""


def open_loggers(chosen: Loggers) -> list[Any]:
    """The loggers that a user chose, new ones for names."""
    if chosen is None:
        return [TensorBoard()] if tensorboard.installed() else []
    if isinstance(chosen, str) or not isinstance(chosen, Sequence):
        raise InputError(
            f"loggers is {short_repr(chosen)}: give a list of loggers, as in [MyLogger()] or ['tensorboard']."
        )
    for logger in chosen:
        if not isinstance(logger, str) and not callable(getattr(logger, "log", None)):
            raise InputError(f"the logger {short_repr(logger)} has no method log(row): give it one.")
    return [LOGGERS.find(logger)() if isinstance(logger, str) else logger for logger in chosen]


class LoggerGroup:
    """Hands every row to all loggers. One that raises is dropped with a warning: the run matters more."""

    def __init__(self, loggers: Iterable[Any], warn: Callable[[str], None]) -> None:
        self._loggers, self._warn = list(loggers), warn

    def start(self, folder: Path, config: Mapping[str, Any], first_step: int) -> None:
        """The run begins or continues."""
        self._call("start", folder, config, first_step)

    def log(self, row: Mapping[str, Any]) -> None:
        """An episode has ended; each logger gets a copy of its row."""
        self._call("log", row)

    def close(self) -> None:
        """The run has ended or was stopped."""
        self._call("close")

    def _call(self, method: str, *arguments: Any) -> None:
        for logger in [*self._loggers]:
            function = getattr(logger, method, None)  # a plain class may have `log` alone
            if function is None:
                continue
            with closing(f"the logger {type(logger).__name__}") if method == "close" else nullcontext():
                try:
                    contained(function, *(dict(item) if isinstance(item, Mapping) else item for item in arguments))
                except BaseException as error:
                    after_user_code(error)
                    self._loggers.remove(logger)
                    if method != "close":
                        with suppress(Exception):
                            getattr(logger, "close", lambda: None)()  # to release what it holds
                    self._warn(
                        f"the logger {type(logger).__name__} {failure_text(error)} in {method} and was dropped; the run "
                        "continues, and episodes.jsonl is complete."
                    )
