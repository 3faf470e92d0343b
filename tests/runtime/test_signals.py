"""A signal ends a command soon, whatever an environment does, and environments close before that."""

from __future__ import annotations

import signal
import time

import pytest
from support.scripts import script, wait_for

START = """
import os, signal, sys, time
from capax.runtime import signals, watchdog
from capax.runtime.signals import after_user_code, closing, leaving
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.default_int_handler)  # a test runner may have been started with these ignored
signals.EXIT_TIMEOUT_S, signals.NOTICE_S, signals.AGAIN_S, watchdog.MARGIN_S = 0.4, 0.1, 0.3, 0.3

def say(text):
    os.write(1, f"{text}\\n".encode())  # at once, also where a child writes too

def compiled():  # releases the interpreter
    import hashlib
    hashlib.pbkdf2_hmac("sha256", b"", b"", 300_000_000)

def holding():  # does not, and looks for no signal
    import itertools
    sum(itertools.repeat(1, 10**11))

try:
    with leaving(lambda: "all is safe.", close_timeout=SECONDS, killed="it was killed."):
        BODY
except signals.StopRequested as stop:
    say(f"{stop}; {stop.advice}")
    sys.exit(stop.exit_code)
"""


def code(body: str, close_timeout: float = 20.0) -> str:
    """A script in which this is done within `leaving`."""
    indented = "\n        ".join(body.strip().splitlines())
    return START.replace("SECONDS", str(close_timeout)).replace("BODY", indented)


def ended(body: str, *numbers: int, gap: float = 0.0, close_timeout: float = 20.0) -> tuple[int, str, str]:
    """Exit code, output and errors of a script that is sent these signals when it says "now"."""
    with script(code(body, close_timeout)) as child:
        wait_for(child, "now")
        time.sleep(0.1 * bool(numbers))  # until the script does what it does next
        for number in numbers:
            child.send_signal(number)
            time.sleep(gap)
        out, err = child.communicate(timeout=15)
        return child.returncode, out, err


@pytest.mark.parametrize(("number", "exit_code", "word"), [
    (signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated"), (signal.SIGHUP, 129, "the terminal has closed"),
])  # fmt: skip
def test_a_signal_stops_python_code(number, exit_code, word):
    assert ended("say('now'); time.sleep(60)", number) == (exit_code, f"{word}; all is safe.\n", "")


def test_nohup_is_respected():
    with script("import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + code(
        "say('now'); time.sleep(0.5); say('still here')"
    )) as child:  # fmt: skip
        wait_for(child, "now")
        child.send_signal(signal.SIGHUP)
        assert child.communicate(timeout=15) == ("still here\n", "") and child.returncode == 0


def test_compiled_code_is_cut_off():
    assert ended("say('now'); compiled()", signal.SIGTERM) == (143, "", "capax: terminated; all is safe.\n")


@pytest.mark.parametrize("killed_watchdog", [False, True])
def test_a_library_that_holds_the_interpreter_is_killed(killed_watchdog):
    body = "say('now'); holding()"
    if not killed_watchdog:
        assert ended(body, signal.SIGINT) == (-signal.SIGKILL, "", "capax: interrupted; it was killed.\n")
        return
    # without a watchdog there is still the thread: it ends compiled code
    body = """
import pathlib
for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
        words = path.read_bytes().split(b"\\0")
    except OSError:
        continue
    if b"-S" in words and str(os.getpid()).encode() in words:
        os.kill(int(path.parent.name), signal.SIGKILL)
say("now"); compiled()
"""
    assert ended(body, signal.SIGINT) == (130, "", "capax: interrupted; all is safe.\n")


def test_the_watchdog_ends_with_a_process_that_is_killed():
    with script(code("say('now'); time.sleep(60)")) as child:
        wait_for(child, "now")
        child.kill()
        child.communicate(timeout=5)  # the watchdog holds standard error open


@pytest.mark.parametrize("change", [
    "signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_DFL)",
    "signal.signal(signal.SIGTERM, lambda *_: say('mine'))",
    "signal.set_wakeup_fd(-1)",
])  # fmt: skip
def test_handlers_that_an_environment_sets_are_replaced(change):
    body = f"signals.WAKEUP_CHECK_S = 0.0; {change}; after_user_code(); say('now'); time.sleep(1); compiled()"
    assert ended(body, signal.SIGTERM) == (143, "terminated; all is safe.\n", "")
    assert ended(body.replace("time.sleep(1); ", ""), signal.SIGTERM)[0] == 143


