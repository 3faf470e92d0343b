"""Logged transitions, with which a run begins instead of random steps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from capax.core.checks import error_text, numbers, one_line, short_repr
from capax.core.contracts import EnvTask
from capax.core.errors import InputError
from capax.core.types import Episode

NEEDED = ("obs", "action", "reward", "cost", "next_obs")


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
    for name in (*NEEDED, "terminated"):
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
    """The arrays of a mapping or a file, by name."""
    if isinstance(data, str | Path):
        return _read(Path(data))
    if not isinstance(data, Mapping):
        raise InputError(f"initial_data is {short_repr(data)}: name an .npz file, or give arrays by their names.")
    try:
        return dict(data)
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
        with path.open("rb") as handle:  # numpy leaves a damaged file open
            file = np.load(handle, allow_pickle=False)
            if not isinstance(file, np.ndarray):
                return {key: file[key] for key in file.files}
    except FileNotFoundError:
        raise InputError(f"{name} is not there: name an .npz file of logged transitions.") from None
    except OSError as error:
        raise InputError(
            f"{name} cannot be read ({error.strerror or error_text(error)}): name an .npz file of logged transitions."
        ) from None
    except Exception:  # a damaged archive raises many kinds of errors
        raise InputError(f"{name} is no .npz file of plain arrays: write one with numpy.savez.") from None
    raise InputError(f"{name} holds one array: write several with numpy.savez.")
