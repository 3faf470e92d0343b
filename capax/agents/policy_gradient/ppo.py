"""PPO: maximises the reward and ignores the cost (Schulman et al. 2017)."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from capax.agents.policy_gradient.settings import PolicyGradientSettings
from capax.agents.policy_gradient.surrogate import Sample


def ppo_surrogate(sample: Sample, settings: PolicyGradientSettings) -> Float[Array, " B"]:
    """PPO's clipped loss  −min(r Â, clip(r, 1 − ε, 1 + ε) Â)."""
    return clip_loss(sample.ratio, sample.advantage, epsilon=settings.clip)


def clip_loss(ratio: Float[Array, " B"], advantage: Float[Array, " B"], *, epsilon: float) -> Float[Array, " B"]:
    """−min(r A, clip(r, 1 − ε, 1 + ε) A): a ratio beyond 1 ± ε gains nothing more."""
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - epsilon, 1.0 + epsilon) * advantage)
