"""The methods: what each is built from, for which kinds of tasks, with which settings. One line in METHODS adds a method."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from typing import Any, NamedTuple, get_args

from capax.agents.finite_worlds import calibrated_agent, cap_agent
from capax.agents.pets import Pets, PetsSettings
from capax.agents.planet import Planet, PlanetSettings
from capax.agents.policy_gradient.agent import PolicyGradient
from capax.agents.policy_gradient.focops import focops_surrogate
from capax.agents.policy_gradient.observations import ImageObservations, VectorObservations
from capax.agents.policy_gradient.ppo import ppo_surrogate
from capax.agents.policy_gradient.ppo_lagrangian import ppo_lagrangian_surrogate
from capax.agents.policy_gradient.settings import PolicyGradientSettings
from capax.agents.starters import Random
from capax.core.checks import check_size, nearest, short_repr
from capax.core.contracts import Agent, Kind, PlanningRule, Rule
from capax.core.errors import InputError
from capax.core.registry import Registry
from capax.core.types import Spec
from capax.kappa.damped import Damped
from capax.kappa.fixed import Fixed
from capax.kappa.pi import PI
from capax.runs.config import RunConfig
from capax.tabular.gridworld import World
from capax.training.presets import PRESETS, Preset, as_changes, changed, preset_settings, setting_names, setting_of


class Ingredients(NamedTuple):
    """Everything that an agent is built from."""

    spec: Spec
    """The limit that the agent is held to; infinite for a method that is not constrained."""
    rule: PlanningRule
    """The rule that the user chose; κ = 0 for a method without κ."""
    settings: Any
    """The method's settings, as the preset and the user changed them."""
    config: RunConfig
    world: World | None
    """The world of a finite task."""


@dataclass(frozen=True)
class Method:
    """A way to learn. `capax.register(Method("mine", build, {"vector": MySettings()}))` adds one."""

    name: str
    build: Callable[[Ingredients], Agent[Any]]
    settings: Mapping[Kind, Any]
    """For each kind of task that the method handles: its settings, a dataclass with the default sizes, or None."""
    chooses_kappa: bool = False
    """`--kappa` chooses the rule."""
    constrained: bool = True
    """The agent is held to the limit; otherwise violations are only counted."""
    random_start: bool = True
    """Random steps, logged data or a user's policy come first: `start_steps` of the settings, if they have them."""
    learns: bool = True
    """Otherwise its starting policy acts all the time."""
    summary: str = ""
    """A line for `capax settings`."""

    def __post_init__(self) -> None:
        for kind, settings in self.settings.items():
            if kind not in get_args(Kind):
                raise InputError(
                    f"the method {self.name} has settings for {short_repr(kind)}: choose {', '.join(get_args(Kind))}."
                )
            if settings is not None and (isinstance(settings, type) or not is_dataclass(settings)):
                wrong = f"the settings of the method {self.name} are {short_repr(settings)}"
                raise InputError(f"{wrong}: give an instance of a dataclass, or None.")

    def start_steps(self, config: RunConfig, settings: Any) -> float:
        """Environment steps before the agent acts."""
        if not self.learns:
            return math.inf
        if config.kind == "finite":
            return float(config.episode_steps or 0)
        if not self.random_start or (config.initial_data and not config.initial_policy):
            return 0
        return setting_of(settings, "start_steps", 0)


def planning_agent(ingredients: Ingredients) -> Agent[Any]:
    """CAP, and with κ = 0 CCEM, and without a limit CEM."""
    config, spec, rule = ingredients.config, ingredients.spec, ingredients.rule
    if ingredients.world is not None:
        return cap_agent(ingredients.world, spec, rule)
    if config.image is not None:
        episode = config.episode_steps or 0
        capacity = min(ingredients.settings.buffer, math.ceil(config.steps / config.repeat) + episode)
        height, width, channels = config.image
        return Planet(spec, rule, (height, width, channels), config.action_box.size, ingredients.settings, capacity)
    assert config.capacity is not None
    box, settings = config.action_box, ingredients.settings
    numbers = 2 * config.obs_dim + box.size + 3
    check_size({"capacity": config.capacity, "numbers of a transition": numbers}, "capacity", "numbers of a transition")
    return Pets(spec, rule, config.obs_dim, box.size, settings, config.capacity, tuple(box.rest.tolist()))


def random_agent(ingredients: Ingredients) -> Agent[Any]:
    """Random actions; in a finite world the untrained agent, whose actions are uniform."""
    if ingredients.world is not None:
        return cap_agent(ingredients.world, ingredients.spec, ingredients.rule)
    return Random(ingredients.spec, ingredients.config.action_box.size)


def calibrated(ingredients: Ingredients) -> Agent[Any]:
    """The agent with a margin in standard errors, for finite worlds."""
    assert ingredients.world is not None and ingredients.config.iterations is not None
    return calibrated_agent(ingredients.world, ingredients.spec, ingredients.config.iterations)


