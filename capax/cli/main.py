"""The entry point `capax`: it parses the command line, runs the command, and turns every stop into one sentence."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import partial
from typing import Any

import tyro

from capax.cli import output
from capax.cli.gridworld import Gridworld
from capax.cli.info import Bench, Doctor, Settings, Tasks
from capax.cli.paper import Paper
from capax.cli.runs import Compare, Evaluate, Report, Resume
from capax.cli.suite import Suite
from capax.cli.train import Train
from capax.core.checks import failure_text
from capax.core.errors import STOPS, EnvironmentFailed
from capax.core.version import __version__
from capax.runtime.modules import current_folder_offered
from capax.runtime.signals import SIGNALS, StopRequested
from capax.runtime.streams import forgiving_standard_error
from capax.runtime.terminal import say, say_lines

COMMANDS: dict[str, Callable[..., Any]] = {
    "gridworld": Gridworld,
    "train": Train,
    "resume": Resume,
    "evaluate": Evaluate,
    "report": Report,
    "compare": Compare,
    "suite": Suite,
    "paper": Paper,
    "tasks": Tasks,
    "settings": Settings,
    "doctor": Doctor,
    "bench": Bench,
}
"""Each command is a frozen dataclass with `run`. Its fields are the options, and their docstrings the help."""
DESCRIPTION = """Safe reinforcement learning that keeps a cost under a limit while it learns. `capax --version` prints the
version; `capax --tyro-print-completion bash` (or zsh) prints a script that completes commands and options."""


def terminated(number: int, frame: Any) -> None:
    """Stop the command after a SIGTERM or SIGHUP outside of a run."""
    raise StopRequested(number, "no run had begun, so nothing is lost.")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command, and end the process with its exit code."""
    output.ends_process = arguments is None
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Greek letters shows ? for κ
    with forgiving_standard_error():
        run(sys.argv[1:] if arguments is None else list(arguments))


def run(arguments: list[str]) -> None:
    """Run the command that these arguments name."""
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if number != signal.SIGINT and signal.getsignal(number) != signal.SIG_IGN:  # as nohup sets for SIGHUP
                signal.signal(number, terminated)
    try:
        if arguments == ["--version"]:
            say(f"capax {__version__}")
            return
        run_command(parsed(arguments))
        sys.stdout.flush()
    except STOPS as error:
        say("; ".join([f"capax: {error}", *getattr(error, "__notes__", [])]), error=True)
        sys.exit(error.exit_code)
    except StopRequested as stop:
        say(f"capax: {stop}; {stop.advice}", error=True)
        with suppress(OSError, ValueError):
            sys.stdout.flush()  # what an environment has printed
        os._exit(stop.exit_code)  # threads that still compile would crash an orderly exit
    except BrokenPipeError:  # the reader of the output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        say(f"capax: {error.filename or 'the output'} could not be written ({error.strerror}).", error=True)
        sys.exit(3)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        say("capax: interrupted.", error=True)
        sys.exit(130)


def parsed(arguments: list[str]) -> Any:
    """The command with its options. A refusal shows arguments, such as the names of files that `*` stands for."""
    parse = partial(tyro.extras.subcommand_cli_from_dict, COMMANDS, prog="capax", description=DESCRIPTION)
    if all(argument.isprintable() for argument in arguments):
        return parse(args=arguments)
    refusal = io.StringIO()
    try:
        with redirect_stdout(refusal), redirect_stderr(refusal):
            return parse(args=arguments)
    except SystemExit:
        say_lines(refusal.getvalue().rstrip("\n"), error=True)
        raise


def run_command(command: Any) -> None:
    """Run a parsed command. Code of the user's that calls `sys.exit` must not end it without a word."""
    try:
        with current_folder_offered():
            command.run()
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # rich's answer to a reader that has gone
            raise error.__context__ from None
        raise EnvironmentFailed(f"a module of yours {failure_text(error)}: let it raise an error instead.") from error


if __name__ == "__main__":
    main()
