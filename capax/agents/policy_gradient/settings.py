"""Settings of policy-gradient methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from capax.core.settings import Above, Between, Whole, settle


@dataclass(frozen=True)
class PolicyGradientSettings:
    """Sizes and training. The defaults are the paper's."""

    hidden: Annotated[int, Whole()] = 64
    """Units of each of the two hidden layers."""
    batch: Annotated[int, Whole()] = 2048
    """Fewest steps between two improvements of the policy. A batch is made of whole episodes."""
    minibatch: Annotated[int, Whole()] = 64
    """Steps of a batch that one gradient step is computed from."""
    epochs: Annotated[int, Whole()] = 10
    """Passes over a batch."""
    learning_rate: Annotated[float, Above()] = 3e-4
    """Adam's learning rate."""
    gamma: Annotated[float, Above(0.0, 0.999999)] = 0.99
    """Discount of rewards and costs."""
    lam: Annotated[float, Between(0.0, 1.0)] = 0.95
    """λ of generalised advantage estimation."""
    clip: Annotated[float, Above()] = 0.2
    """ε of PPO: a ratio of probabilities counts up to this distance from 1."""
    temperature: Annotated[float, Above()] = 1.5
    """λ of FOCOPS: 1/λ is the weight of the advantages relative to the divergence."""
    kl_threshold: Annotated[float, Above()] = 0.02
    """δ of FOCOPS: samples whose divergence is larger are ignored."""
    decay: Annotated[float, Between(0.0, 1e9)] = 0.0
    """Weight of the value networks' squared parameters in the loss."""
    max_kl: Annotated[float, Above()] = 1e9
    """An epoch whose mean divergence is larger is the last one of its batch."""
    gradient: Annotated[float, Above()] = 0.5
    """Largest norm of a gradient. A longer gradient is scaled down to it."""

    def __post_init__(self) -> None:
        settle(self)