def gradient_agent(ingredients: Ingredients, *, surrogate: Any, multiplier: Callable[[float], Rule]) -> Agent[Any]:
    """A policy-gradient method. `multiplier` makes the rule of λ or ν from an episode's share of a batch."""
    config, settings = ingredients.config, ingredients.settings
    image = None if config.image is None else (config.image[0], config.image[1], config.image[2])
    observations = VectorObservations(config.obs_dim) if image is None else ImageObservations(image)
    rule = multiplier((config.episode_steps or settings.batch) / settings.batch)
    return PolicyGradient(ingredients.spec, rule, observations, config.action_box.size, settings, surrogate)


PLANNING: dict[Kind, Any] = {"vector": PetsSettings(), "image": PlanetSettings(), "finite": None}
GRADIENT: dict[Kind, Any] = {"vector": PolicyGradientSettings(), "image": PolicyGradientSettings()}
FOCOPS: dict[Kind, Any] = {kind: replace(value, decay=1e-3, max_kl=0.02) for kind, value in GRADIENT.items()}

ppo_agent = partial(gradient_agent, surrogate=ppo_surrogate, multiplier=lambda share: Fixed(0.0))
ppo_lag_agent = partial(gradient_agent, surrogate=ppo_lagrangian_surrogate, multiplier=lambda share: Damped())
focops_agent = partial(
    gradient_agent,
    surrogate=focops_surrogate,
    multiplier=lambda share: PI(alpha=0.03 * min(1.0, share), start=0.0, most=2.0),
)

METHODS: Registry[Method] = Registry(
    "method",
    {
        "cap": Method("cap", planning_agent, PLANNING, chooses_kappa=True, summary="conservative and adaptive"),
        "ccem": Method("ccem", planning_agent, PLANNING, summary="cap with κ = 0"),
        "cem": Method("cem", planning_agent, PLANNING, constrained=False, summary="no limit"),
        "random": Method("random", random_agent, PLANNING, constrained=False, learns=False, summary="random actions"),
        "ppo": Method(
            "ppo",
            ppo_agent,
            GRADIENT,
            constrained=False,
            random_start=False,
            summary="PPO: no model, and no regard to the cost",
        ),
        "ppo-lag": Method("ppo-lag", ppo_lag_agent, GRADIENT, random_start=False, summary="PPO-Lagrangian"),
        "focops": Method(
            "focops",
            focops_agent,
            FOCOPS,
            random_start=False,
            summary="first-order constrained optimisation, without a model",
        ),
        "calibrated": Method("calibrated", calibrated, {"finite": None}, summary="a margin in standard errors"),
    },
)


def methods_for(kind: Kind) -> dict[str, Method]:
    """The methods that handle a kind of task."""
    return {name: method for name, method in METHODS.items() if kind in method.settings}


def find_method(name: object, kind: Kind) -> Method:
    """The method of a name, if it handles this kind of task."""
    choices = methods_for(kind)
    if isinstance(name, str) and name in choices:
        return choices[name]
    where = {"finite": " in a finite world", "image": " for images", "vector": ""}[kind]
    raise InputError(f"the method is {short_repr(name)}: choose {', '.join(choices)}{where}.")


def settings_of(method: str, kind: Kind, preset: str, changes: Mapping[str, Any] | None = None) -> Any:
    """The settings of a method for a kind of task, as a preset and `changes` have them."""
    changes = as_changes(changes)
    settings = preset_settings(METHODS.find(method).settings[kind], method, kind, preset)
    return changed(settings, changes) if changes else settings


def register(entry: Method | Preset) -> None:
    """Add a method or a preset, under its own name, from outside of the package."""
    match entry:
        case Method():
            METHODS.add(entry.name, entry)
        case Preset():
            base = PRESETS.find(entry.base)
            while base.name not in ("paper", entry.name):
                base = PRESETS[base.base]
            if base.name == entry.name != "paper":
                raise InputError(f"the preset {entry.name} is based on itself: choose another base.")
            _check_names(entry)
            PRESETS.add(entry.name, entry)
        case _:
            raise InputError(f"{short_repr(entry)} cannot be registered: give a capax.Method or a capax.Preset.")


def _check_names(preset: Preset) -> None:
    """Refuse a preset whose settings no method has all of."""
    chosen = [method for method in METHODS.values() if preset.methods is None or method.name in preset.methods]
    sets = [setting_names(settings) for method in chosen for settings in method.settings.values()]
    for kind in ("vector", "image"):
        names = {*preset.changes(kind)}
        if names and not any(names <= own for own in sets):
            unknown = sorted(names - set().union(*sets))
            if not unknown:
                raise InputError(f"no method has all settings of the preset {preset.name}: register a preset for each.")
            similar = nearest(unknown[0], set().union(*sets))
            hint = f"did you mean {' or '.join(similar)}?" if similar else "no method has this setting."
            raise InputError(f"the preset {preset.name} changes {short_repr(unknown[0])}: {hint}")
