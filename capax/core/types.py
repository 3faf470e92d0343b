"""Types of the data that parts exchange: the limit of a task, episodes, imagined candidates, feedback for a rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from capax.core.costs import total_cost, violates

Key = jax.Array
MAX_ERROR = 1e100
"""Cost errors are clipped to ± this; its square is still a float."""
Metrics = Mapping[str, Any]
"""Numbers to log. Functions return them, and only the loop logs them."""


class Spec(NamedTuple):
    """The cost limit of a task and its convention."""

    limit: float
    """The cost that must not be exceeded, in the same convention as `Episode.paid`."""
    gamma: float
    """Discount of a step."""
    discounted: bool = True
    """Whether the limit is on Σ γ^t c_t or on Σ c_t."""
    episode_steps: int | None = None
    """Steps of the agent in a whole episode; None if nothing ends an episode."""
    repeat: int = 1
    """Frames that an action is repeated for. Discounts count frames."""

    def discounts(self, steps: int) -> Array:
        """γ^t for the first `steps` steps of an episode, `[T]`, t counted in frames."""
        return self.gamma ** (self.repeat * np.arange(steps))

    def cost_weight(self, step: int) -> float:
        """Weight of a cost at a step of an episode; the first step is 0."""
        return float(self.gamma ** (self.repeat * step)) if self.discounted else 1.0

    def reward_weight(self, step: int) -> float:
        """Weight of a reward at a step, relative to the weight of a cost."""
        return 1.0 if self.discounted else float(self.gamma ** (self.repeat * step))

    def cost_weights(self, steps: int) -> Array:
        """Weights of the costs of the first `steps` steps of an episode, `[T]`."""
        return self.discounts(steps) if self.discounted else np.ones(steps)

    def paid(self, cost: Array) -> float:
        """The cost of an episode whose steps cost `cost` `[T]`, in the task's convention."""
        return total_cost(cost, self.cost_weights(len(cost)))

    @property
    def scale(self) -> float:
        """Sum of a constant cost of 1 over a whole episode. A plan's mean cost times this is compared with the limit."""
        if self.episode_steps is None:
            return 1.0 / (1.0 - self.gamma)
        if not self.discounted:
            return float(self.episode_steps)
        each = self.gamma**self.repeat
        return float((1.0 - each**self.episode_steps) / (1.0 - each))


class Episode(NamedTuple):
    """One executed policy: T steps, in a finite world possibly with several restarts."""

    obs: Array
    """`[T, ...]`, before each action."""
    action: Array
    """`[T, ...]`."""
    reward: Array
    """`[T]`, as sampled."""
    cost: Array
    """`[T]`, as sampled."""
    next_obs: Array
    """`[T, ...]`, after each action, and before a restart."""
    earned: float
    """Return of the policy: the plain sum of rewards; in a finite world the exact one, discounted and normalised."""
    paid: float
    """J_c of Algorithm 1: cost of the policy in the task's convention; exact in a finite world, else as sampled."""
    extras: Mapping[str, Array]
    """Metrics that `Agent.act` returned, `[T]` each."""
    terminated: Array
    """`[T]`: the episode terminated here. A time limit does not terminate an episode, it truncates it."""
    random: bool = False
    """The actions are the start policy's, not the agent's."""
    truncated: bool = False
    """The environment or its time limit cut the episode off after the last step."""
    frames: Array | None = None
    """`[T, repeat]`, the reward of each frame of a repeated action, NaN after the end of the episode. None if actions
    are not repeated."""

    @property
    def env_steps(self) -> int:
        """Environment steps. If actions are repeated, these are the frames."""
        return len(self.reward) if self.frames is None else int(np.isfinite(self.frames).sum())

    @property
    def means(self) -> Metrics:
        """Metrics that `Agent.act` returned, averaged over the steps."""
        return {name: float(np.mean(values)) for name, values in self.extras.items()}


Record = tuple[dict[str, Array], int]
"""A piece of a buffer's log: its arrays, and the number of transitions ever added, those of the piece included."""


class Imagined(NamedTuple):
    """A model's predictions for N candidates, with P particles each, over H steps."""

    reward: Float[jax.Array, "N P H"]
    cost: Float[jax.Array, "N P H"]
    """A logit where the cost is binary."""
    uncertainty: Float[jax.Array, "N P H"]
    """u(s, a), already the maximum over the members."""
    alive: Float[jax.Array, "N P H"]
    """1 up to and including the step that ends an imagined episode, 0 after it."""


Rollout = Callable[[Any, Any, Float[jax.Array, "N H A"], Key], Imagined]
"""(params, start, actions in [−1, 1], key) → Imagined."""


class Feedback(NamedTuple):
    """Costs of an executed policy, and what its plan predicted: the input of a rule for κ."""

    paid: float
    """Its true cost J_c, in the task's convention."""
    limit: float
    """The limit C, in the same convention."""
    random: bool = False
    """A random episode of the start: nothing was planned."""
    residual: float | None = None
    """The κ at which the planned cost Ĵ_c with its penalty and its slack D would have been the paid one: (J_c − Ĵ_c − D) / U.
    None for random episodes and for binary costs."""
    unit: float | None = None
    """The κ whose penalty alone fills the limit (the paid cost, where the limit is 0): the scale of κ in this task."""
    uncertainty: float = 1.0
    """U, the factor of κ in the plan: residual · U is the planning error in units of the cost."""
    binary: bool = False
    """Costs are 0 or 1, and κ weighs uncertainty against a logit."""
    noise: float = 0.0
    """Standard deviation of what a step costs around what was predicted for it, under an undiscounted limit."""
    allowance: float = math.inf
    """The cost that the first plan of the episode could be predicted to have, under an undiscounted limit."""
    exact: bool = False
    """The exact cost of a policy in a finite world, whose limit is met up to the rounding of a linear program."""

    @property
    def violated(self) -> bool:
        """J_c > C, up to rounding."""
        return violates(self.paid, self.limit, exact=self.exact)

    @property
    def error(self) -> float:
        """J_c − C, clipped to ±MAX_ERROR."""
        return 0.0 if self.paid == self.limit else max(-MAX_ERROR, min(MAX_ERROR, self.paid - self.limit))


class Rest(NamedTuple):
    """What is left of an episode under an undiscounted limit."""

    left: float
    """Of the limit."""
    steps: int
    episode_steps: int
    """Steps of a whole episode."""
    binary: bool = False
    """Costs are 0 or 1."""
    risk: float = 0.0
    """Conservative cost that was predicted for the steps so far."""
    run_length: float = 1.0
    """Steps in a row that have a cost, typically, once one has."""


class AnyNumber(NamedTuple):
    """Stands for a tuple of any length in an example state; all its items are like `item`."""

    item: Any
