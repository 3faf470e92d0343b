"""The line that shows a training run while it goes on, and its warnings."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, TextIO

import rich.live
from rich.text import Text

from capax.runtime.streams import ForgivingStream, standard_error
from capax.runtime.terminal import CleanConsole, line

DRAW_SECONDS = 0.2
"""Between two redraws of the line."""
PRINT_SECONDS = 1.0
"""Between two plain lines, at least."""
RATE_SECONDS = 60.0
"""Over which steps per second are counted."""
PLAIN_WIDTH = 80
"""Columns of a plain line."""


class ProgressLine:
    """One line on a terminal that moves as steps happen; elsewhere a plain line per episode. All of it on stderr."""

    def __init__(
        self,
        *,
        task: str,
        steps: int,
        limit: float,
        discounted: bool,
        done: int = 0,
        preset: str | None = None,
        lane: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        stream: TextIO | None = None,
    ) -> None:
        """`steps` of the whole run, of which `done` were done before. `discounted` says which cost of an episode the limit is
        on. `preset` is named in the first line. A `lane` shares the terminal with others: its lines are plain and begin with
        its name."""
        self._lane = "" if lane is None else f"{lane}: "
        self._task, self._steps, self._limit, self._discounted, self._clock = task, steps, limit, discounted, clock
        self._preset = preset
        # a notebook gets plain lines on stderr, not rich's HTML
        file = standard_error() if stream is None else ForgivingStream(lambda: stream)
        self._console = CleanConsole(file=file, force_jupyter=False)
        self._terminal = self._console.is_interactive and not CleanConsole().is_jupyter and lane is None
        self._own_stream = stream is not None
        self._encoding = getattr(self._console.file, "encoding", None) or "utf-8"
        self._line: rich.live.Live | None = None
        self._done = done
        self._row: Mapping[str, Any] | None = None
        self._unprinted = False
        self._next_tick = self._next_print = -math.inf
        self._samples: deque[tuple[float, int]] = deque()  # times, and the steps that were done
        self._warned: set[str] = set()

    def __enter__(self) -> ProgressLine:
        if self._terminal:
            # what others write on stderr comes above the line; what they write on stdout stays there, maybe a file
            self._line = rich.live.Live(
                console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=not self._own_stream
            )
            self._line.start()
        limit = f"limit {compact(self._limit)} on the {'discounted ' if self._discounted else ''}cost"
        held = limit if math.isfinite(self._limit) else "no limit on the cost"
        done = f", {self._done} of them done" if self._done else ""
        preset = "" if self._preset is None else f", preset {self._preset}"
        self._say(f"{self._task}: {self._steps} steps{done}{preset}, {held}")
        self._samples.append((self._clock(), self._done))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._unprinted:
            self._print()
        if self._line is not None:
            self._draw()
            self._line.stop()
            self._line = None

    def step(self, done: int) -> None:
        """`done` environment steps so far."""
        self._done = done
        if self._clock() >= self._next_tick:
            self._tick()

    def episode(self, row: Mapping[str, Any]) -> None:
        """An episode has ended."""
        self._done = max(self._done, int(row["steps"]))
        self._row = row
        self._tick()
        if self._line is None:
            self._unprinted = True
            if self._clock() >= self._next_print:
                self._print()

    def warn(self, message: str) -> None:
        """Print a warning above the line, unless it has been printed before."""
        if message not in self._warned:
            self._warned.add(message)
            self._say(f"warning: {message}")

    def _tick(self) -> None:
        """Remember when this step was done, forget what is too long ago, and draw."""
        now = self._clock()
        self._next_tick = now + DRAW_SECONDS
        self._samples.append((now, self._done))
        while len(self._samples) > 2 and self._samples[1][0] <= now - RATE_SECONDS:
            self._samples.popleft()
        self._draw()

    def _draw(self) -> None:
        if self._line is not None:
            self._line.update(self._text(self._console.width), refresh=True)

    def _say(self, words: str) -> None:
        """Print above the line."""
        self._console.print(line(self._encodable(self._lane + words)), soft_wrap=True)

    def _print(self) -> None:
        self._say(self._text(PLAIN_WIDTH).plain)
        self._next_print = self._clock() + PRINT_SECONDS
        self._unprinted = False

    def _text(self, width: int) -> Text:
        """The line, with narrow gaps and short words if `width` columns need them."""
        for gap, short in (("  ", False), (" ", False), (" ", True)):
            text = Text(gap, no_wrap=True, overflow="crop").join(self._parts(short))
            if len(text) <= width:
                break
        return text

    def _parts(self, short: bool) -> list[Text]:
        """The parts of the line."""
        row, rate = self._row, self._rate()
        parts = [Text(f"{100 * self._done // max(self._steps, 1)}%"), Text(f"{compact(rate)}/s")]
        if row is not None:
            cost = row["discounted_cost" if self._discounted else "cost"]
            sign, style = (">", "red") if row["violation"] else ("/", "green")
            limit = "" if row["limit"] in (None, math.inf) else f"{sign}{compact(row['limit'])}"
            parts.insert(0, Text(f"ep {row['episode']}"))
            parts.append(Text(f"{'ret' if short else 'return'} {self._returns(row)}"))
            parts.append(Text(f"cost {compact(cost)}{limit}", style))
            parts.append(Text(f"viol {violations(row, short)}"))
            if row["phase"] == "random":
                parts.append(Text("random"))
            elif row["kappa"] is not None:
                parts.append(Text(f"{'κ' if self._encodable('κ') == 'κ' else 'kappa'} {compact(row['kappa'])}"))
        if rate and self._done < self._steps:
            parts.append(Text(f"{duration((self._steps - self._done) / rate)} left"))
        return parts

    def _returns(self, row: Mapping[str, Any]) -> str:
        """The return and, where the limit is on the discounted cost, the discounted return."""
        discounted = row.get("discounted_return")
        if not self._discounted or discounted is None or discounted == row["return"]:
            return compact(row["return"])
        return f"{compact(row['return'])} (discounted {compact(discounted)})"

    def _rate(self) -> float | None:
        """Steps per second since the oldest time that is remembered."""
        if not self._samples:
            return None
        (then, before), (now, done) = self._samples[0], self._samples[-1]
        return (done - before) / (now - then) if now > then else None

    def _encodable(self, text: str) -> str:
        return text.encode(self._encoding, "replace").decode(self._encoding)


def violations(row: Mapping[str, Any], short: bool = False) -> str:
    """Violations of planned episodes so far and, if there are any, those of random ones: 2, 2 (+1 random), in short 2+1."""
    planned = int(row.get("planned_violations", row["violations"]))
    random = int(row["violations"]) - planned
    if not random:
        return f"{planned}"
    return f"{planned}+{random}" if short else f"{planned} (+{random} random)"


def compact(number: float | None) -> str:
    """Three digits or so, in five characters or so: 0.0123, 12.3, 1.23k, 5e-05."""
    if number is None:
        return "-"
    size = abs(number)
    for suffix, unit in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if math.isfinite(size) and size >= 0.9995 * unit:
            return f"{number / unit:.3g}{suffix}" if size < 999.5 * unit else f"{number:.0e}"
    if 0.0 < size < 1e-3:
        return f"{number:.0e}"
    return f"{number + 0.0:.3g}"  # -0.0 is 0


def duration(seconds: float) -> str:
    """In two units at most: 45s, 12m05s, 3h07m, 2d05h."""
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"
