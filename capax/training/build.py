"""Builds the parts of a run: the agent and the start policy, from its configuration and the user's objects."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from capax.agents.starters import QUIET_HOLD, QuietRandom, Random, Scripted, StickyRandom
from capax.core.checks import one_line, short_repr
from capax.core.contracts import Agent, PlanningRule
from capax.core.errors import InputError
from capax.core.types import Spec
from capax.envs.task import GymTask
from capax.kappa.checked import CheckedRule
from capax.kappa.conformal import DEFAULT_RATE
from capax.kappa.rules import make_rule, rule_settings
from capax.runs.config import RunConfig
from capax.runtime import switches
from capax.tabular.gridworld import World
from capax.training.methods import METHODS, Ingredients, find_method
from capax.training.presets import parse_settings, setting_of


class UserObjects(NamedTuple):
    """Objects of the user's that a run needs and that no file holds."""

    rule: CheckedRule | None = None
    starter: Scripted | None = None


class Built(NamedTuple):
    """The parts that the loop needs beside a collector."""

    agent: Agent[Any]
    starter: Agent[Any] | None
    start: float
    """Random steps at the beginning; infinite where nothing is learned."""
    spec: Spec
    """The limit that the agent is held to."""
    settings: Any
    """The method's."""


def build(config: RunConfig, world: World | None = None, own: UserObjects | None = None) -> Built:
    """The agent of a run; a resumed run gets the same one."""
    own = own or UserObjects()
    if config.method not in METHODS:
        raise InputError(
            f"the run uses the method {one_line(config.method, 60)}: register it first, with capax.register."
        )
    method = find_method(config.method, config.kind)
    settings = method.settings[config.kind]
    settings = None if settings is None else parse_settings(settings, config.settings)
    if config.own_kappa and own.rule is None:
        raise InputError(f"the run uses the rule {config.kappa}, which is your own: hand it over again, as kappa=.")
    rate = config.violation_rate or DEFAULT_RATE  # the rules of a finite world use none
    rule = own.rule or _named_rule(config, rate)
    spec = config.spec(constrained=method.constrained)
    agent = method.build(Ingredients(spec, rule, settings, config, world))
    if not isinstance(agent, Agent):
        raise InputError(f"{method.name} builds a {type(agent).__name__}: let its class inherit from capax.Agent.")
    start = method.start_steps(config, settings)
    if world is not None:
        return Built(agent, None, start, spec, settings)
    return Built(agent, own.starter or random_starter(config, spec, settings), start, spec, settings)


def _named_rule(config: RunConfig, rate: float) -> PlanningRule:
    """The rule that the configuration names, with the parameters that it changes."""
    parameters = {} if config.kappa is None else rule_settings(config.kappa, config.kind, rate)
    unknown = [name for name in config.rule if name not in parameters]
    if unknown:
        raise InputError(
            f"the rule {short_repr(config.kappa)} has no parameter {short_repr(unknown[0])}: restore config.json."
        )
    return make_rule(config.kappa, config.kind, rate, config.rule)


def random_starter(config: RunConfig, spec: Spec, settings: Any) -> Random:
    """Random actions, from the task's range and held as the settings say; under a budget, often near to doing nothing."""
    kind: Any = Random if config.image is None else partial(StickyRandom, hold=setting_of(settings, "hold", 1))
    budget = setting_of(settings, "undiscounted_limit", "pace") == "budget" and not config.discounted
    if budget and find_method(config.method, config.kind).learns:
        kind = partial(QuietRandom, hold=QUIET_HOLD, rest=tuple(config.action_box.rest.tolist()))
    low, high = config.random_range
    return kind(spec, config.action_box.size, low=low, high=high)


def starter_of(task: GymTask, policy: Any) -> Scripted | None:
    """A user's policy for the start."""
    if policy is None:
        return None
    if not callable(policy):
        raise InputError(f"initial_policy is of type {type(policy).__name__}: give a function obs -> action.")
    return Scripted(Spec(float("inf"), 0.99), task.action_dim, policy, task.action_box)


def check_precision(config: RunConfig) -> None:
    """Refuse to read the arrays of a run that was begun with numbers of another precision."""
    for name, before, now in switches.changes(config.switches):
        if name == switches.PRECISION:
            raise InputError(
                f"the run was begun with {name}={one_line(str(before), 40)}, now it is {now}: set "
                f"JAX_ENABLE_X64={int(not now)}, so that its arrays have the same types."
            )


def own_rule(config: RunConfig, kappa: Any) -> CheckedRule | None:
    """The user's rule of a run, which must be handed over again: nothing is imported by name."""
    if not config.own_kappa:
        if kappa is not None:
            raise InputError(f"kappa is {short_repr(kappa)}, but the run chose {config.kappa}: omit it.")
        return None
    if kappa is None:
        raise InputError(
            f"the run was trained with a rule of your own, {config.kappa}: hand it over again in Python, as "
            f"kappa={config.kappa}(...)."
        )
    rule = kappa if isinstance(kappa, CheckedRule) else CheckedRule(kappa)
    if rule.name != config.kappa:
        raise InputError(f"kappa is a {rule.name}, but the run was trained with {config.kappa}: hand over that rule.")
    return rule
