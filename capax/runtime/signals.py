"""Let a command end soon after Ctrl-C, SIGTERM or SIGHUP, whatever it computes, and let environments close first.

The signals raise an exception in the main thread. Python delivers it between two of its own instructions, so a long
fit or a solver in compiled code can delay it for minutes. A run folder is consistent at any moment. Therefore a second
thread ends the process after a short while. No thread runs while a library holds the interpreter, so a watchdog process
does the same a little later.

An environment may close in peace: a robot parks. A signal that comes while it closes takes effect when it has closed.
"""

from __future__ import annotations

import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import Any

from capax.runtime.processes import closed_in_children
from capax.runtime.terminal import printable
from capax.runtime.watchdog import Watchdog

EXIT_TIMEOUT_S = 2.0
"""Seconds that the main thread has after a signal to come out of compiled code."""
UNWIND_TIMEOUT_S = 10.0
"""Seconds that it then has to write what remains to be written."""
CLOSE_TIMEOUT_S = 30.0
"""Seconds that an environment or a logger has to close after a signal."""
NOTICE_S = 1.0
"""Seconds after a signal when a message says what is waited for."""
IDLE_NOTICE_S = 10.0
"""The same without a signal."""
AGAIN_S = 0.5
"""Seconds after which another signal is a second one. Programs such as `timeout` send the first one twice."""
POLL_S = 0.1
WAKEUP_CHECK_S = 0.5
"""Seconds between two calls that set the wake-up pipe again: they take several microseconds."""
SIGNALS = {
    getattr(signal, name): word
    for name, word in (("SIGINT", "interrupted"), ("SIGTERM", "terminated"), ("SIGHUP", "the terminal has closed"))
    if hasattr(signal, name)  # Windows has no SIGHUP
}
"""The signals that end a command, each with the word for it."""


class Stop(BaseException):
    """Ends what runs. It is nobody's error, so it passes through everything."""


class StopRequested(Stop):
    """Raised in the main thread when a signal asks the process to end."""

    def __init__(self, number: int, advice: str) -> None:
        super().__init__(SIGNALS[signal.Signals(number)])
        self.exit_code, self.advice = 128 + number, advice


