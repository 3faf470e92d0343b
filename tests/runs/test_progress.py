"""The progress line: its content on a terminal and elsewhere, and its cost per step, which is next to nothing."""

from __future__ import annotations

import io
import re
import sys
import time
from typing import Any

import pytest

from capax.runs import progress
from capax.runs.progress import ProgressLine, compact, duration


class Clock:
    """A clock that a test moves."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variables that rich reads to the same values everywhere."""
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")


def row(**changes: Any) -> dict[str, Any]:
    """An episode that kept the limit."""
    return {
        "episode": 7, "steps": 500, "phase": "plan", "return": 1234.5, "cost": 150.0, "discounted_cost": 12.0,
        "limit": 152.0, "violation": False, "violations": 2, "kappa": 0.125,
    } | changes  # fmt: skip


def plain_lines(*rows: dict[str, Any], seconds: float = 10.0, **settings: Any) -> list[str]:
    """The plain lines of a run with these episodes, `seconds` apart, without its first line."""
    clock, stream = Clock(), io.StringIO()
    with ProgressLine(**{"task": "t", "steps": 1000, "limit": 152.0, "discounted": False} | settings, clock=clock,
              stream=stream) as line:  # fmt: skip
        line.step(0)
        for each in rows:
            clock.now += seconds
            line.episode(each)
    return stream.getvalue().splitlines()[1:]


def broken_off(stream: io.StringIO, error: type[BaseException], *rows: dict[str, Any]) -> None:
    """A run in which an error is raised after these episodes, all at one time."""
    with ProgressLine(task="t", steps=1000, limit=1.0, discounted=False, clock=Clock(), stream=stream) as line:
        for each in rows:
            line.episode(each)
        raise error


