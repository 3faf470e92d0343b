"""PPO-Lagrangian: PPO on the reward minus λ times the cost (Ray et al. 2019).

λ ≥ 0 rises while the cost exceeds its limit, and falls otherwise.
"""

from __future__ import annotations

from jax import Array
from jaxtyping import Float

from capax.agents.policy_gradient.ppo import clip_loss
from capax.agents.policy_gradient.settings import PolicyGradientSettings
from capax.agents.policy_gradient.surrogate import Sample


def ppo_lagrangian_surrogate(sample: Sample, settings: PolicyGradientSettings) -> Float[Array, " B"]:
    """PPO's clipped loss of (Â − λ Â_c) / (1 + λ). The divisor keeps the size of a step independent of λ."""
    lagrangian = (sample.advantage - sample.multiplier * sample.cost_advantage) / (1.0 + sample.multiplier)
    return clip_loss(sample.ratio, lagrangian, epsilon=settings.clip)
