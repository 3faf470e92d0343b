"""Logged transitions, with which a run begins instead of random steps."""

from __future__ import annotations

import math
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from capax.core.checks import MAX_ARRAY_BYTES, error_text, numbers, one_line, short_repr
from capax.core.contracts import EnvTask
from capax.core.errors import InputError
from capax.core.types import Episode

NEEDED = ("obs", "action", "reward", "cost", "next_obs")
COLUMNS = (*NEEDED, "terminated")
"""All arrays that are read; others in a file are not loaded."""


def initial_episode(data: str | Path | Mapping[str, Any], task: EnvTask) -> Episode:
    """Logged transitions as one episode.

    `data` is an .npz file, or a mapping, with the arrays obs, action, reward, cost, next_obs and, if episodes end,
    terminated. Actions are in the environment's own units.
    """
    columns = _columns(data)
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        raise InputError(f"the initial data have no {missing[0]!r}: give the arrays {', '.join(NEEDED)}.")
    reward = _array("reward", columns["reward"])
    count = len(reward) if reward.ndim == 1 else 0
    columns.setdefault("terminated", np.zeros(count))
    if count < 2:
        raise InputError(f"the initial data have {count} transitions: give at least 2, better hundreds.")
    shapes: dict[str, tuple[int, ...]] = {"obs": (count, task.obs_dim), "action": (count, task.action_box.size)}
    shapes["next_obs"] = shapes["obs"]
    arrays: dict[str, Any] = {}
    for name in COLUMNS:
        array = _array(name, columns[name])
        shape = shapes.get(name, (count,))
        if name == "action" and array.size == count * task.action_box.size:
            array = array.reshape(shape)
        if array.shape != shape:
            raise InputError(f"{name!r} of the initial data has the shape {array.shape}: {task.name} needs {shape}.")
        fits = np.abs(array) <= np.finfo(np.float32).max
        if not fits.all():
            row = int((~fits.reshape(count, -1)).any(1).argmax())
            raise InputError(
                f"{name!r} of the initial data is not finite in row {row}, or too large for float32: leave it out."
            )
        arrays[name] = array
    negative = arrays["cost"] < 0.0
    if negative.any() and not task.allow_negative_costs:
        raise InputError(
            f"'cost' of the initial data is negative in row {int(negative.argmax())}: let no cost be negative, or, if it may "
            "offset other costs, give --allow-negative-costs (allow_negative_costs=True)."
        )
    slack = 1e-5 * (task.action_box.high - task.action_box.low)
    outside = (
        (arrays["action"] < task.action_box.low - slack) | (arrays["action"] > task.action_box.high + slack)
    ).any(1)
    if outside.any():
        raise InputError(
            f"the action in row {int(outside.argmax())} of the initial data leaves the bounds of {task.name}: "
            "give actions in the environment's own units."
        )
    return Episode(
        obs=arrays["obs"],
        action=task.action_box.to_unit(arrays["action"]),
        reward=arrays["reward"],
        cost=arrays["cost"],
        next_obs=arrays["next_obs"],
        earned=float(arrays["reward"].sum()),
        paid=float(arrays["cost"].sum()),
        extras={},
        terminated=arrays["terminated"],
        random=True,
    )


def _columns(data: Any) -> dict[Any, Any]:
    """The arrays of a mapping or a file that are needed, by name."""
    if isinstance(data, str | Path):
        return _read(Path(data))
    if not isinstance(data, Mapping):
        raise InputError(f"initial_data is {short_repr(data)}: name an .npz file, or give arrays by their names.")
    try:
        return {name: data[name] for name in COLUMNS if name in data}
    except Exception as error:  # an open .npz file is a mapping that reads on access
        raise InputError(f"initial_data cannot be read, {error_text(error)}: give arrays by their names.") from error


def _array(name: str, value: Any) -> Any:
    try:
        return numbers(value)
    except Exception:  # an object may raise anything when it is converted
        raise InputError(f"{name!r} of the initial data holds no numbers: give an array of numbers.") from None


def _read(path: Path) -> dict[str, Any]:
    name = one_line(str(path), 200)
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a pipe would wait
            raise InputError(f"{name} is no plain file: name an .npz file of logged transitions.")
        with path.open("rb") as handle:  # numpy leaves a damaged file open
            file = np.load(handle, allow_pickle=False)
            if not isinstance(file, np.ndarray):
                return {key: _member(file, key) for key in COLUMNS if key in file.files}
    except FileNotFoundError:
        raise InputError(f"{name} is not there: name an .npz file of logged transitions.") from None
    except InputError:
        raise
    except OSError as error:
        raise InputError(
            f"{name} cannot be read ({error.strerror or error_text(error)}): name an .npz file of logged transitions."
        ) from None
    except MemoryError:
        raise InputError(f"{name} does not fit into memory: give fewer transitions.") from None
    except Exception:  # a damaged archive raises many kinds of errors
        raise InputError(f"{name} is no .npz file of plain arrays: write one with numpy.savez.") from None
    raise InputError(f"{name} holds one array: write several with numpy.savez.")


def _member(file: Any, name: str) -> Any:
    """An array of an open .npz file. Its size is compared with that of its entry before memory is taken for it."""
    entry = file.zip.getinfo(f"{name}.npy" if f"{name}.npy" in file.zip.namelist() else name)
    with file.zip.open(entry) as member:
        version = npy.read_magic(member)
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read_header(member)
    size = math.prod(shape) * dtype.itemsize
    if size > entry.file_size or math.prod(max(n, 1) for n in shape) >= 2**62:
        raise ValueError(name)
    if size > MAX_ARRAY_BYTES:
        raise MemoryError
    return file[name]
