"""`RunConfig`: all that decides a run, checked, and kept as `config.json`."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated, Any, Self

import numpy as np

from capax.core.actions import ActionBox
from capax.core.checks import LARGEST, is_number, number, one_line, short_repr
from capax.core.contracts import Kind
from capax.core.costs import violates
from capax.core.errors import InputError
from capax.core.settings import Between, Flag, OneOf, Whole, settle
from capax.core.types import Spec

FORMAT = 2
"""Version of `config.json` and of checkpoints. Other versions are refused."""
FREE = ("steps", "version", "commit", "device", "switches")
"""What may change when a run continues."""
DERIVED = ("capacity", "iterations")
"""What follows from the steps and the length of an episode. A run that gets more steps keeps its first sizes."""
MAX_COUNT = 2**53 - 1
LARGEST_FLOAT = sys.float_info.max


@dataclass(frozen=True)
class Maybe:
    """None, or what another check allows."""

    check: Any

    @property
    def wanted(self) -> str:
        return f"None or {self.check.wanted}"

    def __call__(self, name: str, value: Any) -> Any:
        return None if value is None else self.check(name, value)


@dataclass(frozen=True)
class Text:
    """A text that is not empty."""

    wanted: str = "a text"

    def __call__(self, name: str, value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise InputError(f"{name} is {short_repr(value)}: give a text.")
        return value


@dataclass(frozen=True)
class Numbers:
    """Finite numbers, or whole ones >= 0, as a tuple."""

    whole: bool = False
    wanted: str = "numbers"

    def __call__(self, name: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or not all(is_number(x) and abs(x) <= LARGEST_FLOAT for x in value):
            raise InputError(f"{name} is {short_repr(value)}: give a list of finite numbers.")
        if not self.whole:
            return tuple(map(float, value))
        if not all(type(x) is int and 0 <= x <= LARGEST for x in value):
            raise InputError(f"{name} is {short_repr(value)}: give a list of whole numbers >= 0.")
        return tuple(value)


@dataclass(frozen=True)
class NotNegative:
    """A finite number >= 0."""

    wanted: str = "a number >= 0"

    def __call__(self, name: str, value: Any) -> float:
        return number(name, value, self.wanted, lambda x: 0.0 <= x < math.inf)


@dataclass(frozen=True)
class Table:
    """Names with what JSON can hold."""

    wanted: str = "names with values"

    def __call__(self, name: str, value: Any) -> dict[str, Any]:
        try:
            if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
                raise TypeError
            return json.loads(json.dumps(dict(value), allow_nan=False))
        except (TypeError, ValueError, RecursionError):
            raise InputError(f"{name} is {short_repr(value)}: give names with numbers, texts or flags.") from None


@dataclass(frozen=True)
class KappaChoice:
    """A rule's name, a κ that stays, or None for a method without κ."""

    wanted: str = "a rule's name or a number >= 0"

    def __call__(self, name: str, value: Any) -> str | float | None:
        if value is None or (isinstance(value, str) and value):
            return value
        return number(name, value, self.wanted, lambda x: 0.0 <= x < math.inf)


@dataclass(frozen=True)
class DataSource:
    """The file of logged data, or whether there are any."""

    wanted: str = "a file, True or False"

    def __call__(self, name: str, value: Any) -> str | bool:
        if isinstance(value, bool | str):
            return value
        raise InputError(f"{name} is {short_repr(value)}: give {self.wanted}.")


