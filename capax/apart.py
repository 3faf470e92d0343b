"""How is something tried that may crash, hang or print? In a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

PATIENCE = 60.0
"""Seconds to wait for an answer."""
CODE = """
import json, os, sys
from importlib import import_module
module, function, *arguments = sys.argv[1:]
try:
    said = {"answer": getattr(import_module(module), function)(*arguments)}
except Exception as error:
    kind = type(error).__name__
    said = {"error": str(error) if kind == "InputError" else f"{kind}: {error}" if str(error) else kind}
print("\\n" + json.dumps(said), flush=True)
os._exit(0)  # whatever a library says or breaks at the end, it has answered
"""


class Failed(RuntimeError):
    """There is no answer; the message says why."""


def ask(function: Callable[..., Any], *arguments: str, without: Sequence[str] = ()) -> Any:
    """What a module's function returns in a new process, where the environment variables `without` are unset.

    The answer is what JSON makes of it. Modules are found there where they are found here.
    """
    environment = {name: value for name, value in os.environ.items() if name not in without}
    environment |= {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", CODE, function.__module__, function.__name__, *arguments]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, encoding="utf-8", errors="replace", start_new_session=True,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            raise Failed(f"no answer within {PATIENCE:g} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # and what it has started
    if process.returncode < 0:
        raise Failed(f"the process was stopped ({signal.strsignal(-process.returncode)})")
    if process.returncode > 0:
        raise Failed((err.strip().splitlines() or [f"the process ended with code {process.returncode}"])[-1])
    try:
        said = json.loads(out.splitlines()[-1])  # the last line: a library may have printed others
    except (IndexError, ValueError):
        raise Failed("the process ended without an answer") from None
    if "error" in said:
        raise Failed(said["error"])
    return said["answer"]
