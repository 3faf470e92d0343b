"""How does a run begin from logged transitions instead of random steps?"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from capax.agents.start import to_unit
from capax.envs.adapt import Task
from capax.errors import InputError
from capax.types import Episode

NEEDED = ("obs", "action", "reward", "cost", "next_obs")


def initial_episode(data: str | Path | Mapping[str, Any], task: Task) -> Episode:
    """Logged transitions as one episode: an .npz file, or a mapping, with the arrays obs, action, reward, cost, next_obs
    and, where episodes end, terminated; actions in the environment's own units."""
    columns = dict(data) if isinstance(data, Mapping) else _read(Path(data))
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        raise InputError(f"the initial data have no {missing[0]!r}: give the arrays {', '.join(NEEDED)}.")
    count = len(columns["reward"]) if np.ndim(columns["reward"]) == 1 else 0
    columns.setdefault("terminated", np.zeros(count))
    if count < 2:
        raise InputError(f"the initial data have {count} transitions: give at least 2, better hundreds.")
    shapes: dict[str, tuple[int, ...]] = {"obs": (count, task.obs_dim), "action": (count, task.action_dim)}
    shapes["next_obs"] = shapes["obs"]
    ready: dict[str, Any] = {}
    for name in (*NEEDED, "terminated"):
        try:
            array = np.asarray(columns[name], np.float64)
        except (TypeError, ValueError):
            raise InputError(f"{name!r} of the initial data holds no numbers: give an array of numbers.") from None
        shape = shapes.get(name, (count,))
        if name == "action" and array.size == count * task.action_dim:
            array = array.reshape(shape)
        if array.shape != shape:
            raise InputError(f"{name!r} of the initial data has the shape {array.shape}: {task.name} needs {shape}.")
        if not np.isfinite(array).all():
            raise InputError(f"{name!r} of the initial data is not finite in row {_first_bad(array)}: leave it out.")
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


def _first_bad(array: Any) -> int:
    return int((~np.isfinite(array.reshape(len(array), -1))).any(1).argmax())


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as handle:  # numpy leaves a damaged file open
            file = np.load(handle, allow_pickle=False)
            if not isinstance(file, np.ndarray):
                return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise InputError(f"{path} is not there: name an .npz file of logged transitions.") from None
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}): name an .npz file of logged transitions."
        ) from None
    except (ValueError, EOFError, KeyError, NotImplementedError, zlib.error, zipfile.BadZipFile):
        raise InputError(f"{path} is no .npz file of plain arrays: write one with numpy.savez.") from None
    raise InputError(f"{path} holds one array: write several with numpy.savez.")
