"""Let a command end soon after Ctrl-C or SIGTERM, whatever it computes.

Both signals raise an exception in the main thread. Python delivers it between two of its own instructions, so a long
fit or a solver in compiled code can delay it for minutes. A run folder is consistent at any moment. Therefore a second
thread ends the process after a short while.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_TIMEOUT_S = 2.0
"""Seconds that the main thread has to end by itself."""
SIGNALS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class StopRequested(BaseException):
    """Raised in the main thread when a signal asks the process to end."""

    def __init__(self, number: int, advice: str) -> None:
        super().__init__(SIGNALS[signal.Signals(number)])
        self.exit_code, self.advice = 128 + number, advice


@contextmanager
def leaving(advice: Callable[[], str]) -> Iterator[None]:
    """A context in which Ctrl-C and SIGTERM end the process with `advice` and exit code 130 or 143.

    Use it in the main thread of a command.
    """
    left = threading.Event()
    first: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if not first:
            first.append(number)
            raise StopRequested(number, advice())

    def end() -> None:
        """Wait for a byte, which Python writes as soon as a signal arrives, even while compiled code runs."""
        number = os.read(reading, 1)
        if number and number[0] and not left.wait(EXIT_TIMEOUT_S):
            stop = StopRequested(number[0], advice())
            show_cursor = "\x1b[?25h\n" if sys.stderr.isatty() else ""  # a live line hides the cursor
            sys.stderr.write(f"{show_cursor}capax: {stop}; {stop.advice}\n")
            sys.stderr.flush()
            os._exit(stop.exit_code)

    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    handlers = {number: signal.signal(number, handle) for number in SIGNALS}
    wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    watcher = threading.Thread(target=end, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        left.set()
        signal.set_wakeup_fd(wakeup)
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_IGN if first else handler)
        os.write(writing, b"\0")
        watcher.join(EXIT_TIMEOUT_S)
        os.close(reading)
        os.close(writing)
