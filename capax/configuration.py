"""Which settings does a run have? Everything is checked and resolved before the first step, and kept as `config.json`."""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from capax import __version__, cores
from capax.checks import number, shown, whole, word
from capax.conformal import as_rate
from capax.envs.adapt import Task
from capax.errors import InputError
from capax.paper.gridworld import LIMIT, RESTARTS
from capax.parts import FINITE_METHODS, FINITE_RULES, GRADIENT, METHODS, PLANNED, RULES, checked_kappa, settings_of
from capax.presets import GRADIENT_PRESETS, IMAGE_PRESETS, PRESETS, settings_for
from capax.runs import folder
from capax.runs.run import Run
from capax.tabular.gridworld import World

RATE = 0.02
"""Share of the planned episodes that may violate, where a task does not say."""
SAMPLES = 500
"""Steps of an episode in a finite world (paper: 500)."""


def configure(
    subject: Task | World,
    *,
    made_by: str,
    task: str | None,
    steps: Any,
    method: Any,
    kappa: Any,
    violation_rate: Any,
    cost_limit: Any,
    discounted: Any,
    own_cost: bool,
    initial_data: Any,
    initial_policy: bool,
    episode_steps: Any,
    seed: Any,
    preset: Any,
    settings: Any,
) -> dict[str, Any]:
    """The settings of a run, as JSON has them."""
    steps, seed = check_count(steps, "steps"), check_seed(seed)
    finite = isinstance(subject, World)
    methods, rules = (FINITE_METHODS, FINITE_RULES) if finite else (METHODS, RULES)
    if not isinstance(method, str) or method not in methods:
        where = " in a finite world" if finite else ""
        raise InputError(f"the method is {shown(method)}: choose {', '.join(methods)}{where}.")
    if not isinstance(discounted, bool | np.bool_ | None):
        raise InputError(f"discounted is {shown(discounted)}: give True, False or None for the task's own convention.")
    if kappa is not None and method != "cap":
        raise InputError(
            f"kappa is {shown(kappa)}, but --method {method} has no κ to choose: leave it away, or use cap."
        )
    if method in GRADIENT and (initial_policy or initial_data is not None):
        raise InputError(f"{method} learns from its own episodes alone: leave initial_data and initial_policy away.")
    chosen = checked_kappa(rules[0] if kappa is None else kappa, rules) if method == "cap" else None
    if violation_rate is None:
        violation_rate = getattr(subject, "violation_rate", None) or RATE
    as_rate(violation_rate)  # its rate is checked whether it is used or not
    both = {
        "kind": kind_of(subject),
        "method": method,
        "kappa": chosen,
        "steps": steps,
        "seed": seed,
        "version": __version__,
        "commit": commit(),
        "device": cores.kind(),
        "made_by": made_by,
        "own_cost": own_cost,
        "initial_policy": initial_policy,
        "initial_data": str(initial_data) if isinstance(initial_data, str | Path) else initial_data is not None,
    }
    if isinstance(subject, World):
        given = {
            "cost": own_cost,
            "initial_data": initial_data is not None,
            "initial_policy": initial_policy,
            "settings": not (settings is None or (isinstance(settings, Mapping) and not settings)),
            "discounted": discounted is not None and not discounted,
        }
        refused = [name for name, there in given.items() if there]
        if refused:
            raise InputError(f"{refused[0]} does not apply to a finite world, which is known but for its transitions.")
        rest = of_world(subject, task, steps, cost_limit, episode_steps)
    else:
        rest = of_task(subject, steps, method, cost_limit, discounted, preset, settings)
        rest["violation_rate"] = float(violation_rate)
    config = {"task": None, **both, **rest}
    folder.to_json(config)  # what JSON cannot hold is found here, not after the first episode
    return config


def kind_of(subject: Task | World) -> str:
    """What sort of agent the run has."""
    if isinstance(subject, World):
        return "finite"
    return "box" if subject.image is None else "image"


def of_task(
    task: Task, steps: int, method: str, cost_limit: Any, discounted: Any, preset: Any, settings: Any
) -> dict[str, Any]:
    """What is the continuous agents' own."""
    chosen = settings_of_method(task, method, preset, settings)
    limit = checked_limit(task.cost_limit if cost_limit is None else cost_limit)
    if limit is None and method in ("cap", "ccem", "ppo-lag", "focops"):
        raise InputError(
            f"{task.name} is not registered with a cost limit: give one with --cost-limit (cost_limit=), the cost "
            "that an episode may have."
        )
    by_discount = bool(task.discounted if discounted is None else discounted)
    if task.episode_steps is None and not by_discount:
        raise InputError(
            f"{task.name} sets no end to its episodes, so an undiscounted limit needs one: give --episode-steps "
            "(episode_steps=), or say --discounted."
        )
    # an endless discounted episode is cut where what comes later weighs less than e^−10
    endless = round(10.0 / (1.0 - chosen.gamma) / task.repeat)
    length = endless if task.episode_steps is None else task.episode_steps
    if task.image is not None and method in PLANNED[:-1] and chosen.rssm.chunk > length:
        raise InputError(f"chunk is {chosen.rssm.chunk}, but an episode has {length} steps: give at most that many.")
    return {
        "task": task.name,
        "cost_limit": None if limit is None or math.isinf(limit) else limit,
        "discounted": by_discount,
        "gamma": chosen.gamma,
        "preset": preset,
        "episode_steps": length,
        "capacity": max(min(getattr(chosen, "buffer", steps), steps + length), getattr(chosen, "start_steps", 1)),
        "repeat": task.repeat,
        "obs_dim": task.obs_dim,
        "image": None if task.image is None else list(task.image),
        "action_low": task.low.tolist(),
        "action_high": task.high.tolist(),
        "action_shape": list(task.env.action_space.shape),
        "action_dtype": str(task.env.action_space.dtype),
        "settings": asdict(chosen),
    }


