"""Conservative costs: a predicted cost plus κ times the model's uncertainty."""

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
    flags: bool = True,
) -> Float[Array, ...]:
    """Conservative cost  c̃(s,a) = c(s,a) + κ u(s,a)  (CAP, Eq. 7).

    A binary cost arrives as a logit. As a flag, a step that may have a cost counts as one that has:  1[logit + κ u > 0].
    Otherwise its probability counts:  σ(logit) + κ u.
    """
    if not flags:
        return jnp.where(binary, jax.nn.sigmoid(cost), cost) + kappa * uncertainty
    penalised = cost + kappa * uncertainty
    return jnp.where(binary, binary_cost(penalised), penalised)


def binary_cost(logit: Float[Array, ...]) -> Float[Array, ...]:
    """1 where the logit is positive, else 0. Non-finite logits stay, so that the planner can refuse them."""
    return jnp.where(jnp.isfinite(logit), (logit > 0.0).astype(logit.dtype), logit)


def deviation_norm(sd: Float[Array, "... S"], floor: float = 0.0) -> Float[Array, ...]:
    """‖Σ(s, a)‖: the norm of a member's predicted standard deviations (CAP, section 4.2), with a floor on each.

    The floor is added in quadrature, sd² + floor². Plans are wrong for other reasons too, and these stay when the
    model improves. A κ that must cover them would be as unsteady as an uncertainty without a floor.
    """
    return jnp.sqrt(jnp.sum(jax.lax.square(sd) + floor**2, axis=-1))
