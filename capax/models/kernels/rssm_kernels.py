"""GPU kernels for the rollout of an image model: its recurrence, then its heads and members."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from capax.models.kernels import heads_kernel, recurrence_kernel
from capax.models.kernels.recurrence_kernel import pad_noise as pad_noise

MEASURED_CAPABILITIES = ("9.0",)
"""Compute capabilities where `benchmarks/fused_images.py` showed that the kernels agree and are faster. Used there."""


class Packed(NamedTuple):
    """A model as the kernels read it."""

    latent: recurrence_kernel.Packed
    heads: heads_kernel.Packed


def fits(deter: int, hidden: int, stoch: int, actions: int, members: int) -> bool:
    """Whether the chip has room for a model of these sizes."""
    sizes = deter, hidden, stoch, actions
    return recurrence_kernel.fits(*sizes) and heads_kernel.fits(*sizes, members)


def pack(net: Any, dtype: Any = jnp.bfloat16, columns: int = recurrence_kernel.PART_COLUMNS) -> Packed:
    """Pad, split and cast the parameters that every plan reads, once per fit."""
    latent = recurrence_kernel.pack(net, dtype, columns)
    return Packed(latent, heads_kernel.pack(net, latent.shape, dtype))


def prepare_start(
    packed: Packed, h: Float[Array, "*N H"], s: Float[Array, "*N S"], candidates: int
) -> recurrence_kernel.StartBeliefs:
    """Start beliefs of up to `candidates` candidates."""
    return recurrence_kernel.prepare_start(packed.latent, h, s, candidates)


def rollout(
    packed: Packed,
    starts: recurrence_kernel.StartBeliefs,
    actions: Float[Array, "N T A"],
    noise: Float[Array, "T S"],
    *,
    min_sd: float,
    members: int,
    stoch: int,
    interpret: Any = None,
) -> tuple[Float[Array, "N T"], Float[Array, "N T"], Float[Array, "N T"]]:
    """Reward, cost (or its logit) and the members' variance u at every step of every candidate."""
    tiles = recurrence_kernel.recurrence(packed.latent, starts, actions, noise, min_sd=min_sd, interpret=interpret)
    scores = heads_kernel.evaluate(packed.heads, tiles, members=members, stoch=stoch, interpret=interpret)
    reward, cost, u = (part.T[: len(actions)] for part in scores)
    return reward, cost, u
