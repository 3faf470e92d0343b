"""`Request`: what a user asks `train` for. `resolve` turns it into the `RunConfig` of a run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from capax.agents.finite_worlds import LIMIT, RESTARTS, SAMPLES
from capax.core.checks import number, short_repr, whole
from capax.core.contracts import Kind
from capax.core.errors import InputError
from capax.core.version import __version__, commit
from capax.envs.finite_task import FiniteTask
from capax.envs.task import Cost, GymTask
from capax.kappa.checked import CheckedRule
from capax.kappa.conformal import DEFAULT_RATE, as_rate
from capax.kappa.rules import RULES, checked_kappa, make_rule, rule_settings, rules_of
from capax.runs.config import MAX_COUNT, RunConfig
from capax.runs.loggers import Loggers
from capax.runtime import cpu_devices, switches
from capax.training.methods import Method, find_method
from capax.training.presets import (
    as_changes,
    as_table,
    changed,
    default_preset,
    preset_kappa,
    preset_rule,
    preset_settings,
    setting_names,
    setting_of,
)

DEFAULT_GAMMA = 0.99
"""Discount of a method whose settings have none."""
DISCOUNTED_AWAY = 10.0
"""An endless discounted episode is cut where the weight of a step is below e^−10."""


@dataclass(frozen=True)
class Request:
    """The arguments of `capax.train`, which describes them."""

    env: str | Callable[..., Any]
    steps: int = 100_000
    out: str | Path | None = None
    method: str = "cap"
    kappa: Any = None
    violation_rate: float | None = None
    cost_limit: float | None = None
    discounted: bool | None = None
    cost: str | Cost | None = None
    allow_negative_costs: bool = False
    termination_cost: float | None = None
    initial_data: str | Path | Mapping[str, Any] | None = None
    initial_policy: Callable[[Any], Any] | None = None
    episode_steps: int | None = None
    seed: int = 0
    preset: str | None = None
    settings: Mapping[str, Any] | None = None
    env_kwargs: Mapping[str, Any] | None = None
    loggers: Loggers = None
    on_episode: Callable[[dict[str, Any]], Any] | None = None
    force: bool = False
    resume: bool = False

    @property
    def folder(self) -> Path:
        """The run folder: `out`, or `runs/TASK-METHOD-SEED`."""
        if self.out is None:
            name = self.env if isinstance(self.env, str) else getattr(self.env, "__name__", type(self.env).__name__)
            plain = re.sub(r"[^A-Za-z0-9.]+", "-", name.removeprefix("capax/")).strip("-") or "run"
            return Path("runs") / f"{plain}-{self.method}-{self.seed}"
        path = path_of(self.out)
        if not path.name:
            raise InputError(f"the run folder is {str(path)!r}: name a folder of its own.")
        return path


def resolve(request: Request, task: GymTask | FiniteTask, before: RunConfig | None = None) -> RunConfig:
    """The configuration of a run: everything checked, and what the user left open taken from the task or a default.

    `before` is the configuration of a run that is to continue; what was left open is taken from there.
    """
    method = find_method(request.method, task.kind)
    preset = _preset(request, task.kind, before)
    kappa, kappa_name = _kappa(request, method, task.kind, preset)
    if not method.random_start and (request.initial_policy is not None or request.initial_data is not None):
        raise InputError(f"{method.name} learns from its own episodes alone: omit initial_data and initial_policy.")
    if not isinstance(request.discounted, bool | np.bool_ | None):
        raise InputError(
            f"discounted is {short_repr(request.discounted)}: give True, False or None for the task's own convention."
        )
    data = request.initial_data
    common: dict[str, Any] = dict(
        task=request.env if isinstance(request.env, str) else task.name,
        kind=task.kind,
        method=method.name,
        kappa=kappa_name,
        steps=check_count(request.steps, "steps"),
        seed=check_seed(request.seed),
        made_by="id" if isinstance(request.env, str) else "function",
        env_kwargs=dict(request.env_kwargs or {}),
        own_cost=request.cost is not None,
        cost_function=request.cost if isinstance(request.cost, str) else None,
        allow_negative_costs=request.allow_negative_costs,
        own_kappa=isinstance(kappa, CheckedRule),
        initial_policy=request.initial_policy is not None,
        initial_data=str(data) if isinstance(data, str | Path) else data is not None,
        version=__version__,
        commit=commit(),
        device=cpu_devices.device_kind(),
        switches=switches.current(),
    )
    rate = task.violation_rate or DEFAULT_RATE if request.violation_rate is None else request.violation_rate
    rate = as_rate(rate)  # checked whether it is used or not
    if isinstance(task, FiniteTask):
        return RunConfig(**common, **_of_world(request, task, kappa_name, rate))
    return RunConfig(**common, violation_rate=rate, **_of_env(request, task, method, kappa_name, rate, preset, before))


def _preset(request: Request, kind: Kind, before: RunConfig | None) -> str:
    """The preset of a run. A finite world has no settings."""
    if kind == "finite":
        return "paper"
    return request.preset or (None if before is None else before.preset) or default_preset()


def _kappa(request: Request, method: Method, kind: Kind, preset: str) -> tuple[Any, str | float | None]:
    """The chosen rule, and what the configuration calls it."""
    if not method.chooses_kappa:
        if request.kappa is not None:
            raise InputError(
                f"kappa is {short_repr(request.kappa)}, but --method {method.name} has no κ to choose: omit it, or use cap."
            )
        return None, None
    default = preset_kappa(preset) or rules_of(kind)[0]
    kappa = checked_kappa(default if request.kappa is None else request.kappa, kind)
    return kappa, kappa.name if isinstance(kappa, CheckedRule) else kappa


def _of_env(
    request: Request,
    task: GymTask,
    method: Method,
    kappa: str | float | None,
    rate: float,
    preset: str,
    before: RunConfig | None,
) -> dict[str, Any]:
    """The fields of the configuration that follow from an environment."""
    discounted = bool(task.discounted if request.discounted is None else request.discounted)
    settings, rule = _settings(request, task.kind, method, kappa, rate, preset, budget=not discounted)
    limit = check_limit(task.cost_limit if request.cost_limit is None else request.cost_limit)
    if limit is None and method.constrained:
        raise InputError(
            f"{task.name} is not registered with a cost limit: give one with --cost-limit (cost_limit=), the cost that an "
            "episode may have."
        )
    gamma = setting_of(settings, "gamma", DEFAULT_GAMMA)
    length = task.episode_steps
    if length is None and before is not None:
        length = before.episode_steps
    if length is None and discounted:
        length = round(DISCOUNTED_AWAY / (1.0 - gamma) / task.repeat)
    if length is None and method.learns and (not method.random_start or request.initial_data is not None):
        raise InputError(
            f"{task.name} sets no end to its episodes, so an undiscounted limit needs one: give --episode-steps "
            "(episode_steps=), or say --discounted."
        )
    check_chunk(settings, length)
    return dict(
        cost_limit=None if limit is None or math.isinf(limit) else limit,
        discounted=discounted,
        gamma=gamma,
        preset=preset,
        settings=as_table(settings),
        rule=rule,
        episode_steps=length,
        capacity=capacity_of(settings, request.steps, length),
        repeat=task.repeat,
        obs_dim=task.obs_dim,
        image=task.image,
        action_low=tuple(task.low.tolist()),
        action_high=tuple(task.high.tolist()),
        action_shape=task.action_box.shape,
        action_dtype=task.action_box.dtype,
        random_low=task.random_low,
        random_high=task.random_high,
    )


def check_chunk(settings: Any, length: int | None) -> None:
    """Refuse sequences that are longer than an episode."""
    chunk = setting_of(settings, "chunk", 0)
    if length is not None and chunk > length:
        raise InputError(f"chunk is {chunk}, but an episode has {length} steps: give at most that many.")


def capacity_of(settings: Any, steps: Any, length: int | None) -> int:
    """Steps that a buffer makes room for."""
    steps = check_count(steps, "steps")
    buffer, start = setting_of(settings, "buffer", steps), setting_of(settings, "start_steps", 1)
    return max(min(buffer, steps + (length or 0)), start)


def _settings(
    request: Request, kind: Kind, method: Method, kappa: str | float | None, rate: float, preset: str, *, budget: bool
) -> tuple[Any, dict[str, Any]]:
    """The method's settings, and the parameters of the rule that differ from its defaults."""
    parameters, rule = _rule_of(request, kind, kappa, rate, preset)
    rest = {name: value for name, value in as_changes(request.settings).items() if name not in parameters}
    if request.termination_cost is not None:
        if kind == "image" or "termination_cost" not in setting_names(method.settings[kind]):
            raise InputError(
                f"termination_cost is {short_repr(request.termination_cost)}, but {method.name} does not imagine the end of an "
                "episode of this task: omit it."
            )
        wanted = "a number >= 0, the cost of each step that an imagined termination leaves out"
        rest["termination_cost"] = number(
            "termination_cost", request.termination_cost, wanted, lambda x: 0.0 <= x <= 1e30
        )
    settings = preset_settings(method.settings[kind], method.name, kind, preset, budget)
    return changed(settings, rest, parameters), rule


