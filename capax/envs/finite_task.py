"""A finite world as a task: everything but its transitions is known, and its policies are evaluated exactly."""

from __future__ import annotations

from dataclasses import dataclass

from capax.core.contracts import Kind, Task
from capax.tabular.gridworld import World


@dataclass
class FiniteTask(Task):
    """A world under the name of its environment."""

    world: World
    name: str = "Gridworld"
    kind: Kind = "finite"
    cost_limit: float | None = None
    discounted: bool | None = True
    violation_rate: float | None = None
    repeat: int = 1
    episode_steps: int | None = None

    def close(self) -> None:
        """There is nothing to release."""
