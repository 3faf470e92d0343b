"""A signal ends a command soon, whatever an environment does, and environments close before that."""

from __future__ import annotations

import re
import signal
import time

import pytest
from support.scripts import PATIENCE_S, script, wait_for, wait_until_busy

START = """
import hashlib, itertools, os, signal, sys, time
from capax.runtime import signals, watchdog
from capax.runtime.signals import after_user_code, closing, leaving
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.default_int_handler)  # a test runner may have been started with these ignored
signals.EXIT_TIMEOUT_S, watchdog.MARGIN_S, signals.UNWIND_TIMEOUT_S = EXITS, MARGINS, 600.0
signals.NOTICE_S, signals.AGAIN_S = 0.2, 0.1

def say(text):
    os.write(1, f"{text}\\n".encode())  # at once, also where a child writes too

def compiled():  # releases the interpreter
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000_000)

def holding():  # does not, and looks for no signal
    sum(itertools.repeat(1, 10**12))

try:
    with leaving(lambda: "all is safe.", close_timeout=CLOSES, killed="it was killed."):
        BODY
except signals.StopRequested as stop:
    say(f"{stop}; {stop.advice}")
    sys.exit(stop.exit_code)
"""
SOON_S, NEVER_S = 0.4, 600.0
"""Seconds after which a script is ended. Only one of the ways to end it is soon in a test, so none can be faster by chance."""


def code(body: str, *, exits: float = NEVER_S, margin: float = NEVER_S, close: float = NEVER_S) -> str:
    """A script in which this is done within `leaving`. The thread ends it `exits` seconds after a signal, or `close` seconds
    after something has begun to close, and the watchdog `margin` seconds later."""
    text = START.replace("BODY", "\n        ".join(body.strip().splitlines()))
    for name, seconds in (("EXITS", exits), ("MARGINS", margin), ("CLOSES", close)):
        text = text.replace(name, str(seconds), 1)
    return text


def ended(body: str, *numbers: int, busy: bool = False, **times: float) -> tuple[int, str, str]:
    """Exit code, output and errors of a script that is sent these signals when it says "now", or is `busy` after that."""
    with script(code(body, **times)) as child:
        wait_for(child, "now")
        if busy:
            wait_until_busy(child)
        for number in numbers:
            child.send_signal(number)
        out, err = child.communicate(timeout=PATIENCE_S)
        return child.returncode, out, err


@pytest.mark.parametrize(("number", "exit_code", "word"), [
    (signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated"), (signal.SIGHUP, 129, "the terminal has closed"),
])  # fmt: skip
def test_a_signal_stops_python_code(number, exit_code, word):
    assert ended("say('now'); time.sleep(600)", number) == (exit_code, f"{word}; all is safe.\n", "")


def test_nohup_is_respected():
    with script("import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + code(
        "say('now'); sys.stdin.readline(); say('still here')"
    )) as child:  # fmt: skip
        wait_for(child, "now")
        child.send_signal(signal.SIGHUP)
        assert child.communicate("\n", timeout=PATIENCE_S) == ("still here\n", "") and child.returncode == 0


CUT_OFF = 143, "", "capax: terminated; all is safe.\n"


def test_compiled_code_is_cut_off():
    assert ended("say('now'); compiled()", signal.SIGTERM, busy=True, exits=SOON_S) == CUT_OFF


def test_a_library_that_holds_the_interpreter_is_killed():
    killed = ended("say('now'); holding()", signal.SIGINT, busy=True, exits=SOON_S, margin=SOON_S)
    assert killed == (-signal.SIGKILL, "", "capax: interrupted; it was killed.\n")


def test_without_a_watchdog_compiled_code_is_cut_off():
    body = """
import pathlib
for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
        words = path.read_bytes().split(b"\\0")
    except OSError:
        continue
    if b"-S" in words and words[5:6] == [str(os.getpid()).encode()]:
        os.kill(int(path.parent.name), signal.SIGKILL)
say("now"); compiled()
"""
    assert ended(body, signal.SIGTERM, busy=True, exits=SOON_S) == CUT_OFF


def test_the_watchdog_ends_with_a_process_that_is_killed():
    with script(code("say('now'); time.sleep(600)")) as child:
        wait_for(child, "now")
        child.kill()
        child.communicate(timeout=PATIENCE_S)  # the watchdog holds standard error open


@pytest.mark.parametrize("change", [
    "signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_DFL)",
    "signal.signal(signal.SIGTERM, lambda *_: say('mine'))",
    "signal.set_wakeup_fd(-1)",
])  # fmt: skip
def test_handlers_that_an_environment_sets_are_replaced(change):
    body = f"signals.WAKEUP_CHECK_S = 0.0; {change}; after_user_code(); say('now'); "
    assert ended(body + "time.sleep(600)", signal.SIGTERM) == (143, "terminated; all is safe.\n", "")
    assert ended(body + "compiled()", signal.SIGTERM, busy=True, exits=SOON_S) == CUT_OFF


def test_a_stop_that_an_environment_swallows_is_raised_again():
    body = """
try:
    say("now"); time.sleep(600)
except BaseException:
    say("swallowed")
after_user_code()
say("not reached")
"""
    assert ended(body, signal.SIGINT) == (130, "swallowed\ninterrupted; all is safe.\n", "")


def test_other_signals_of_an_environment_end_nothing():
    body = """
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
end = time.monotonic() + 1.0
while time.monotonic() < end:
    time.sleep(0.01)
say("now"); compiled()
"""
    assert ended(body, signal.SIGTERM, busy=True, exits=SOON_S) == CUT_OFF


