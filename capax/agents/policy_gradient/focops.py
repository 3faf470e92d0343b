"""FOCOPS: fits the network to the constrained optimum near the last policy, known in closed form (Zhang et al. 2020)."""

from __future__ import annotations

import jax
from jax import Array
from jaxtyping import Float

from capax.agents.policy_gradient.settings import PolicyGradientSettings
from capax.agents.policy_gradient.surrogate import Sample


def focops_surrogate(sample: Sample, settings: PolicyGradientSettings) -> Float[Array, " B"]:
    """(KL(π ‖ π_old) − r (Â − ν Â_c)/λ) · 1[KL ≤ δ]."""
    gain = sample.ratio * (sample.advantage - sample.multiplier * sample.cost_advantage) / settings.temperature
    within_threshold = jax.lax.stop_gradient(sample.kl) <= settings.kl_threshold
    return (sample.kl - gain) * within_threshold