def pictures(stream: io.StringIO) -> list[str]:
    """Everything that a terminal has shown: an entry per picture of the line, without control codes."""
    return [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", part).strip() for part in re.split(r"\r|\n", stream.getvalue())]


# The content of the line.


def test_the_line_has_all_numbers():
    # 500 of 1000 steps in 10 seconds: 50 a second, and 500/50 = 10 seconds to go
    assert plain_lines(row()) == ["ep 7  50%  50/s  return 1.23k  cost 150/152  viol 2  κ 0.125  10s left"]


def test_a_violation_is_marked_even_where_the_rounded_numbers_are_equal():
    assert "cost 152>152" in plain_lines(row(cost=152.3, violation=True))[0]


def test_a_discounted_limit_is_compared_with_the_discounted_cost():
    assert "cost 12/152" in plain_lines(row(), discounted=True)[0]


@pytest.mark.parametrize("none", [None, float("inf")])
def test_no_limit_is_shown_where_there_is_none(none):
    assert "  cost 150  " in plain_lines(row(limit=none))[0]


def test_random_phase_has_no_kappa():
    assert "κ" not in plain_lines(row(phase="random"))[0] and "random" in plain_lines(row(phase="random"))[0]


def test_an_agent_without_kappa_shows_none():
    assert plain_lines(row(kappa=None)) == ["ep 7  50%  50/s  return 1.23k  cost 150/152  viol 2  10s left"]


def test_violations_of_planned_and_random_episodes_are_two_numbers():
    assert "  viol 2  " in plain_lines(row(planned_violations=2))[0]
    assert " viol 0 (+2 random) " in plain_lines(row(planned_violations=0))[0]
    assert " viol 2 (+1 random) " in plain_lines(row(violations=3, planned_violations=2))[0]


def test_no_time_is_left_at_the_end():
    assert plain_lines(row(steps=1000))[0].endswith("κ 0.125")


@pytest.mark.parametrize("planned", [9999, 9990])
@pytest.mark.parametrize("scale", [-1.23456e-9, -0.0123, -99.949, 999.6, -1234.5, -123456.0, 1.2345e13])
def test_line_fits_into_80_columns(scale, planned):
    worst = row(
        episode=9999,
        violations=9999,
        planned_violations=planned,
        cost=scale,
        kappa=abs(scale),
        limit=abs(scale),
        violation=True,
    )
    for line in plain_lines(worst | {"return": scale}, seconds=50.0, steps=10**6):
        assert len(line) <= 80 and line.endswith("left")


def test_first_line_names_the_task_and_the_limit():
    stream = io.StringIO()
    with ProgressLine(task="Ant-v5", steps=1000, limit=25.0, discounted=True, stream=stream):
        pass
    assert stream.getvalue() == "Ant-v5: 1000 steps, limit 25 on the discounted cost\n"


def test_first_line_names_the_preset_and_the_steps_that_are_done():
    stream = io.StringIO()
    with ProgressLine(
        task="Ant-v5", steps=1000, limit=float("inf"), discounted=False, done=300, preset="fast", stream=stream
    ):
        pass
    assert stream.getvalue() == "Ant-v5: 1000 steps, 300 of them done, preset fast, no limit on the cost\n"


def test_lines_of_a_lane_begin_with_its_name():
    lines = plain_lines(row(), lane="seed 3")
    assert lines == ["seed 3: ep 7  50%  50/s  return 1.23k  cost 150/152  viol 2  κ 0.125  10s left"]


@pytest.mark.parametrize(("number", "text"), [
    (0.0, "0"), (-0.0, "0"), (5, "5"), (12.345, "12.3"), (-0.01234, "-0.0123"), (0.0009996, "1e-03"), (999.4, "999"),
    (999.6, "1k"), (-1234.0, "-1.23k"), (999_600.0, "1M"), (2.5e9, "2.5G"), (1e13, "1e+13"), (4.6e-5, "5e-05"),
    (float("nan"), "nan"), (float("-inf"), "-inf"), (None, "-"),
])  # fmt: skip
def test_numbers_are_compact(number, text):
    assert compact(number) == text


@pytest.mark.parametrize(("seconds", "text"), [
    (0.2, "1s"), (59.0, "59s"), (59.5, "1m00s"), (725.0, "12m05s"), (3600.0, "1h00m"), (11_220.0, "3h07m"),
    (86_400.0 * 2 + 3600 * 5, "2d05h"),
])  # fmt: skip
def test_durations_have_two_units_at_most(seconds, text):
    assert duration(seconds) == text


def test_rate_is_of_the_recent_window_and_counts_a_pause_in_it():
    clock, stream = Clock(), io.StringIO()
    with ProgressLine(task="t", steps=10**6, limit=1.0, discounted=False, clock=clock, stream=stream) as line:
        for done in range(0, 1001, 10):  # 100 seconds of 10 a second
            line.step(done)
            clock.now += 1.0
        for done in range(1001, 1101):  # then more than a window of 1 a second
            line.step(done)
            clock.now += 1.0
        line.episode(row(steps=1101))
        clock.now += 300.0  # a model is fitted, longer than the window: 1 step in these 300 seconds and the one before
        line.step(1102)
        line.episode(row(steps=1102))
    first, second = stream.getvalue().splitlines()[1:]
    assert "  1/s  " in first
    assert "  0.003" in second


def test_rate_of_a_resumed_run_does_not_count_the_steps_before():
    clock, stream = Clock(), io.StringIO()
    with ProgressLine(task="t", steps=2000, limit=1.0, discounted=False, done=1000, clock=clock, stream=stream) as line:
        clock.now += 10.0
        line.episode(row(steps=1500))
    assert "75%  50/s" in stream.getvalue()


# Without a terminal.


def test_slow_episodes_are_a_line_each():
    lines = plain_lines(*(row(episode=i) for i in range(5)), seconds=1.5)
    assert [line.split()[1] for line in lines] == ["0", "1", "2", "3", "4"]


def test_fast_episodes_are_a_line_a_second_with_the_first_and_the_last():
    # episode 0 comes first; 15 · 0.07 is past a second
    lines = plain_lines(*(row(episode=i) for i in range(100)), seconds=0.07)
    assert [int(line.split()[1]) for line in lines] == [0, 15, 30, 45, 60, 75, 90, 99]


def test_steps_alone_print_nothing():
    clock, stream = Clock(), io.StringIO()
    with ProgressLine(task="t", steps=1000, limit=1.0, discounted=False, clock=clock, stream=stream) as line:
        for done in range(100):
            clock.now += 10.0
            line.step(done)
    assert stream.getvalue().count("\n") == 1


def test_last_episode_is_printed_when_the_run_is_interrupted():
    stream = io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        broken_off(stream, KeyboardInterrupt, row(episode=1), row(episode=2))
    assert [line[:4] for line in stream.getvalue().splitlines()[1:]] == ["ep 1", "ep 2"]


def test_no_codes_and_nothing_on_stdout(capsys):
    with ProgressLine(task="t", steps=1000, limit=1.0, discounted=False) as line:
        line.step(1)
        line.episode(row())
        line.warn("careful [red]now[/red]")
    out, err = capsys.readouterr()
    assert out == "" and "\x1b" not in err and "warning: careful [red]now[/red]\n" in err


@pytest.mark.parametrize("terminal", [False, True])
def test_a_notebook_gets_plain_lines(monkeypatch, terminal):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    stream = Terminal() if terminal else io.StringIO()
    with ProgressLine(task="t", steps=1000, limit=1.0, discounted=False, stream=stream) as line:
        line.episode(row())
    assert stream.getvalue().count("\n") == 2 and "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("name", ["dumb", "unknown"])
def test_a_terminal_that_cannot_move_gets_plain_lines(monkeypatch, name):
    monkeypatch.setenv("TERM", name)
    stream = Terminal()
    with ProgressLine(task="t", steps=1000, limit=1.0, discounted=False, stream=stream) as line:
        line.episode(row())
    assert stream.getvalue().count("\n") == 2 and "\x1b" not in stream.getvalue()


# On a terminal.


def test_line_moves_between_episodes_but_not_at_each_step():
    clock, stream = Clock(), Terminal()
    with ProgressLine(task="t", steps=1000, limit=1.0, discounted=False, clock=clock, stream=stream) as line:
        line.step(0)
        before = len(stream.getvalue())
        line.step(1)
        assert len(stream.getvalue()) == before
        clock.now += progress.DRAW_SECONDS
        line.step(20)  # 20 steps in 0.2 seconds: 100 a second, and 980 / 100 = 9.8 seconds to go
        assert pictures(stream)[-1] == "2%  100/s  10s left"
        line.episode(row(steps=20))
        assert pictures(stream)[-1].startswith("ep 7  2%")


def test_last_line_stays_and_the_cursor_comes_back():
    stream = Terminal()
    with pytest.raises(RuntimeError):
        broken_off(stream, RuntimeError, row())
    assert stream.getvalue().endswith("\x1b[?25h")
    assert [line for line in pictures(stream) if line][-1].startswith("ep 7  50%")


@pytest.mark.parametrize("columns", [80, 40])
def test_line_never_wraps(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    with ProgressLine(task="t", steps=1000, limit=1.0, discounted=False, stream=stream) as line:
        line.episode(row())
    lines = [line for line in pictures(stream)[1:] if line]
    assert all(len(line) <= columns and line.startswith("ep 7") for line in lines[1:])


@pytest.mark.parametrize("terminal", [False, True])
def test_warnings_come_once_each_above_the_line(terminal):
    stream = Terminal() if terminal else io.StringIO()
    with ProgressLine(task="t", steps=1000, limit=1.0, discounted=False, stream=stream) as line:
        for _ in range(3):
            line.warn("no plan is feasible")
            line.warn("κ is large")
            line.episode(row())
    assert [line for line in pictures(stream) if "warning" in line] == [
        "warning: no plan is feasible", "warning: κ is large"
    ]  # fmt: skip


def test_what_others_write_stays_on_its_stream(capsys, monkeypatch):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TTY_INTERACTIVE", "1")
    with ProgressLine(task="t", steps=1000, limit=1.0, discounted=False) as line:
        line.step(1)
        print("a result")
        print("a remark", file=sys.stderr)
    out, err = capsys.readouterr()
    assert out == "a result\n" and "a remark" in err and "\x1b[" in err


@pytest.mark.parametrize("terminal", [False, True])
def test_a_stream_without_greek_letters(terminal):
    class Ascii(io.TextIOWrapper):
        def isatty(self) -> bool:
            return terminal

    stream = Ascii(io.BytesIO(), encoding="ascii")
    with ProgressLine(task="Größe", steps=1000, limit=1.0, discounted=False, stream=stream) as line:
        line.warn("κ is large")
        line.episode(row())
    stream.seek(0)
    text = stream.read()
    assert "Gr??e" in text and "warning: ? is large" in text and "kappa 0.125" in text


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_a_step_costs_next_to_nothing(stream):
    with ProgressLine(task="t", steps=10**6, limit=1.0, discounted=False, clock=Clock(), stream=stream) as line:
        line.step(0)

        def seconds() -> float:
            start = time.perf_counter()
            for done in range(1000):
                line.step(done)
            return (time.perf_counter() - start) / 1000

        assert min(seconds() for _ in range(20)) < 5e-5  # to draw the line takes more than ten times that