def settings_of_method(task: Task, method: str, preset: Any, changes: Any) -> Any:
    """Sizes that a method has on this kind of task."""
    if method not in GRADIENT:
        return settings_for(preset, changes, PRESETS if task.image is None else IMAGE_PRESETS)
    word("the preset", preset, tuple(PRESETS))
    return settings_for(method, changes, GRADIENT_PRESETS)


def of_world(world: World, task: str | None, steps: int, cost_limit: Any, episode_steps: Any) -> dict[str, Any]:
    """What is the tabular agents' own; returns, costs and the limit are discounted and normalised, (1−γ) Σ γ^t c_t."""
    samples = SAMPLES if episode_steps is None else check_count(episode_steps, "episode_steps")
    limit = checked_limit(LIMIT if cost_limit is None else cost_limit)
    return {
        "task": task or "Gridworld",
        "cost_limit": None if limit is None or math.isinf(limit) else limit,
        "discounted": True,
        "gamma": world.cmdp.gamma,
        "episode_steps": samples,
        "iterations": max(1, math.ceil(steps / samples) - 2),
        "restarts": RESTARTS,
        "states": world.cmdp.S,
        "actions": world.cmdp.A,
    }


def loaded(run: Run) -> dict[str, Any]:
    """The settings of a run that is there, seen to be such."""
    config = run.config
    try:
        wrong = [name for name, fits in expectations(config).items() if name not in config or not fits(config[name])]
        if not wrong and config["kind"] != "finite":
            settings_of(config)
    except (InputError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"config.json of {run.folder} is not this version's ({error}): train anew.") from None
    if wrong:
        raise InputError(f"config.json of {run.folder} is not this version's ({', '.join(wrong)}): train anew.")
    return config


def expectations(config: Mapping[str, Any]) -> dict[str, Callable[[Any], bool]]:
    """What each setting has to be."""

    def counted(value: Any) -> bool:
        return type(value) is int and 1 <= value < 2**53

    def finite_number(value: Any) -> bool:
        return type(value) in (int, float) and math.isfinite(value)

    def truth(value: Any) -> bool:
        return type(value) is bool

    def numbers(value: Any) -> bool:
        return isinstance(value, list) and len(value) > 0 and all(map(finite_number, value))

    def rule(value: Any) -> bool:
        return value in FINITE_RULES or value in RULES or (finite_number(value) and value >= 0)

    finite = config.get("kind") == "finite"
    both: dict[str, Callable[[Any], bool]] = {
        "kind": lambda v: v in ("box", "image", "finite"),
        "task": lambda v: isinstance(v, str),
        "method": lambda v: v in (FINITE_METHODS if finite else METHODS),
        "kappa": lambda v: v is None if config.get("method") != "cap" else isinstance(v, str | int | float) and rule(v),
        "steps": counted,
        "seed": lambda v: type(v) is int and 0 <= v < 2**31,
        "gamma": lambda v: finite_number(v) and 0.0 < v < 1.0,
        "cost_limit": lambda v: v is None or (finite_number(v) and v >= 0.0),
        "discounted": truth,
        "episode_steps": counted,
        "made_by": lambda v: v in ("id", "function"),
        "own_cost": truth,
        "initial_policy": truth,
        "initial_data": lambda v: isinstance(v, str | bool),
        "device": lambda v: isinstance(v, str),
    }
    if finite:
        return both | dict.fromkeys(("iterations", "restarts", "states", "actions"), counted)
    return both | {
        "violation_rate": lambda v: finite_number(v) and 0.0 < v < 1.0,
        "capacity": counted,
        "repeat": counted,
        "obs_dim": (lambda v: v == 0) if config.get("kind") == "image" else counted,
        "image": (lambda v: v in ([64, 64, 1], [64, 64, 3])) if config.get("kind") == "image" else lambda v: v is None,
        "action_low": numbers,
        "action_high": lambda v: numbers(v) and len(v) == len(config["action_low"]),
        "action_shape": lambda v: isinstance(v, list) and math.prod(v) == len(config["action_low"]),
        "action_dtype": lambda v: v in ("float16", "float32", "float64"),
        "settings": lambda v: isinstance(v, dict),
    }


def checked_limit(limit: Any) -> float | None:
    """A limit that a cost can be held against."""
    return None if limit is None else number("the cost limit", limit, "a number >= 0", lambda x: x >= 0.0)


def check_count(value: Any, name: str) -> int:
    """A whole number that something can be done for."""
    return whole(name, value, most=2**53 - 1)


def check_seed(seed: Any) -> int:
    """A number that all the streams can be seeded with."""
    return whole("the seed", seed, least=0)


def path_of(out: Any) -> Path:
    """A run folder's path."""
    if not isinstance(out, str | Path) or not str(out) or "\0" in str(out):
        raise InputError(f"the run folder is {shown(out)}: name a folder.")
    return Path(out)


def commit() -> str | None:
    """The commit of the source that runs, if it is a checkout; `CAPAX_COMMIT` says it for a copy of one."""
    if "CAPAX_COMMIT" in os.environ:
        return os.environ["CAPAX_COMMIT"]
    try:
        here = Path(__file__).parent
        command = ["git", "-C", str(here), "rev-parse", "HEAD"]
        inside = ["git", "-C", str(here), "ls-files", "--error-unmatch", __file__]
        if subprocess.run(inside, capture_output=True, timeout=10).returncode:
            return None  # another repository that capax happens to be installed in
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip() or None
    except (OSError, subprocess.TimeoutExpired):
        return None
