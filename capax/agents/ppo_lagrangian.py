"""PPO-Lagrangian: PPO on the reward less λ times the cost, where λ ≥ 0 rises while the limit is exceeded (Ray et al. 2019)."""

from __future__ import annotations

from jax import Array
from jaxtyping import Float

from capax.agents.onpolicy import OnPolicySettings, Sample
from capax.agents.ppo import clipped


def surrogate(sample: Sample, settings: OnPolicySettings) -> Float[Array, " B"]:
    """PPO's of (Â − λ Â_c) / (1 + λ): however large λ is, the step is as large as ever."""
    lagrangian = (sample.advantage - sample.multiplier * sample.cost_advantage) / (1.0 + sample.multiplier)
    return clipped(sample.ratio, lagrangian, settings.clip)
