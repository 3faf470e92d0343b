"""How does a run begin from logged transitions instead of random steps?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from capax.agents.start import to_unit
from capax.checks import numbers, one_line, said, shown
from capax.envs.adapt import Task
from capax.errors import InputError
from capax.types import Episode

NEEDED = ("obs", "action", "reward", "cost", "next_obs")


def initial_episode(data: str | Path | Mapping[str, Any], task: Task) -> Episode:
    """Logged transitions as one episode: an .npz file, or a mapping, with the arrays obs, action, reward, cost, next_obs
    and, where episodes end, terminated; actions in the environment's own units."""
    columns = _columns(data)
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        raise InputError(f"the initial data have no {missing[0]!r}: give the arrays {', '.join(NEEDED)}.")
    reward = _array("reward", columns["reward"])
    count = len(reward) if reward.ndim == 1 else 0
    columns.setdefault("terminated", np.zeros(count))
    if count < 2:
        raise InputError(f"the initial data have {count} transitions: give at least 2, better hundreds.")
    shapes: dict[str, tuple[int, ...]] = {"obs": (count, task.obs_dim), "action": (count, task.action_dim)}
    shapes["next_obs"] = shapes["obs"]
    ready: dict[str, Any] = {}
    for name in (*NEEDED, "terminated"):
        array = _array(name, columns[name])
        shape = shapes.get(name, (count,))
        if name == "action" and array.size == count * task.action_dim:
            array = array.reshape(shape)
        if array.shape != shape:
            raise InputError(f"{name!r} of the initial data has the shape {array.shape}: {task.name} needs {shape}.")
        fits = np.abs(array) <= np.finfo(np.float32).max
        if not fits.all():
            row = int((~fits.reshape(count, -1)).any(1).argmax())
            raise InputError(
                f"{name!r} of the initial data is not finite in row {row}, or too large for float32: leave it out."
            )
        ready[name] = array
    slack = 1e-5 * (task.high - task.low)
    outside = ((ready["action"] < task.low - slack) | (ready["action"] > task.high + slack)).any(1)
    if outside.any():
        raise InputError(
            f"the action in row {int(outside.argmax())} of the initial data leaves the bounds of {task.name}: "
            "give actions in the environment's own units."
        )
    return Episode(
        obs=ready["obs"],
        action=to_unit(ready["action"], task.low, task.high),
        reward=ready["reward"],
        cost=ready["cost"],
        next_obs=ready["next_obs"],
        earned=float(ready["reward"].sum()),
        paid=float(ready["cost"].sum()),
        extras={},
        terminated=ready["terminated"],
        random=True,
    )


def _columns(data: Any) -> dict[Any, Any]:
    """What a mapping or a file holds, by name."""
    if isinstance(data, str | Path):
        return _read(Path(data))
    if not isinstance(data, Mapping):
        raise InputError(f"initial_data is {shown(data)}: name an .npz file, or give arrays by their names.")
    try:
        return dict(data)
    except Exception as error:  # an open .npz file is a mapping that reads as it goes
        raise InputError(f"initial_data cannot be read, {said(error)}: give arrays by their names.") from error


def _array(name: str, value: Any) -> Any:
    try:
        return numbers(value)
    except Exception:  # whatever an object does when it is asked for its numbers
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
            f"{name} cannot be read ({error.strerror or said(error)}): name an .npz file of logged transitions."
        ) from None
    except Exception:  # a damaged archive can fail in a dozen ways
        raise InputError(f"{name} is no .npz file of plain arrays: write one with numpy.savez.") from None
    raise InputError(f"{name} holds one array: write several with numpy.savez.")
