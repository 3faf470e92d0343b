"""Parsers of options, the choice of a device, and the message about a stopped run, for several commands."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from capax.core.checks import number, short_repr
from capax.core.errors import InputError
from capax.runs.run import Run
from capax.runtime.signals import leaving

Device = Literal["cpu", "gpu"]
MAX_CLOSE_TIMEOUT_S = 86_400.0
HELD = "a library held the interpreter, so the process was killed"
"""What is said of a process that could not end by itself."""


def count(texts: list[str]) -> int:
    """A whole number as people write it: 100000, 1e5 or 100_000."""
    value = float(texts[0])
    if not value.is_integer():
        raise ValueError(texts[0])
    return int(value)


Count = Annotated[
    int,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=count,
        is_instance=lambda value: isinstance(value, int),
        str_from_instance=lambda value: [str(value)],
    ),
]
"""A number of steps."""
RunFolder = tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]]


def assignment(text: str, option: str = "--set", example: str = "population=200") -> tuple[str, Any]:
    """NAME=VALUE; the value is read as JSON, or else as text."""
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise InputError(f"{option} {short_repr(text)} is no setting: write NAME=VALUE, as in {example}.")
    try:
        return name.replace("-", "_"), json.loads({"True": "true", "False": "false", "None": "null"}.get(value, value))
    except ValueError:
        return name.replace("-", "_"), value


def env_arguments(texts: Iterable[str]) -> dict[str, Any]:
    """The values of --env-kwargs."""
    return dict(assignment(text, "--env-kwargs", "frame_skip=2") for text in texts)


def parse_lanes(text: str) -> Any:
    """A number of lanes, or the values of an option that differs between them."""
    name, equals, values = text.partition("=")
    if equals and not all(values.split(",")):
        raise InputError(f"--lanes is {text}: give a value between all commas, as in kappa=0.1,1,10.")
    if equals:
        return [{name.replace("-", "_"): assignment(f"{name}={value}")[1]} for value in values.split(",")]
    try:
        return int(text)
    except ValueError:
        raise InputError(f"--lanes is {text}: give a number, or values as in kappa=0.1,1,10.") from None


def use_device(device: str | None) -> None:
    """Let JAX compute on this device. Call it before anything is computed."""
    if device is None:
        return
    import jax

    from capax.runtime import cpu_devices

    cpu_devices.claim()  # before JAX counts its devices
    jax.config.update("jax_platforms", "cuda" if device == "gpu" else "cpu")
    try:
        jax.devices()
    except (RuntimeError, AssertionError):  # by JAX's version
        raise InputError("JAX finds no GPU: install capax[gpu] on a machine with one, or omit --device.") from None


def leaving_run(out: Path, close_timeout: float) -> AbstractContextManager[None]:
    """A context in which a signal stops the run in `out`, and its environment has `close_timeout` seconds to close."""
    killed = f"its finished episodes are safe in {out}; continue with: capax resume {out}"
    return leaving(lambda: how_to_continue(out), close_timeout=seconds_of(close_timeout), killed=f"{HELD}; {killed}")


def seconds_of(close_timeout: float) -> float:
    """The option --close-timeout, checked."""
    wanted = f"seconds from 0 to {MAX_CLOSE_TIMEOUT_S:g}"
    return number("--close-timeout", close_timeout, wanted, lambda value: 0.0 <= value <= MAX_CLOSE_TIMEOUT_S)


def is_complete(out: Path, steps: int | None) -> bool:
    """Whether a run has `steps` steps; None: as many as its configuration says."""
    run = Run(out)
    rows, wanted = run.episodes, run.config.steps if steps is None else steps
    done = rows[-1].get("steps") if rows else 0
    return isinstance(done, int) and done >= wanted


def how_to_continue(out: Path) -> str:
    """The message for somebody who stopped a run: what is safe, and the command that continues it."""
    try:
        done = len(Run(out).episodes)
        return f"{done} episode{'s' * (done != 1)} safe in {out}; continue with: capax resume {out}"
    except InputError:
        return "no run had begun."
