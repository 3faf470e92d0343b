"""Contracts between the parts: agents, collectors, rules for κ, loggers, tasks. Each lists all that a part must offer.

Built-in parts and parts of users inherit from these classes. A method without a body must be written. Every other
method has a default that suits most parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, Self, TypeVar, runtime_checkable

from numpy import ndarray as Array

from capax.core.actions import ActionBox
from capax.core.types import Episode, Feedback, Key, Metrics, Record, Rest, Spec

State = TypeVar("State")
Kind = Literal["vector", "image", "finite"]
"""Kind of a task: it observes vectors, images, or states of a finite world whose transitions are unknown."""


@runtime_checkable
class Agent(Protocol[State]):
    """A learner under Algorithm 1. Settings are frozen and every method is pure: it returns the new state.

    The loop calls `learn` before an episode, `begin` at its start, `act` and `observe_cost` in each step, and `adapt` after it.
    """

    spec: Spec
    """The cost limit that the agent must keep, and its convention."""

    @property
    def steps_before_learning(self) -> int:
        """New steps that must be collected before `learn` is called."""
        return 0

    @property
    def episodes_at_once(self) -> int:
        """Episodes that are played at the same time with one policy. `learn` is called only between two such groups."""
        return 1

    def init(self, key: Key) -> State:
        """The state before any data. An agent in this state acts with an untrained policy, mostly at random."""
        ...

    def example(self, initial: State) -> State:
        """A state with the classes, shapes and types of every later one: `initial` with its empty parts filled in.

        A checkpoint is read against it. `AnyNumber(item)` stands for a tuple of any length.
        """
        return initial

    def can_act(self, state: State) -> bool:
        """Whether a policy has been learned."""
        return True

    def begin(self, state: State) -> Any:
        """The carry of a new episode: what `act` passes from step to step (for a tabular agent its policy `[S, A]`)."""
        ...

    def act(self, state: State, carry: Any, obs: Any, key: Key) -> tuple[Any, Any, Metrics]:
        """An action in [−1, 1], the next carry, and numbers to log."""
        ...

    def act_together(
        self, state: State, carries: Sequence[Any], obs: Sequence[Any], keys: Sequence[Key]
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Actions and next carries of several episodes that are played at the same time."""
        steps = [self.act(state, *one) for one in zip(carries, obs, keys, strict=True)]
        return [action for action, _, _ in steps], [carry for _, carry, _ in steps]

    def observe_cost(self, carry: Any, cost: float) -> Any:
        """The carry after the cost of the last step."""
        return carry

    def learn(self, state: State, episodes: Sequence[Episode], key: Key) -> tuple[State, Metrics]:
        """Fit the model to new episodes. An agent for finite worlds computes its policy here; others plan in `act`."""
        ...

    def adapt(self, state: State, episode: Episode) -> tuple[State, Metrics]:
        """Move κ (or λ, or ν) by the true cost of an episode. Random episodes come too, with `episode.random`."""
        return state, {}


@runtime_checkable
class Imagines(Protocol):
    """An agent whose belief can be decoded to an image, for films."""

    def decoded_image(self, state: Any, carry: Any) -> Array:
        """The image that the belief decodes to, uint8."""


class Collector(Protocol):
    """Plays an agent's policy and returns the episode."""

    def collect(self, agent: Agent[Any], state: Any, key: Key, max_steps: int | None = None) -> Episode:
        """One episode with the agent in this state, cut off after `max_steps` environment steps."""
        ...

    def collect_group(self, agent: Agent[Any], state: Any, keys: Sequence[Key], first: int) -> list[Episode]:
        """An episode for each key, played at the same time; `first` is the place of the first one in its group."""
        return [self.collect(agent, state, key) for key in keys]


class Rule(Protocol):
    """Chooses κ from the costs of executed policies.

    The state is a NamedTuple of numbers and tuples of numbers, with a field `kappa`.
    """

    def init(self) -> Any:
        """The state before the first plan."""
        ...

    def update(self, state: Any, feedback: Feedback) -> Any:
        """The state after an episode.

        For tasks with vectors it is called in the random start as well, with `feedback.random`; for images and in finite
        worlds the random start is skipped.
        """
        ...

    def report(self, state: Any) -> Metrics:
        """Numbers of the state to log with κ."""
        return {}


