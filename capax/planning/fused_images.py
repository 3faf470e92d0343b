"""What would candidates of an image model come to, and be worth, in GPU kernels? `models.imagine` where these are taken."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from capax.planning import fused_heads, fused_latent
from capax.planning.fused_latent import widened as widened

MEASURED = ("9.0",)
"""Compute capabilities on which `benchmarks/fused_images.py` has shown that the kernels agree and gain; taken there."""


class Packed(NamedTuple):
    """A model as the kernels read it."""

    latent: fused_latent.Packed
    heads: fused_heads.Packed


def fits(deter: int, hidden: int, stoch: int, actions: int, members: int) -> bool:
    """Whether the chip has room for a model of these sizes."""
    sizes = deter, hidden, stoch, actions
    return fused_latent.fits(*sizes) and fused_heads.fits(*sizes, members)


def pack(net: Any, dtype: Any = jnp.bfloat16, columns: int = fused_latent.COLUMNS) -> Packed:
    """Pad, cut and cast, once per fit, what every plan reads."""
    latent = fused_latent.pack(net, dtype, columns)
    return Packed(latent, fused_heads.pack(net, latent.shape, dtype))


def begin(packed: Packed, h: Float[Array, "*N H"], s: Float[Array, "*N S"], candidates: int) -> fused_latent.Begun:
    """What so many candidates begin with."""
    return fused_latent.begin(packed.latent, h, s, candidates)


def rollout(
    packed: Packed,
    begun: fused_latent.Begun,
    actions: Float[Array, "N T A"],
    noise: Float[Array, "T S"],
    *,
    min_sd: float,
    members: int,
    stoch: int,
    interpret: Any = None,
) -> tuple[Float[Array, "N T"], Float[Array, "N T"], Float[Array, "N T"]]:
    """Reward, cost (or its logit) and the members' variance u of every candidate's steps."""
    laid = fused_latent.recurrence(packed.latent, begun, actions, noise, min_sd=min_sd, interpret=interpret)
    told = fused_heads.worth(packed.heads, laid, members=members, stoch=stoch, interpret=interpret)
    reward, cost, u = (part.T[: len(actions)] for part in told)
    return reward, cost, u
