"""Several runs of one request, with other seeds or options: side by side on a GPU, one after the other on a CPU."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax

from capax import runtime
from capax.core.checks import short_repr
from capax.core.errors import InputError
from capax.kappa.conformal import as_rate
from capax.kappa.rules import checked_kappa
from capax.runs.run import CONFIG, Run
from capax.runtime.lanes import run_lanes
from capax.training.request import Request, check_count, check_limit, check_seed

VARIED: dict[str, Callable[[Any], Any]] = {
    "seed": check_seed,
    "kappa": partial(checked_kappa, kind="vector"),
    "violation_rate": as_rate,
    "cost_limit": check_limit,
}
"""Options that lanes may differ in, with their checks."""
Lanes = int | Sequence[Mapping[str, Any]]


def train_lanes(train: Callable[[Request], Run], request: Request, lanes: Lanes) -> list[Run]:
    """Several runs: at once on a GPU, one after the other on a CPU, where each would have no less to do."""
    runtime.configure()
    if not isinstance(lanes, Sequence) or isinstance(lanes, str):
        first = check_seed(request.seed)
        lanes = [{"seed": first + number} for number in range(check_count(lanes, "lanes"))]
    out, names = request.folder, [lane_name(lane) for lane in lanes]
    twice = [name for name in names if names.count(name) > 1]
    if twice or not names:
        raise InputError(f"lanes has {f'two of {twice[0]}' if twice else 'none'}: give each something of its own.")
    for name in names:
        if (out / name / CONFIG).exists() and not (request.force or request.resume):
            raise InputError(f"{out / name} holds a run already: resume or force it, or name another folder.")
    on_cpu = jax.default_backend() == "cpu"
    env = request.env if on_cpu or isinstance(request.env, str) else DistinctEnvs(request.env)
    requests = [
        replace(request, **{**lane, "env": env, "out": out / name, "initial_policy": copy.copy(request.initial_policy)})
        for name, lane in zip(names, lanes, strict=True)
    ]
    if on_cpu:
        return [train(one) for one in requests]
    return run_lanes([partial(train, one) for one in requests], names)


def lane_name(lane: Any) -> str:
    """The name of a lane's folder; refuses what no run could begin with."""
    unknown = [name for name in lane if name not in VARIED] if isinstance(lane, Mapping) else [lane]
    if unknown or not lane:
        entry = short_repr(unknown[0]) if unknown else "nothing"
        raise InputError(f"a lane sets {entry}: give one or more of {', '.join(VARIED)}, as in {{'kappa': 0.1}}.")
    for name, value in lane.items():
        VARIED[name](value)
    return "-".join(f"{name}-{value}" for name, value in lane.items())


class DistinctEnvs:
    """A function that makes environments and must make a new one every time: lanes that share one would learn from each
    other's steps."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self._earlier: weakref.WeakSet[Any] = weakref.WeakSet()

    def __call__(self, **env_kwargs: Any) -> Any:
        env = self._make(**env_kwargs)
        core = getattr(env, "unwrapped", env)
        if core in self._earlier:
            raise InputError(
                "the function gives the same environment twice: make a new one in it, so that lanes do not share it."
            )
        self._earlier.add(core)
        return env