def test_a_stop_that_an_environment_swallows_is_raised_again():
    body = """
try:
    say("now"); time.sleep(60)
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
    assert ended(body, signal.SIGTERM) == (143, "", "capax: terminated; all is safe.\n")


PARK = """
try:
    say("now"); time.sleep(60)
finally:
    with closing("Robot"):
        time.sleep(1.2)
        say("parked")
"""


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice, as timeout sends it"])
def test_an_environment_has_time_to_close(times):
    exit_code, out, err = ended(PARK, *[signal.SIGTERM] * times, gap=0.05)
    assert (exit_code, out) == (143, "parked\nterminated; all is safe.\n")
    assert err == "capax: waiting up to 20 s for Robot to close; Ctrl-C again ends at once\n"


def test_a_second_signal_ends_an_environment_that_closes():
    exit_code, out, err = ended(PARK, signal.SIGINT, signal.SIGINT, gap=0.5)
    assert (exit_code, out) == (130, "")
    assert err.splitlines()[-1] == "capax: interrupted; Robot did not close; all is safe."


@pytest.mark.parametrize(("close", "exit_code", "words"), [
    ("compiled()", 143, "terminated; Robot did not close; all is safe."),
    ("holding()", -signal.SIGKILL, "terminated; it was killed."),
])  # fmt: skip
def test_an_environment_that_does_not_close_is_cut_off(close, exit_code, words):
    body = PARK.replace("time.sleep(1.2)", close)
    code, out, err = ended(body, signal.SIGTERM, close_timeout=0.5)
    assert (code, out) == (exit_code, "") and err.splitlines()[-1] == f"capax: {words}"


def test_a_signal_waits_for_an_environment_that_closes_at_the_end_of_a_run():
    body = """
with closing("Robot"):
    say("now"); time.sleep(1.0)
    say("parked")
say("not reached")
"""
    exit_code, out, _ = ended(body, signal.SIGINT)
    assert (exit_code, out) == (130, "parked\ninterrupted; all is safe.\n")


def test_without_a_signal_a_close_that_hangs_is_named():
    body = "signals.IDLE_NOTICE_S = 0.1\nwith closing('Robot'):\n    say('now'); time.sleep(0.5)"
    exit_code, _, err = ended(body)
    assert exit_code == 0 and err.startswith("capax: waiting for Robot to close; Ctrl-C ends the wait after 20 s more")


FORK = """
child = os.fork()
if not child:
    time.sleep(60)
    os._exit(9)
say("now")
"""


def test_a_signal_to_a_forked_child_ends_the_child_alone():
    """Also one that comes at once: capax's hook runs after another one that takes its time."""
    hook = "import os, time; os.register_at_fork(after_in_child=lambda: time.sleep(0.2))\n"
    body = f"""
{FORK}
os.kill(child, signal.SIGTERM)
assert os.waitpid(child, 0)[1] == signal.SIGTERM
time.sleep(0.7)  # longer than the second thread would wait
say("training goes on")
"""
    with script(hook + code(body)) as child:
        assert child.communicate(timeout=15) == ("now\ntraining goes on\n", "") and child.returncode == 0


def test_a_forked_child_that_handles_its_signals_ends_alone():
    """Python would write the signal's number into the wake-up pipe that the child has inherited."""
    body = """
ready, write = os.pipe()
child = os.fork()
if not child:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
    os.write(write, b"x")
    time.sleep(60)
os.read(ready, 1)
os.kill(child, signal.SIGTERM)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
time.sleep(0.7)  # longer than the second thread would wait
say("training goes on")
"""
    with script(code(body)) as child:
        assert child.communicate(timeout=15) == ("training goes on\n", "") and child.returncode == 0


def test_a_forked_child_that_outlives_a_run_does_not_hold_its_watchdog():
    body = FORK + "time.sleep(60)"
    with script(code(body)) as child:
        wait_for(child, "now")
        child.send_signal(signal.SIGTERM)
        assert child.wait(timeout=5) == 143


def test_the_watchdog_ends_with_a_process_that_is_killed_while_its_forked_child_lives():
    body = """
if not os.fork():
    os.closerange(0, 3)
    time.sleep(20)
    os._exit(9)
say("now"); time.sleep(60)
"""
    with script(code(body)) as child:
        wait_for(child, "now")
        child.kill()
        child.communicate(timeout=5)  # only the watchdog holds standard error open
