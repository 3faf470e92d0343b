"""The contract of a surrogate: the loss that tells policy-gradient methods apart. It is computed from a `Sample`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jax import Array
from jaxtyping import Float

from capax.agents.policy_gradient.settings import PolicyGradientSettings


class Sample(NamedTuple):
    """Inputs of a surrogate, at B steps."""

    ratio: Float[Array, " B"]
    """π_new(a|s) / π_old(a|s)."""
    kl: Float[Array, " B"]
    """KL(π_new ‖ π_old) at s."""
    advantage: Float[Array, " B"]
    """Of the reward, normalised over the batch."""
    cost_advantage: Float[Array, " B"]
    """Of the cost, normalised over the batch."""
    multiplier: Float[Array, ""]
    """Weight of the cost: λ of PPO-Lagrangian, ν of FOCOPS."""


Surrogate = Callable[[Sample, PolicyGradientSettings], Float[Array, " B"]]
"""The policy's loss at each step; its mean over a minibatch is minimised."""
