"""FOCOPS: the constrained optimum near the last policy, in closed form, and the way back to networks (Zhang et al. 2020)."""

from __future__ import annotations

import jax
from jax import Array
from jaxtyping import Float

from capax.agents.onpolicy import OnPolicySettings, Sample


def surrogate(sample: Sample, settings: OnPolicySettings) -> Float[Array, " B"]:
    """(KL(π ‖ π_old) − r (Â − ν Â_c)/λ) · 1[KL ≤ δ]."""
    wanted = sample.ratio * (sample.advantage - sample.multiplier * sample.cost_advantage) / settings.temperature
    near = jax.lax.stop_gradient(sample.kl) <= settings.trust
    return (sample.kl - wanted) * near
