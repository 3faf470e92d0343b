"""Which runs are trained when lanes are asked for, and what can be said of them before the first one begins?"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax

from capax.checks import shown
from capax.configuration import check_count, check_seed, checked_limit, path_of
from capax.conformal import as_rate
from capax.errors import InputError
from capax.lanes import side_by_side
from capax.parts import RULES, checked_kappa
from capax.runs.run import CONFIG, Run

VARIED: dict[str, Callable[[Any], Any]] = {
    "seed": check_seed,
    "kappa": partial(checked_kappa, rules=RULES),
    "violation_rate": as_rate,
    "cost_limit": checked_limit,
}
"""What lanes may differ in, and what is allowed there."""
Lanes = int | Sequence[Mapping[str, Any]]


def train_lanes(train: Any, env: str | Callable[[], Any], lanes: Lanes, options: dict[str, Any]) -> list[Run]:
    """Several runs: side by side on a GPU, one after the other on a CPU, where each would have no less to do."""
    if not isinstance(lanes, Sequence) or isinstance(lanes, str):
        first = check_seed(options["seed"])
        lanes = [{"seed": first + number} for number in range(check_count(lanes, "lanes"))]
    out, names = path_of(options["out"]), [name_of(lane) for lane in lanes]
    twice = [name for name in names if names.count(name) > 1]
    if twice or not names:
        raise InputError(f"lanes has {f'two of {twice[0]}' if twice else 'none'}: give each something of its own.")
    for name in names:
        if (out / name / CONFIG).exists() and not (options["force"] or options["resume"]):
            raise InputError(f"{out / name} holds a run already: resume or force it, or name another folder.")
    here = jax.default_backend() == "cpu"
    make = env if here or isinstance(env, str) else Fresh(env)
    calls = [
        partial(
            train,
            make,
            **{**options, **lane, "out": out / name, "initial_policy": copy.copy(options["initial_policy"])},
        )
        for name, lane in zip(names, lanes, strict=True)
    ]
    return [call() for call in calls] if here else side_by_side(calls, names)


def name_of(lane: Any) -> str:
    """What its folder is called; refuses what no run could begin with."""
    unknown = [name for name in lane if name not in VARIED] if isinstance(lane, Mapping) else [lane]
    if unknown or not lane:
        given = shown(unknown[0]) if unknown else "nothing"
        raise InputError(f"a lane sets {given}: give one or more of {', '.join(VARIED)}, as in {{'kappa': 0.1}}.")
    for name, value in lane.items():
        VARIED[name](value)
    return "-".join(f"{name}-{value}" for name, value in lane.items())


class Fresh:
    """A function that makes environments, which must be a new one every time: lanes that stepped the same would learn from each
    other's steps."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._given: weakref.WeakSet[Any] = weakref.WeakSet()

    def __call__(self) -> Any:
        env = self._make()
        core = getattr(env, "unwrapped", env)
        if core in self._given:
            raise InputError(
                "the function gives the same environment twice: make a new one in it, so that lanes do not share it."
            )
        self._given.add(core)
        return env