def _rule_of(
    request: Request, kind: Kind, kappa: str | float | None, rate: float, preset: str = "paper"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters of the chosen rule with their defaults, and those that the preset or the user changes, checked."""
    own_rule = callable(getattr(request.kappa, "update", None))
    if own_rule or not isinstance(kappa, str) or kappa not in RULES:
        return {}, {}
    parameters = rule_settings(kappa, kind, rate)
    own = {name: value for name, value in as_changes(request.settings).items() if name in parameters}
    changes = {**preset_rule(preset, kappa), **own}
    rule = make_rule(kappa, kind, rate, changes)
    return parameters, {name: getattr(rule, name) for name in changes}


def _of_world(request: Request, task: FiniteTask, kappa: str | float | None, rate: float) -> dict[str, Any]:
    """The fields of the configuration that follow from a finite world.

    Returns, costs and the limit are discounted and normalised, (1−γ) Σ γ^t c_t.
    """
    refused = {
        "cost": request.cost is not None,
        "allow_negative_costs": request.allow_negative_costs,
        "initial_data": request.initial_data is not None,
        "initial_policy": request.initial_policy is not None,
        "discounted": request.discounted is not None and not request.discounted,
    }
    for name, applies in refused.items():
        if applies:
            raise InputError(f"{name} does not apply to a finite world, which is known except for its transitions.")
    _, rule = _rule_of(request, "finite", kappa, rate)
    unknown = [name for name in as_changes(request.settings) if name not in rule]
    if unknown:
        choices = rule_settings(kappa, "finite", rate) if isinstance(kappa, str) else {}
        hint = f"choose {', '.join(choices)}." if choices else "omit it."
        raise InputError(f"there is no setting {short_repr(unknown[0])} in a finite world: {hint}")
    samples = SAMPLES if request.episode_steps is None else check_count(request.episode_steps, "episode_steps")
    limit = check_limit(LIMIT if request.cost_limit is None else request.cost_limit)
    cmdp = task.world.cmdp
    return dict(
        cost_limit=None if limit is None or math.isinf(limit) else limit,
        discounted=True,
        gamma=cmdp.gamma,
        episode_steps=samples,
        iterations=max(1, math.ceil(check_count(request.steps, "steps") / samples) - 2),
        restarts=RESTARTS,
        states=cmdp.S,
        actions=cmdp.A,
        rule=rule,
    )


def check_limit(limit: Any) -> float | None:
    """A limit that a cost can be compared with."""
    return None if limit is None else number("the cost limit", limit, "a number >= 0", lambda x: x >= 0.0)


def check_count(value: Any, name: str) -> int:
    """A whole number of steps, episodes or lanes."""
    return whole(name, value, most=MAX_COUNT)


def check_seed(seed: Any) -> int:
    """A number that every random stream can be seeded with."""
    return whole("the seed", seed, least=0)


def path_of(out: Any) -> Path:
    """A run folder's path."""
    if not isinstance(out, str | Path) or not str(out) or "\0" in str(out):
        raise InputError(f"the run folder is {short_repr(out)}: name a folder.")
    return Path(out)