class SignalWatch:
    """State of one `leaving`: its handlers, and how far the end of the process has come."""

    def __init__(self, advice: Callable[[], str], close_timeout: float, killed: str) -> None:
        self.close_timeout, self._advice = close_timeout, advice
        self.thread, self.process = threading.get_ident(), os.getpid()
        self.number: int | None = None
        """The signal that came first."""
        self.raised = False
        """Whether the main thread has been told of it."""
        self.arrived = threading.Event()
        """Set by the second thread when a signal arrives, whatever handlers an environment has set."""
        self._limit, self._since = EXIT_TIMEOUT_S, time.monotonic()
        self._closings: dict[object, str] = {}
        self._checked = -math.inf
        self._wakeups, self._wakeup = os.pipe()
        self._left, self._leave = os.pipe()
        os.set_blocking(self._wakeup, False)
        self._handler = self._handle
        names = {int(number): word for number, word in SIGNALS.items()}
        self._source = self._wakeups
        self._watchdog: Watchdog | None = None
        with suppress(OSError, ValueError, TypeError):  # where no process can be started, there is none
            self._watchdog = Watchdog(self._wakeups, names, killed, EXIT_TIMEOUT_S, AGAIN_S)
            self._source = self._watchdog.source
        self._before = {number: signal.getsignal(number) for number in SIGNALS if not _ignored_hangup(number)}
        self._wakeup_before = signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        self.reinstall()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    @property
    def descriptors(self) -> list[int]:
        """The pipes, which belong to this process alone."""
        own = [self._wakeups, self._wakeup, self._left, self._leave]
        return own if self._watchdog is None else [*own, self._watchdog.source, self._watchdog.control]

    def reinstall(self) -> None:
        """Take the signals back from an environment that has set handlers of its own."""
        for number in self._before:
            if signal.getsignal(number) is not self._handler:
                signal.signal(number, self._handler)
        now = time.monotonic()
        if now > self._checked + WAKEUP_CHECK_S:
            self._checked = now
            with suppress(OSError, ValueError):  # an environment has closed every file
                signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)

    def end(self) -> None:
        """Give the signals back. After a stop they are ignored: nothing must break what is printed last."""
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if self.number else handler)
        with suppress(OSError):
            os.write(self._leave, b"\0")
        self._watcher.join(EXIT_TIMEOUT_S)
        if self._watchdog is not None:
            self._watchdog.close()
        for descriptor in (self._wakeups, self._wakeup, self._left, self._leave):
            os.close(descriptor)

    def forget(self) -> None:
        """Give the signals of a forked child their usual meaning: it is not the one that was asked to end."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            if signal.getsignal(number) is self._handler:
                signal.signal(number, handler if handler == signal.SIG_IGN else usual_handler(number))

    def stop(self) -> StopRequested:
        """The exception for the signal that came."""
        assert self.number is not None
        try:
            advice = self._advice()
        except Exception:  # the folder has gone
            advice = "what was finished is kept."
        return StopRequested(self.number, advice)

    def raise_stop(self) -> None:
        """Raise the exception in the main thread."""
        self.raised = True
        self._allow(UNWIND_TIMEOUT_S)
        raise self.stop()

    def close_begins(self, token: object, name: str) -> None:
        """Something closes, which may take its time."""
        self._closings[token] = name
        self._allow(self.close_timeout)

    def close_ends(self, token: object) -> None:
        """It has closed, or failed to."""
        self._closings.pop(token, None)
        if not self._closings:
            self._allow(UNWIND_TIMEOUT_S if self.raised else EXIT_TIMEOUT_S)

    @property
    def closing(self) -> str:
        """Names of what closes now; empty if nothing does."""
        return ", ".join([*self._closings.values()])

    def _allow(self, seconds: float) -> None:
        self._limit, self._since = seconds, time.monotonic()
        if self._watchdog is not None:
            self._watchdog.allow(seconds)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.number is None:
            self.number = number
        if not self.raised and not self._closings:
            self.raise_stop()

    def _watch(self) -> None:
        """Wait for a signal. Python writes its number as soon as it arrives, even while compiled code runs."""
        number = self._signal(None)
        if not number:
            return
        self.number = self.number or number
        self.arrived.set()
        first, notified = time.monotonic(), False
        while True:
            now = time.monotonic()
            until = max(first, self._since) + self._limit
            if now >= until:
                self._exit()
            name = self.closing
            if name and not notified and now >= max(first, self._since) + NOTICE_S:
                notified = True
                _write(f"waiting up to {until - now:.0f} s for {name} to close; Ctrl-C again ends at once")
            again = self._signal(min(POLL_S, until - now))
            if again == 0:
                return
            if again is not None and time.monotonic() > first + AGAIN_S:
                self._exit()

    def _signal(self, seconds: float | None) -> int | None:
        """The next signal that ends the process, 0 when `leaving` is over, None after these seconds."""
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            left = None if end is None else max(0.0, end - time.monotonic())
            ready, _, _ = select.select([self._source, self._left], [], [], left)
            if self._left in ready:
                return 0
            if not ready:
                return None
            numbers = os.read(self._source, 4096)
            if not numbers:  # somebody has killed the watchdog
                self._source = self._wakeups
            for number in numbers:
                if number in self._before:  # an environment may use others
                    return number

    def _exit(self) -> None:
        stop = self.stop()
        late = f"{name} did not close; " if (name := self.closing) else ""
        show_cursor = "\x1b[?25h\n" if _on_terminal() else ""  # a live line hides the cursor
        _write(f"{stop}; {late}{stop.advice}", show_cursor)
        os._exit(stop.exit_code)


_active: SignalWatch | None = None
_forking = threading.local()


@contextmanager
def leaving(
    advice: Callable[[], str], *, close_timeout: float = CLOSE_TIMEOUT_S, killed: str = "what was finished is kept."
) -> Iterator[None]:
    """A context in which Ctrl-C, SIGTERM and SIGHUP end the process with `advice` and exit code 130, 143 or 129.

    An environment has `close_timeout` seconds to close. If a library holds the interpreter, the process is killed and
    `killed` is printed instead of the advice. Use it in the main thread of a command.
    """
    global _active
    before, watch = _active, SignalWatch(advice, close_timeout, killed)
    _active = watch
    with ExitStack() as stack:
        stack.enter_context(closed_in_children(*watch.descriptors))
        try:
            yield
        finally:
            if os.getpid() == watch.process:
                _active = before
                watch.end()


@contextmanager
def closing(name: str) -> Iterator[None]:
    """A context in which an environment or a logger closes. A signal does not cut it off before its time is over."""
    watch = _active
    if watch is None:
        yield
        return
    token = object()
    notice = threading.Timer(IDLE_NOTICE_S, _write_idle_notice, args=(watch, name))
    notice.daemon = True
    with suppress(RuntimeError):  # too many threads
        notice.start()
    watch.close_begins(token, name)
    try:
        yield
    finally:
        watch.close_ends(token)
        notice.cancel()
    if threading.get_ident() == watch.thread:
        watch.reinstall()
        if watch.number is not None and not watch.raised and not watch.closing:
            watch.raise_stop()


def is_closing() -> bool:
    """Whether an environment or a logger closes now."""
    return _active is not None and bool(_active.closing)


def after_user_code(error: BaseException | None = None) -> None:
    """Take back the signals from the user's code, and raise the stop that it has swallowed, or `error` if that is a stop.

    Any other error is the user's own, also a KeyboardInterrupt that no Ctrl-C has raised.
    """
    watch = _active
    if watch is not None and threading.get_ident() == watch.thread:
        if isinstance(error, KeyboardInterrupt):  # maybe an environment has set Python's handler
            watch.arrived.wait(POLL_S)
        watch.reinstall()
        if watch.number is not None and not watch.closing and not isinstance(error, StopRequested):
            watch.raise_stop()
    if isinstance(error, Stop) or (isinstance(error, KeyboardInterrupt) and watch is None):
        raise error


def usual_handler(number: int) -> Any:
    """The handler that Python begins with."""
    return signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL


def _ignored_hangup(number: int) -> bool:
    """Whether this is SIGHUP, and `nohup` asks to ignore it."""
    return number == getattr(signal, "SIGHUP", None) and signal.getsignal(number) == signal.SIG_IGN


def _before_fork() -> None:
    """Hold back signals until a child has forgotten the handlers."""
    _forking.mask = None if _active is None else signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _after_fork() -> None:
    if _forking.mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _after_fork_in_child() -> None:
    """First steps of a forked child."""
    global _active
    watch, _active = _active, None
    if watch is not None:
        watch.forget()
    _after_fork()


def _write_idle_notice(watch: SignalWatch, name: str) -> None:
    if watch.number is None:
        _write(f"waiting for {name} to close; Ctrl-C ends the wait after {watch.close_timeout:g} s more, twice at once")


def _write(text: str, before: str = "") -> None:
    with suppress(OSError, ValueError, AttributeError):  # nobody reads it
        sys.stderr.write(f"{before}capax: {printable(text)}\n")
        sys.stderr.flush()


def _on_terminal() -> bool:
    with suppress(OSError, ValueError, AttributeError):
        return sys.stderr.isatty()
    return False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
