"""What does the uncertainty of a model add to a predicted cost?"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float


def conservative(
    cost: Float[Array, ...],
    uncertainty: Float[Array, ...],
    kappa: Float[Array, ""] | float,
    binary: Bool[Array, ""],
) -> Float[Array, ...]:
    """Conservative cost  c̃(s,a) = c(s,a) + κ u(s,a)  (CAP, Eq. 7).

    A binary cost arrives as a logit, and a step that may pay is one that pays:  1[logit + κ u > 0].
    """
    penalised = cost + kappa * uncertainty
    return jnp.where(binary, flagged(penalised), penalised)


def flagged(logit: Float[Array, ...]) -> Float[Array, ...]:
    """1 where a logit says that the step pays; what is not finite stays so, that a planner may refuse it."""
    return jnp.where(jnp.isfinite(logit), (logit > 0.0).astype(logit.dtype), logit)


def spread(sd: Float[Array, "... S"]) -> Float[Array, ...]:
    """‖Σ(s, a)‖: the norm of a member's predicted standard deviations (CAP, section 4.2)."""
    return jnp.sqrt(jnp.sum(jax.lax.square(sd), axis=-1))
