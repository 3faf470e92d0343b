"""A small process that kills this one if it does not end after a signal because a library holds the interpreter.

Nothing written in Python can run in this process then, in no thread. But Python's own signal handler still writes the
number of the signal into a pipe. The watchdog reads that pipe, and passes the numbers on to a thread of this process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

from capax.runtime.terminal import printable

MARGIN_S = 1.0
"""Seconds that this process has to end by itself before the watchdog kills it."""
CODE = """
import json, os, select, signal, sys, time
if os.fork():  # no child of the parent: an environment may wait for all children, or kill them
    os._exit(0)
parent, wakeups, forward = (int(number) for number in sys.argv[1:4])
os.set_blocking(forward, False)
signals, message, again_s, margin_s, limit = json.loads(sys.argv[4])
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)  # a scheduler may signal every process of a job
first = until = None
name, since = "", time.monotonic()
while True:
    now = time.monotonic()
    if first is not None and now >= until:
        break
    ready, _, _ = select.select([0, wakeups], [], [], None if first is None else until - now)
    now = time.monotonic()
    if 0 in ready:
        states = os.read(0, 4096).split()
        if not states:  # the parent has ended
            os._exit(0)
        limit, since = float(states[-1]), now
    if wakeups in ready:
        numbers = os.read(wakeups, 4096)
        try:
            os.write(forward, numbers)
        except OSError:
            pass
        for number in numbers:
            if str(number) in signals and first is None:
                first, name = now, signals[str(number)]
            elif str(number) in signals and now > first + again_s:
                limit, since = 0.0, now
    if first is not None:
        until = max(first, since) + limit + margin_s
cursor = "\\x1b[?25h\\n" if os.isatty(2) else ""  # a live line hides it
try:
    if select.select([], [2], [], 0.1)[1]:
        os.write(2, f"{cursor}capax: {name}; {message}\\n".encode())
except OSError:
    pass
os.kill(parent, signal.SIGKILL)
"""


class Watchdog:
    """The watchdog of this process. `source` gets the numbers of the signals that arrive, or the end of the file."""

    def __init__(self, wakeups: int, signals: Mapping[int, str], message: str, limit_s: float, again_s: float) -> None:
        """`wakeups` is the pipe that Python writes signals into. `signals` has the names of those that end the process within
        `limit_s`, or at once if another one comes later than `again_s`. `message` is what the watchdog then says."""
        self.source, forward = os.pipe()
        try:
            settings = json.dumps([signals, printable(message), again_s, MARGIN_S, limit_s])
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", CODE, str(os.getpid()), str(wakeups), str(forward), settings],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=(wakeups, forward), start_new_session=True,
            )  # fmt: skip
            assert process.stdin is not None
            self.control = os.dup(process.stdin.fileno())
            process.stdin.close()
            process.wait()
        except BaseException:
            os.close(self.source)
            raise
        finally:
            os.close(forward)

    def allow(self, seconds: float) -> None:
        """From now on the process has this many seconds to end after a signal."""
        with suppress(OSError):
            os.write(self.control, f"{seconds}\n".encode())

    def close(self) -> None:
        """Let the watchdog end."""
        os.close(self.control)
        os.close(self.source)
