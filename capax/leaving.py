"""How does a command leave at once when it is told to, whatever it is doing?

Ctrl-C and SIGTERM raise an exception in the main thread. Python delivers it between two of its own instructions, which
a long fit or a solver in compiled code can keep it from for minutes; a run folder is safe at any moment, so a second thread
then ends the process after a short while.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

PATIENCE = 2.0
"""Seconds that the main thread has to leave by itself."""
SIGNALS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class Told(BaseException):
    """The process was told to leave."""

    def __init__(self, number: int, advice: str) -> None:
        super().__init__(SIGNALS[signal.Signals(number)])
        self.exit_code, self.advice = 128 + number, advice


@contextmanager
def leaving(advice: Callable[[], str]) -> Iterator[None]:
    """Within this, Ctrl-C and SIGTERM end the process with `advice` and 130 or 143. For the main thread of a command."""
    left = threading.Event()
    first: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if not first:
            first.append(number)
            raise Told(number, advice())

    def end() -> None:
        """Wait for a byte, which Python writes from within the signal's own handler, whatever holds the main thread."""
        number = os.read(reading, 1)
        if number and number[0] and not left.wait(PATIENCE):
            last = Told(number[0], advice())
            show = "\x1b[?25h\n" if sys.stderr.isatty() else ""  # a live line hides the cursor
            sys.stderr.write(f"{show}capax: {last}; {last.advice}\n")
            sys.stderr.flush()
            os._exit(last.exit_code)

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
        watcher.join(PATIENCE)
        os.close(reading)
        os.close(writing)