PARK = """
try:
    say("now"); time.sleep(600)
finally:
    with closing("Robot"):
        sys.stdin.readline()
        say("parked")
"""
NOTICE = r"capax: waiting up to \d+ s for Robot to close; Ctrl-C again ends at once\n"


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice, as timeout sends it"])
def test_an_environment_has_time_to_close(times):
    with script(code(PARK).replace("AGAIN_S = 0.2, 0.1", "AGAIN_S = 0.2, 600.0")) as child:
        wait_for(child, "now")
        child.send_signal(signal.SIGTERM)
        assert child.stderr is not None and re.fullmatch(NOTICE, child.stderr.readline())
        if times == 2:
            child.send_signal(signal.SIGTERM)
            time.sleep(0.3)  # time to end, if the second one did that
        assert child.communicate("\n", timeout=PATIENCE_S) == ("parked\nterminated; all is safe.\n", "")
        assert child.returncode == 143


def test_a_second_signal_ends_an_environment_that_closes():
    with script(code(PARK)) as child:
        wait_for(child, "now")
        child.send_signal(signal.SIGINT)
        assert child.stderr is not None and re.fullmatch(NOTICE, child.stderr.readline())  # AGAIN_S is over before
        child.send_signal(signal.SIGINT)
        child.wait(PATIENCE_S)
        out, err = child.communicate()
    assert (child.returncode, out, err) == (130, "", "capax: interrupted; Robot did not close; all is safe.\n")


def test_an_environment_that_does_not_close_is_cut_off():
    body = PARK.replace("sys.stdin.readline()", "compiled()")
    exit_code, out, err = ended(body, signal.SIGTERM, close=SOON_S)
    assert (exit_code, out) == (143, "")
    assert err.splitlines()[-1] == "capax: terminated; Robot did not close; all is safe."


def test_an_environment_that_holds_the_interpreter_when_it_closes_is_killed():
    body = "with closing('Robot'):\n    say('now'); holding()"
    killed = ended(body, signal.SIGTERM, busy=True, close=SOON_S, margin=SOON_S)
    assert killed == (-signal.SIGKILL, "", "capax: terminated; it was killed.\n")


def test_a_signal_waits_for_an_environment_that_closes_at_the_end_of_a_run():
    body = """
with closing("Robot"):
    say("now")
    while signals._active.number is None:
        time.sleep(0.01)
    say("parked")
say("not reached")
"""
    exit_code, out, _ = ended(body, signal.SIGINT)
    assert (exit_code, out) == (130, "parked\ninterrupted; all is safe.\n")


def test_without_a_signal_a_close_that_hangs_is_named():
    body = "signals.IDLE_NOTICE_S = 0.1\nwith closing('Robot'):\n    sys.stdin.readline()"
    with script(code(body, close=20.0)) as child:
        assert child.stderr is not None
        notice = child.stderr.readline()
        assert child.communicate("\n", timeout=PATIENCE_S) == ("", "") and child.returncode == 0
    assert notice.startswith("capax: waiting for Robot to close; Ctrl-C ends the wait after 20 s more")


FORK = """
child = os.fork()
if not child:
    time.sleep(600)
    os._exit(9)
say("now")
"""
ENDING = {"exits": SOON_S, "margin": SOON_S}
"""Both would end the parent soon, if they took the child's signal for its own."""


def test_a_signal_to_a_forked_child_ends_the_child_alone():
    """Also one that comes at once: capax's hook runs after another one that takes its time."""
    hook = "import os, time; os.register_at_fork(after_in_child=lambda: time.sleep(0.2))\n"
    body = f"""
{FORK}
os.kill(child, signal.SIGTERM)
assert os.waitpid(child, 0)[1] == signal.SIGTERM
time.sleep(1.0)  # longer than the second thread and the watchdog would wait
say("training goes on")
"""
    with script(hook + code(body, **ENDING)) as child:
        assert child.communicate(timeout=PATIENCE_S) == ("now\ntraining goes on\n", "") and child.returncode == 0


def test_a_forked_child_that_handles_its_signals_ends_alone():
    """Python would write the signal's number into the wake-up pipe that the child has inherited."""
    body = """
ready, write = os.pipe()
child = os.fork()
if not child:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
    os.write(write, b"x")
    time.sleep(600)
os.read(ready, 1)
os.kill(child, signal.SIGTERM)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
time.sleep(1.0)  # longer than the second thread and the watchdog would wait
say("training goes on")
"""
    with script(code(body, **ENDING)) as child:
        assert child.communicate(timeout=PATIENCE_S) == ("training goes on\n", "") and child.returncode == 0


def test_a_forked_child_that_outlives_a_run_does_not_hold_its_watchdog():
    body = FORK + "time.sleep(600)"
    with script(code(body)) as child:
        wait_for(child, "now")
        child.send_signal(signal.SIGTERM)
        assert child.wait(PATIENCE_S) == 143


def test_the_watchdog_ends_with_a_process_that_is_killed_while_its_forked_child_lives():
    body = """
if not os.fork():
    os.closerange(0, 3)
    time.sleep(600)
    os._exit(9)
say("now"); time.sleep(600)
"""
    with script(code(body)) as child:
        wait_for(child, "now")
        child.kill()
        child.communicate(timeout=PATIENCE_S)  # only the watchdog holds standard error open
