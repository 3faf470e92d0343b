"""What is a run made of? Agent and start follow from the settings in `config.json` alone: a resumed run has the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any, NamedTuple

import gymnasium as gym

from capax import compiled, memory
from capax.agents import focops, ppo, ppo_lagrangian
from capax.agents.onpolicy import OnPolicy, OnPolicySettings, Surrogate
from capax.agents.pets import Pets, PetsSettings
from capax.agents.planet import Planet, PlanetSettings
from capax.agents.sight import Images, Vectors
from capax.agents.start import Held, Random, Scripted
from capax.checks import is_number, shown
from capax.conformal import Conformal
from capax.envs.adapt import Cost, Task, called, make
from capax.envs.gridworld import Gridworld
from capax.errors import InputError
from capax.kappa import PI, Adam, Damped, Fixed, Rule
from capax.models.ensemble import EnsembleSettings
from capax.models.rssm import RSSMSettings
from capax.paper import gridworld as paper
from capax.planning.ccem import CEM
from capax.presets import IMAGE_PRESETS, PRESETS
from capax.tabular.gridworld import World
from capax.tabular.sampler import WorldCollector
from capax.types import Agent, Episode, Key, Spec

GRADIENT: dict[str, Surrogate] = {"ppo": ppo.surrogate, "ppo-lag": ppo_lagrangian.surrogate, "focops": focops.surrogate}
"""What each policy-gradient method makes small."""
PLANNED = ("cap", "ccem", "cem", "random")
METHODS = (*PLANNED, *GRADIENT)
RULES = ("conformal", "adam", "pi")
FINITE_METHODS = (*PLANNED, "calibrated")
FINITE_RULES = ("pi",)


class Parts(NamedTuple):
    """What the loop needs beside a collector."""

    agent: Agent[Any]
    starter: Agent[Any] | None
    start: float
    """Random steps at the beginning; infinite where nothing is learned."""
    spec: Spec
    limit: float
    """What violations are counted by."""


def parts(config: Mapping[str, Any], world: World | None = None, starter: Agent[Any] | None = None) -> Parts:
    """Of the run that `config` describes; `world` is that of a finite one, `starter` a policy to begin with."""
    compiled.remember()
    memory.keep()
    limit, spec = limits(config)
    method = config["method"]
    if world is not None:
        learner, _ = paper.make_agent(world, finite_method(config), config["iterations"], spec.limit)
        return Parts(learner, None, math.inf if method == "random" else config["episode_steps"], spec, limit)
    action_dim = len(config["action_low"])
    starter = starter or (Random if config["image"] is None else Held)(action_dim)
    if method == "random":
        return Parts(Random(action_dim), starter, math.inf, spec, limit)
    if method in GRADIENT:
        settings = settings_of(config)
        rule = multiplier(method, config["episode_steps"] / settings.batch)
        sight = Vectors(config["obs_dim"]) if config["image"] is None else Images(tuple(config["image"]))
        return Parts(OnPolicy(spec, rule, sight, action_dim, settings, GRADIENT[method]), starter, 0, spec, limit)
    rule = (
        Fixed(0.0)
        if method in ("ccem", "cem")
        else make_rule(config["kappa"], config["violation_rate"], config["kind"])
    )
    settings = settings_of(config)
    if config["kind"] == "image":
        capacity = min(settings.buffer, math.ceil(config["steps"] / config["repeat"]) + config["episode_steps"])
        agent: Agent[Any] = Planet(spec, rule, tuple(config["image"]), action_dim, settings, capacity)
    else:
        agent = Pets(spec, rule, config["obs_dim"], action_dim, settings, config["capacity"])
    start = 0 if config["initial_data"] and not config["initial_policy"] else settings.start_steps
    return Parts(agent, starter, start, spec, limit)


def limits(config: Mapping[str, Any]) -> tuple[float, Spec]:
    """The limit that violations are counted by, and what the planner is held to (nothing, for CEM)."""
    limit = math.inf if config["cost_limit"] is None else float(config["cost_limit"])
    steps, repeat = (None, 1) if config["kind"] == "finite" else (config["episode_steps"], config["repeat"])
    held = math.inf if config["method"] in ("cem", "ppo") else limit
    return limit, Spec(held, config["gamma"], config["discounted"], steps, repeat)


def settings_of(config: Mapping[str, Any]) -> Any:
    """The agent's settings, from their JSON."""
    saved = config["settings"]
    if config["method"] in GRADIENT:
        return OnPolicySettings(**saved)
    known = asdict((IMAGE_PRESETS if config["kind"] == "image" else PRESETS)["paper"])
    for part, value in known.items():
        if isinstance(value, dict) and set(value) != set(saved[part]):
            raise InputError(
                f"the run has other settings ({', '.join(sorted(set(value) ^ set(saved[part])))}) than this capax knows: use the "
                "one that it was trained with."
            )
    if config["kind"] == "image":
        return PlanetSettings(**{**saved, "rssm": RSSMSettings(**saved["rssm"]), "cem": CEM(**saved["cem"])})
    made = {"ensemble": EnsembleSettings(**saved["ensemble"]), "cem": CEM(**saved["cem"])}
    return PetsSettings(**{**saved, **made})


