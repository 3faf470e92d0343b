"""Call a function in a new process, for calls that may crash, hang or print."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from capax.runtime.modules import SAFE_PATH

HOME = str(Path(__file__).parents[2])
"""The folder that capax lies in."""
ANSWER_TIMEOUT_S = 60.0
"""Seconds to wait for an answer."""
CODE = """
import json, os, signal, sys
from importlib import import_module
lifeline, module, function, *arguments = sys.argv[1:]
if os.fork() == 0:  # a process that waits for the caller's end, even while a library holds the interpreter of this one
    for descriptor in (1, 2):
        os.dup2(0, descriptor)
    os.read(int(lifeline), 1)
    os.killpg(0, signal.SIGKILL)  # this process, the other one, and those that it has started
try:
    reply = {"answer": getattr(import_module(module), function)(*arguments)}
except Exception as error:
    kind = type(error).__name__
    reply = {"error": str(error) if kind == "InputError" else f"{kind}: {error}" if str(error) else kind}
print("\\n" + json.dumps(reply), flush=True)
os._exit(0)  # the answer is complete, whatever a library prints or breaks at exit
"""


class CallFailed(RuntimeError):
    """There is no answer. The message says why."""


def call(function: Callable[..., Any], *arguments: str, without: Sequence[str] = ()) -> Any:
    """The value that a module's function returns in a new process, without the environment variables `without`.

    The value is passed as JSON. The new process finds the same modules as this one, but for those of the current folder,
    which may hold plugins, or files with the names of libraries.
    """
    environment = {name: value for name, value in os.environ.items() if name not in without}
    path = [folder for folder in sys.path if os.path.realpath(folder) != os.path.realpath(os.curdir)]
    environment |= {"PYTHONPATH": os.pathsep.join([*path, HOME]), SAFE_PATH: "1"}
    lifeline, held = os.pipe()
    command = [sys.executable, "-c", CODE, str(lifeline), function.__module__, function.__name__, *arguments]
    with open(lifeline), open(held, "w"), subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, encoding="utf-8", errors="replace", start_new_session=True, pass_fds=(lifeline,),
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=ANSWER_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise CallFailed(f"no answer within {ANSWER_TIMEOUT_S:g} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # also the processes that it has started
    if process.returncode < 0:
        raise CallFailed(f"the process was stopped ({signal.strsignal(-process.returncode)})")
    if process.returncode > 0:
        raise CallFailed((err.strip().splitlines() or [f"the process ended with code {process.returncode}"])[-1])
    try:
        reply = json.loads(out.splitlines()[-1])  # the last line: a library may have printed others
    except (IndexError, ValueError):
        raise CallFailed("the process ended without an answer") from None
    if "error" in reply:
        raise CallFailed(reply["error"])
    return reply["answer"]
