"""Settings of the image model. A field says where capax differs from the published code; the preset `published` undoes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from capax.core.checks import check_size
from capax.core.settings import Above, Between, OneOf, Whole, settle


@dataclass(frozen=True)
class RSSMSettings:
    """Sizes and training of the model. The defaults are PlaNet's and the paper's, unless a field says otherwise."""

    deter: Annotated[int, Whole()] = 200
    """Size of h, the deterministic part of a belief."""
    stoch: Annotated[int, Whole()] = 30
    """Size of s, the stochastic part of a belief."""
    hidden: Annotated[int, Whole()] = 200
    """Units of a hidden layer."""
    depth: Annotated[int, Whole()] = 32
    """Channels of the first convolution. Each later one has twice as many as the one before."""
    min_sd: Annotated[float, Above()] = 0.1
    """Smallest standard deviation of s."""
    free_nats: Annotated[float, Between(0.0, 1e9)] = 3.0
    """Information (nats per image) that costs nothing in the loss."""
    members: Annotated[int, Whole()] = 5
    """Number of networks whose disagreement is the uncertainty."""
    bootstrap: Annotated[str, OneOf("none", "batch", "episodes")] = "batch"
    """What each of these networks is trained on: every sequence (none), its own resampling of the sequences of each
    gradient step (batch: the published code), or its own resampling of the episodes (episodes)."""
    one_step: Annotated[str, OneOf("now", "next")] = "now"
    """The h that these networks get with an action: before it (now: the text), or after it (next: the published code)."""
    multiplier: Annotated[float, Above()] = 1000.0
    """m in 1[logit + κ·m·u > 0]. With the floor, u is about 0.01 where data are dense: κ = 0.1 then adds 1 to the
    logit, and κ = 1 adds 10, as careful as in the paper. With floor 0, u is about 1e-4, and the published code has
    m = 10,000 (its table says 100,000)."""
    floor: Annotated[float, Between(0.0, 1e9)] = 0.1
    """Smallest standard deviation in u, added in quadrature. Costs are mispredicted for other reasons too, not only
    where members disagree. The paper's u has floor 0 with multiplier 10,000."""
    batch: Annotated[int, Whole()] = 16
    """Sequences drawn per gradient step (PlaNet: 50)."""
    chunk: Annotated[int, Whole()] = 12
    """Steps of a sequence (PlaNet: 50 images, which are 49 steps)."""
    pieces: Annotated[str, OneOf("inside", "anywhere")] = "inside"
    """Where sequences lie: within an episode, and their first image counts; or (anywhere: published code) anywhere in the
    buffer, also across the end of an episode, and their first image is not used."""
    noise: Annotated[str, OneOf("shared", "own")] = "shared"
    """Noise of imagined states: all candidates have the same, or each its own (published code)."""
    updates: Annotated[int, Whole()] = 100
    """Gradient steps per episode."""
    signal_weight: Annotated[float, Above()] = 100.0
    """Weight of the reward and cost errors in the loss; an image has weight 1. The paper has 1."""
    learning_rate: Annotated[float, Above()] = 1e-3
    """Adam's learning rate."""
    adam_epsilon: Annotated[float, Above()] = 1e-4
    """Adam's ε, added to the root of the second moment."""
    gradient: Annotated[float, Above()] = 1000.0
    """Largest norm of a gradient; larger ones are scaled down to it."""
    products: Annotated[str, OneOf("auto", "float32", "bfloat16")] = "auto"
    """Type of the matrix products while imagining: float32, bfloat16, or auto (bfloat16 on a GPU, float32
    elsewhere)."""

    def __post_init__(self) -> None:
        settle(self)
        check_size(vars(self), "batch", "chunk", "depth", each=4 * 31 * 31)  # outputs of the first convolution
