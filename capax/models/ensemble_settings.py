"""Settings of the ensemble. A field says where capax differs from the published code; the preset `published` undoes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from capax.core.checks import check_size
from capax.core.errors import InputError
from capax.core.settings import Above, Between, Flag, OneOf, Whole, settle


@dataclass(frozen=True)
class EnsembleSettings:
    """Sizes and training of the ensemble. The defaults are those of the paper and its published code."""

    members: Annotated[int, Whole()] = 5
    """E: number of networks."""
    hidden: Annotated[int, Whole()] = 200
    """Units of a hidden layer."""
    layers: Annotated[int, Whole(1, 1000)] = 4
    """Number of hidden layers."""
    particles: Annotated[int, Whole()] = 20
    """P: imagined states per candidate, divided evenly among the members (TS∞)."""
    exact: Annotated[bool, Flag()] = False
    """Evaluate every member on every particle. u is then the maximum at the same (s, a), for E times the work."""
    noise: Annotated[str, OneOf("shared", "own", "squared")] = "shared"
    """Noise of imagined states. shared: the particles of all candidates have the same. own: each candidate's particles have
    their own. squared: their own, times the predicted deviation twice (published code)."""
    outcomes: Annotated[str, OneOf("mean", "sample")] = "mean"
    """Imagined rewards and costs: their predicted mean, or a sample with noise as of the states (published code)."""
    sampled: Annotated[float, Between(0.0, 1.0)] = 1.0
    """Share of a plan's steps in which imagined states are sampled. After it they follow the predicted mean: by then a
    controller would have reacted to what happened, and a plan does not."""
    floor: Annotated[float, Between(0.0, 1e9)] = 0.05
    """Smallest standard deviation that counts in u, as a share of that of the data's own changes."""
    targets: Annotated[str, OneOf("scaled", "raw")] = "scaled"
    """Units of what is predicted, and so of u and κ: the data's own deviations, or the environment's (published code)."""
    clamp: Annotated[float, Between(0.0, 1e9)] = 0.0
    """Imagined states are clipped to ± this, and predicted costs may be below 0 (published code: 100). 0: states are
    clipped to the range of the data, widened by that range, and under a budget no cost is below the least one of the data."""
    products: Annotated[str, OneOf("auto", "float32", "bfloat16")] = "auto"
    """Type of the matrix products while imagining: float32, bfloat16, or auto (bfloat16 on a GPU, float32
    elsewhere)."""
    rollout: Annotated[str, OneOf("auto", "plain", "fused")] = "auto"
    """How a GPU computes rollouts: plain, fused (one kernel for all steps), or auto (fused where possible)."""
    cost_networks: Annotated[str, OneOf("shared", "own")] = "shared"
    """What predicts costs of 0 or 1. shared: the networks that predict everything else. own: networks that learn nothing
    else, and drop inputs that say nothing about the cost; on a GPU, rollouts are then plain."""
    learning_rate: Annotated[float, Above()] = 1e-3
    """Adam's learning rate."""
    batch: Annotated[int, Whole()] = 256
    """Transitions per member and gradient step."""
    epochs: Annotated[float, Above()] = 5.0
    """Passes over the buffer in a fit."""
    batches: Annotated[str, OneOf("drawn", "passes")] = "drawn"
    """How batches come from a member's bootstrap: drawn with replacement, or in passes, each of which has every row once
    (published code)."""
    least_updates: Annotated[int, Whole(0)] = 2000
    """Fewest gradient steps of a fit, however small the buffer is (published code: 0). 5 passes over the first 1000
    transitions would be 20 steps."""
    most_updates: Annotated[int, Whole()] = 1_000_000
    """Most gradient steps of a fit."""
    balance: Annotated[float, Between(0.0, 1.0)] = 0.0
    """Exponent of the predicted variance by which each Gaussian loss is multiplied. At 0, what is predicted with the least
    noise takes nearly all of the gradient, and the reward may hardly be learned; at 1, errors weigh alike."""
    weight_decay: Annotated[float, Between(0.0, 1e9)] = 2.5e-5
    """Weight decay of the first layer. The second has twice as much, deeper hidden layers three times as much, the
    last layer four times as much (published code)."""

    def __post_init__(self) -> None:
        settle(self)
        if self.rollout == "fused" and self.exact:
            raise InputError("rollout is fused, which asks each member about its own particles: leave exact out.")
        if self.rollout == "fused" and self.cost_networks == "own":
            raise InputError("rollout is fused, which has no networks for costs alone: leave cost_networks out.")
        if self.particles % self.members:
            raise InputError(f"particles is {self.particles}: give a multiple of the {self.members} members.")
        if self.least_updates > self.most_updates:
            raise InputError(
                f"least_updates is {self.least_updates}, more than most_updates, {self.most_updates}: give fewer."
            )
        check_size(vars(self), "members", "batch", "hidden")
        if self.layers > 1:
            check_size(vars(self), "members", "layers", "hidden", "hidden")

    def decays(self) -> list[float]:
        """Weight decay of each layer: 1, 2, 3, 3, …, 4 times the first one's."""
        hidden = [min(i + 1, 3) for i in range(self.layers)]
        return [self.weight_decay * factor for factor in [*hidden, 4]]
