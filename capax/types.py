"""What do the loop, the agents and the collectors hand to one another?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import numpy as np
from numpy import ndarray as Array

Key = jax.Array
Metrics = Mapping[str, Any]
"""Numbers that a function wants logged; only the loop logs them."""


class Spec(NamedTuple):
    """What an agent must know of its task before the first step."""

    limit: float
    """The cost that must not be exceeded, in the same convention as `Episode.paid`."""
    gamma: float
    """Discount of a step."""
    discounted: bool = True
    """Whether the limit is on Σ γ^t c_t or on Σ c_t."""
    episode_steps: int | None = None
    """The agent's steps in a whole episode; None where an env sets no limit to them."""
    repeat: int = 1
    """Frames that an action is repeated for; a discount counts them."""

    def discounts(self, steps: int) -> Array:
        """γ^t for the first `steps` steps of an episode, `[T]`, t counted in frames."""
        return self.gamma ** (self.repeat * np.arange(steps))

    def weight(self, step: int) -> float:
        """What a cost counts at a step of an episode, the first being 0."""
        return float(self.gamma ** (self.repeat * step)) if self.discounted else 1.0

    def worth(self, step: int) -> float:
        """What a reward counts at a step, of what a cost does."""
        return 1.0 if self.discounted else float(self.gamma ** (self.repeat * step))

    def weights(self, steps: int) -> Array:
        """What a cost counts at each of the first `steps` steps of an episode, `[T]`."""
        return self.discounts(steps) if self.discounted else np.ones(steps)

    @property
    def scale(self) -> float:
        """What a constant cost of 1 sums to over a whole episode: a plan's mean cost times this meets the limit."""
        if self.episode_steps is None:
            return 1.0 / (1.0 - self.gamma)
        if not self.discounted:
            return float(self.episode_steps)
        each = self.gamma**self.repeat
        return float((1.0 - each**self.episode_steps) / (1.0 - each))


class Episode(NamedTuple):
    """What was seen between two updates of the agent; T steps, possibly of several restarts."""

    obs: Array
    """`[T, ...]`, before each action."""
    action: Array
    """`[T, ...]`."""
    reward: Array
    """`[T]`, as sampled."""
    cost: Array
    """`[T]`, as sampled."""
    next_obs: Array
    """`[T, ...]`, after each action (before a restart, not after it)."""
    earned: float
    """Return of the policy in the task's convention, exact where the world can tell."""
    paid: float
    """Cost of the policy in the task's convention, exact where the world can tell: the J_c of Algorithm 1."""
    extras: Mapping[str, Array]
    """What `Agent.act` reported, `[T]` each."""
    terminated: Array
    """`[T]`: the world ended here (a time limit is no end)."""
    random: bool = False
    """Acted out by the start policy, not by a plan."""
    frames: Array | None = None
    """`[T, repeat]`, the reward of each frame of a repeated action, NaN where the episode had ended; None where actions
    are not repeated."""

    @property
    def taken(self) -> int:
        """Environment steps: frames, where actions are repeated."""
        return len(self.reward) if self.frames is None else int(np.isfinite(self.frames).sum())

    @property
    def means(self) -> Metrics:
        """What `Agent.act` reported, averaged over the steps."""
        return {name: float(np.mean(values)) for name, values in self.extras.items()}


Record = tuple[dict[str, Array], int]
"""A piece of a buffer's log: arrays, and how many transitions had come in after it."""

State = TypeVar("State")


class Agent(Protocol[State]):
    """A learner under Algorithm 1. Settings are frozen and every method is pure: it returns the new state."""

    def init(self, key: Key) -> State:
        """The state before any data: it acts at random."""

    def begin(self, state: State) -> Any:
        """What one episode carries from step to step (for a tabular agent: its policy `[S, A]`)."""

    def act(self, state: State, carry: Any, obs: Any, key: Key) -> tuple[Any, Any, Metrics]:
        """An action, the next carry, and numbers worth logging."""

    def learn(self, state: State, episodes: Sequence[Episode], key: Key) -> tuple[State, Metrics]:
        """Fit the model to what is new and plan with it."""

    def adapt(self, state: State, episode: Episode) -> tuple[State, Metrics]:
        """Let the true cost of an episode move κ (or λ, or ν)."""


class Collector(Protocol):
    """Whatever can act out an agent's policy and bring back an `Episode`."""

    def collect(self, agent: Agent[Any], state: Any, key: Key, most: int | None = None) -> Episode:
        """Act with the agent as it is now, for `most` steps at most."""