class PlanningRule(Rule, Protocol):
    """A rule that also takes part in planning. Every method has a default: a rule overrides those it needs."""

    def relax(self, state: Any) -> Any | None:
        """The state to plan with if no plan is feasible at `state.kappa`; None if the rule does not lower κ.

        Called in finite worlds only.
        """
        return None

    def kappa_within_episode(self, state: Any, excess: float, reward_weight: float) -> float:
        """κ within an episode whose cost so far is `excess` above its limit (below it if negative).

        `reward_weight` is the weight of a reward relative to that of a cost at this step; it is 1 at the first step. Called
        for images only, before each plan.
        """
        return float(state.kappa)

    def step_limit(self, limit: float, left: float) -> float:
        """The largest mean cost per step of the next plan.

        `limit` is the episode's limit per step (`Spec.limit / Spec.scale`), `left` what the episode's budget leaves per step.

        Called before each plan; for images only if costs are not binary.
        """
        return limit

    def allowance(self, state: Any, rest: Rest) -> float:
        """The cost that the rest of an episode may be predicted to have: what is left, or for a count of costs of 1 what
        rounds to that. Called before each plan under an undiscounted limit."""
        return rest.left + 0.5 * rest.binary

    def before_planning(self, state: Any, feedback: Feedback) -> Any:
        """The state before the first plan. `feedback` is about start data that the model was not fitted to.

        Called under an undiscounted limit.
        """
        return state

    def reconsider(self, state: Any, errors: tuple[float, ...], uncertainty: float) -> Any:
        """The state after a fit: what the new model makes of the latest episodes, oldest first.

        `errors` are their paid costs less their predicted ones, `uncertainty` is their mean U. Called under an
        undiscounted limit.
        """
        return state

    def after_fit(self, state: Any, margins: tuple[float, ...]) -> Any:
        """The state after a model was fitted, where all costs so far are 0 or 1.

        `margins` are those of `kappa.binary.safety_margins`.
        """
        return state


class Logger(Protocol):
    """Receives every row of a run. A logger that raises is dropped with a warning, and the run continues."""

    def start(self, folder: Path, config: Mapping[str, Any], first_step: int) -> None:
        """A run begins, or continues after `first_step` steps; `config` is the content of `config.json`."""

    def log(self, row: Mapping[str, Any]) -> None:
        """An episode has ended; `row` is its line in `episodes.jsonl`."""
        ...

    def close(self) -> None:
        """The run has ended or was stopped."""


class Task(Protocol):
    """A user's environment or a finite world, checked, as the rest of capax uses it."""

    name: str
    kind: Kind
    cost_limit: float | None
    """Limit that the task is registered with; None if there is none."""
    discounted: bool | None
    """Convention that the task is registered with; None if there is none."""
    violation_rate: float | None
    repeat: int
    """Frames that an action is repeated for."""
    episode_steps: int | None
    """Steps after which episodes are cut off; None if there is no time limit."""

    def close(self) -> None:
        """Release the environment."""


class EnvTask(Task, Protocol):
    """A task whose observations are vectors or images, and whose actions are a box."""

    obs_dim: int
    """Numbers of an observation; 0 for images."""
    image: tuple[int, ...] | None
    """Shape of an image; None for vectors."""
    action_box: ActionBox
    random_low: tuple[float, ...]
    """Range of random actions, in the environment's units; empty: all actions."""
    random_high: tuple[float, ...]
    allow_negative_costs: bool
    """Negative costs offset positive ones; otherwise they are refused."""


@runtime_checkable
class GrowingBuffer(Protocol):
    """A part of an agent's state that only grows at its end. It is kept in a log, not in every checkpoint."""

    added: int
    """Steps that were ever added, including those that were dropped later."""

    @property
    def size(self) -> int:
        """Steps that are held."""

    @property
    def layout(self) -> Mapping[str, Any]:
        """Type and shape of a row of each array."""

    def since(self, count: int) -> list[Record]:
        """The data that were added after the first `count` steps."""

    @classmethod
    def restored(cls, log: Iterable[Record], size: int, added: int, max_bytes: int) -> Self:
        """The buffer that held the last `size` of `added` steps. It takes at most `max_bytes`."""
