"""PPO: as much reward as possible, at any cost (Schulman et al. 2017)."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from capax.agents.onpolicy import OnPolicySettings, Sample


def surrogate(sample: Sample, settings: OnPolicySettings) -> Float[Array, " B"]:
    """−min(r Â, clip(r, 1 − ε, 1 + ε) Â)."""
    return clipped(sample.ratio, sample.advantage, settings.clip)


def clipped(ratio: Float[Array, " B"], advantage: Float[Array, " B"], clip: float) -> Float[Array, " B"]:
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage)