@dataclass(frozen=True)
class RunConfig:
    """All that decides a run, with defaults filled in. Objects that no file can hold are marked, and needed again to resume."""

    task: Annotated[str, Text()]
    """Id of the environment, or its name if a function made it."""
    kind: Annotated[Kind, OneOf("vector", "image", "finite")]
    """Observations are vectors or images, or the task is a finite world."""
    method: Annotated[str, Text()]
    steps: Annotated[int, Whole(1, MAX_COUNT)]
    """Environment steps in all."""
    seed: Annotated[int, Whole(0)]
    gamma: Annotated[float, Between(0.0, 1.0)]
    """Discount of a step (of a frame, where actions are repeated)."""
    discounted: Annotated[bool, Flag()]
    """The limit is on the discounted cost of an episode; otherwise on the plain sum."""
    cost_limit: Annotated[float | None, Maybe(NotNegative())] = None
    """Limit that violations are counted by; None: no limit."""
    violation_rate: Annotated[float | None, Maybe(Between(0.0, 1.0))] = None
    """Share of the planned episodes that may violate (conformal)."""
    kappa: Annotated[str | float | None, KappaChoice()] = None
    """The rule's name, or a κ that stays; None for methods without κ."""
    rule: Annotated[dict[str, Any], Table()] = field(default_factory=dict)
    """Parameters of the rule that differ from its defaults."""
    preset: Annotated[str | None, Maybe(Text())] = None
    settings: Annotated[dict[str, Any], Table()] = field(default_factory=dict)
    """Sizes of the method, all of them."""
    episode_steps: Annotated[int | None, Maybe(Whole(1, MAX_COUNT))] = None
    """Steps of an episode; None until the first truncated start episode shows it. In a finite world: steps of a policy."""
    capacity: Annotated[int | None, Maybe(Whole(1, MAX_COUNT))] = None
    """Steps that a buffer makes room for."""
    repeat: Annotated[int, Whole()] = 1
    """Frames that an action is repeated for."""
    obs_dim: Annotated[int, Whole(0)] = 0
    """Numbers of an observation; 0 for images and finite worlds."""
    image: Annotated[tuple[int, ...] | None, Maybe(Numbers(whole=True))] = None
    action_low: Annotated[tuple[float, ...], Numbers()] = ()
    action_high: Annotated[tuple[float, ...], Numbers()] = ()
    action_shape: Annotated[tuple[int, ...], Numbers(whole=True)] = ()
    action_dtype: Annotated[str, OneOf("float16", "float32", "float64")] = "float32"
    random_low: Annotated[tuple[float, ...], Numbers()] = ()
    """Range of random actions, in the environment's units; empty: all actions."""
    random_high: Annotated[tuple[float, ...], Numbers()] = ()
    states: Annotated[int | None, Maybe(Whole())] = None
    """Of a finite world."""
    actions: Annotated[int | None, Maybe(Whole())] = None
    iterations: Annotated[int | None, Maybe(Whole())] = None
    """Policies of a run in a finite world."""
    restarts: Annotated[int | None, Maybe(Whole())] = None
    """Episodes that the steps of a policy are divided into, in a finite world."""
    made_by: Annotated[str, OneOf("id", "function")] = "id"
    """Whether an id or a function made the environment."""
    env_kwargs: Annotated[dict[str, Any], Table()] = field(default_factory=dict)
    """Arguments of the environment's constructor."""
    own_cost: Annotated[bool, Flag()] = False
    """The cost is a function of the user's."""
    cost_function: Annotated[str | None, Maybe(Text())] = None
    """MODULE:FUNCTION of that function, if it was named."""
    allow_negative_costs: Annotated[bool, Flag()] = False
    """Negative costs offset positive ones; otherwise they are refused."""
    own_kappa: Annotated[bool, Flag()] = False
    """The rule for κ is an object of the user's."""
    initial_policy: Annotated[bool, Flag()] = False
    """A policy of the user's acts in the start."""
    initial_data: Annotated[str | bool, DataSource()] = False
    """File of the logged data that the run began with, or whether there were any."""
    version: Annotated[str, Text()] = "0"
    """Of the capax that began the run."""
    commit: Annotated[str | None, Maybe(Text())] = None
    device: Annotated[str, Text()] = "cpu"
    """What computed at the beginning."""
    switches: Annotated[dict[str, Any], Table()] = field(default_factory=dict)
    """What else changes numbers, as it was at the beginning: JAX's switches, variables, versions of libraries."""

    def __post_init__(self) -> None:
        settle(self)
        if not 0.0 < self.gamma < 1.0:
            raise InputError(f"gamma is {self.gamma:g}: give a number above 0 and below 1.")
        if self.kind == "finite":
            if None in (self.episode_steps, self.iterations, self.restarts, self.states, self.actions):
                raise InputError("episode_steps, iterations, restarts, states or actions is missing: give them.")
            return
        if len(self.action_low) != len(self.action_high) or math.prod(self.action_shape) != len(self.action_low):
            raise InputError(
                "action_low, action_high and action_shape do not belong together: give those of one space."
            )
        if self.random_low and not len(self.random_low) == len(self.random_high) == len(self.action_low):
            raise InputError("random_low and random_high do not belong to the actions: give a number for each.")
        if (self.kind == "image") != (self.image is not None) or (self.kind == "vector") != (self.obs_dim > 0):
            raise InputError(
                f"obs_dim is {self.obs_dim} and image {self.image}: give one of them, by the kind {self.kind}."
            )
        if self.image is not None and self.image not in ((64, 64, 1), (64, 64, 3)):
            raise InputError(f"image is {list(self.image)}: give [64, 64, 1] or [64, 64, 3].")
        if not self.action_low or self.capacity is None or self.violation_rate is None:
            raise InputError("action_low, capacity or violation_rate is missing: give them.")

    @property
    def limit(self) -> float:
        """The limit that violations are counted by; infinite if there is none."""
        return math.inf if self.cost_limit is None else float(self.cost_limit)

    def violated_by(self, paid: float) -> bool:
        """Whether an episode that paid this, in the task's convention, violates the limit."""
        return violates(paid, self.limit, exact=self.kind == "finite")

    @property
    def action_box(self) -> ActionBox:
        """The action space of the environment."""
        low, high = (np.array(bound, np.float64) for bound in (self.action_low, self.action_high))
        return ActionBox(low, high, self.action_shape, self.action_dtype)

    @property
    def random_range(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The range of random actions in [−1, 1]; two empty tuples for all of it."""
        low, high = (self.action_box.to_unit(part) if part else () for part in (self.random_low, self.random_high))
        return tuple(map(float, low)), tuple(map(float, high))

    @property
    def return_names(self) -> tuple[str, ...]:
        """Keys of a row's returns that are shown together: both where the limit is discounted, or where the paper's returns are
        (images), so that return and cost are never compared in different conventions."""
        both = self.kind != "finite" and (self.discounted or self.kind == "image")
        return ("return", "discounted_return") if both else ("return",)

    @property
    def limits_within_episode(self) -> bool:
        """Whether the rule for κ lowers the limit of plans, or changes κ, within an episode, which other rules do not."""
        budget = (
            self.kind == "vector" and not self.discounted and self.setting("undiscounted_limit", "budget") == "budget"
        )
        constant = self.kind == "finite" or budget  # a budget is one with every rule
        return self.kappa == "conformal" and not constant and bool(self.rule.get("within_episode", True))

    @property
    def cost_name(self) -> str:
        """The key of a row whose cost the limit is on."""
        return "discounted_cost" if self.discounted else "cost"

    @property
    def own_objects(self) -> tuple[str, ...]:
        """Arguments of `capax.resume` that hand over objects of the user's, which no file holds."""
        needed = {
            "env": self.made_by == "function",
            "cost": self.own_cost and self.cost_function is None,
            "kappa": self.own_kappa,
        }
        return tuple(name for name, is_needed in needed.items() if is_needed)

    def setting(self, name: str, default: Any) -> Any:
        """A setting of the method, wherever in its parts it is; `default` if the method has none of this name."""
        parts = [self.settings, *(part for part in self.settings.values() if isinstance(part, dict))]
        return next((part[name] for part in parts if name in part), default)

    def with_steps(self, steps: int) -> Self:
        """The same run with another number of steps in all."""
        return replace(self, steps=steps)

    def with_length(self, episode_steps: int, capacity: int | None) -> Self:
        """The same run, now that the length of an episode is known."""
        return replace(self, episode_steps=episode_steps, capacity=capacity)

    def spec(self, *, constrained: bool = True) -> Spec:
        """What an agent is held to: the limit, or none where the method is not `constrained`."""
        limit = self.limit if constrained else math.inf
        if self.kind == "finite":
            return Spec(limit, self.gamma, self.discounted)
        return Spec(limit, self.gamma, self.discounted, self.episode_steps, self.repeat)

    def as_dict(self) -> dict[str, Any]:
        """What `config.json` holds."""
        return {"format": FORMAT, **json.loads(json.dumps(asdict(self), allow_nan=False))}

    def to_json(self) -> str:
        """`config.json`."""
        return json.dumps(self.as_dict(), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> Self:
        """The config of a text; `where` is the file, for messages."""
        try:
            table = json.loads(text)
        except (ValueError, RecursionError):
            raise InputError(f"{where} is not JSON: it was damaged, so restore it or retrain.") from None
        if not isinstance(table, dict) or "task" not in table or "method" not in table:
            raise InputError(f"{where} is not of capax train: name a folder that it has written.")
        if table.get("format", 1) != FORMAT:
            raise InputError(
                f"{where} was written by capax {one_line(str(table.get('version')), 20)} in another format, which this version "
                "cannot read: use that one, or retrain."
            )
        names = {f.name for f in fields(cls)}
        wrong = sorted({*table} ^ {"format", *names})
        try:
            if wrong:
                raise InputError(f"its names differ in {', '.join(map(str, wrong[:5]))}")
            return cls(**{name: value for name, value in table.items() if name != "format"})
        except (InputError, TypeError, OverflowError) as error:
            reason = str(error).partition(": ")[0]
            raise InputError(f"{where} is not this version's ({reason}): restore it or retrain.") from None

    def differences(self, other: RunConfig) -> list[str]:
        """Names of what differs between two runs and must not."""
        mine, theirs = self.as_dict(), other.as_dict()
        if None in (self.cost_function, other.cost_function):  # a function itself was handed over, which has no name
            mine["cost_function"] = theirs["cost_function"]
        return sorted(name for name in mine if name not in (*FREE, *DERIVED) and mine[name] != theirs[name])