def multiplier(method: str, share: float) -> Rule:
    """What moves λ or ν, in every episode, which is a share of a batch."""
    if method == "ppo":
        return Fixed(0.0)
    if method == "focops":
        return PI(alpha=0.03 * min(1.0, share), start=0.0, most=2.0)
    return Damped()


def make_rule(kappa: str | float, violation_rate: float, kind: str) -> Rule:
    """The rule that `--kappa` names, with the paper's numbers for this kind of task, or a κ that stays."""
    adam = Adam(rate=0.01, start=0.1) if kind == "image" else Adam()
    named: dict[str, Rule] = {"conformal": Conformal(violation_rate), "adam": adam, "pi": PI(start=1.0)}
    return named[kappa] if isinstance(kappa, str) and kappa in named else Fixed(float(kappa))


def checked_kappa(kappa: Any, rules: tuple[str, ...]) -> str | float:
    """A rule's name, or a κ that stays."""
    if isinstance(kappa, str):
        if kappa in rules:
            return kappa
        with suppress(ValueError):
            kappa = float(kappa)
    if is_number(kappa):
        return Fixed(kappa).kappa
    raise InputError(f"kappa is {shown(kappa)}: choose {', '.join(rules)}, or give a number >= 0.")


def finite_method(config: Mapping[str, Any]) -> str:
    """What the gridworld experiment calls the agent."""
    if config["method"] == "calibrated":
        return "calibrated"
    if config["method"] == "cap":
        return "adaptive" if config["kappa"] == "pi" else str(config["kappa"])
    return "0"


class Drawn(NamedTuple):
    """Draws a finite world's episodes in compiled code, and has each of them written down."""

    sampler: WorldCollector
    note: Callable[[Episode], None]

    def collect(self, agent: Agent[Any], state: Any, key: Key, most: int | None = None) -> Episode:
        episode = self.sampler.collect(agent, state, key, most)
        self.note(episode)
        return episode


def opened(env: Any, cost: Cost | None, episode_steps: int | None) -> Task | World:
    """The environment of an id or a function: a finite world that is known but for its transitions, or a task."""
    if isinstance(env, str):
        spec = gym.registry.get(env)
        if spec is not None and spec.entry_point == "capax.envs.gridworld:Gridworld":
            inner = gym.make(env, disable_env_checker=True).unwrapped
            assert isinstance(inner, Gridworld)
            return inner.world
    elif callable(env):
        made = called(env)
        inner = called(lambda: getattr(made, "unwrapped", made))
        if isinstance(inner, Gridworld):
            return inner.world
        return make(lambda: made, cost=cost, episode_steps=episode_steps)
    return make(env, cost=cost, episode_steps=episode_steps)


def starter_of(task: Task, policy: Any) -> Scripted | None:
    """A user's policy to begin with."""
    if policy is None:
        return None
    if not callable(policy):
        raise InputError(f"initial_policy is of type {type(policy).__name__}: give a function obs -> action.")
    return Scripted(task.action_dim, policy, task)
