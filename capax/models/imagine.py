"""What would candidates lead to, in an image model's beliefs? Only the recurrence goes step by step."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax import Array
from jaxtyping import Float

from capax.models.layers import Dense, type_of
from capax.models.rssm import RSSM, Belief, RSSMSettings, disagreement, gaussian_of, head, uncertainty
from capax.planning.ccem import Imagined
from capax.types import Key

UNROLLED = 12
"""Steps that are compiled as one piece, for fewer launches on a GPU; the paper's horizon."""


def ready(net: RSSM, settings: RSSMSettings) -> tuple[RSSM | None, Any]:
    """What plans read, made once per fit: all but the members in the type of the products, or what the kernels read."""
    kernels = fused(settings, net.embed.w.shape[0] - settings.stoch)
    if kernels is not None:
        return None, kernels.pack(net)
    dtype = type_of(settings.products)
    net = eqx.tree_at(lambda n: (n.encoder, n.posterior, n.decoder_in, n.decoder), net, (None,) * 4)
    return eqx.tree_at(lambda n: n.members, jax.tree.map(lambda leaf: leaf.astype(dtype), net), net.members), None


def fused(settings: RSSMSettings, action_dim: int) -> Any:
    """`planning.fused_images` on the GPUs that it is measured on; None elsewhere, for models that are too large, and where u
    has no floor: the kernels' is too coarse to stand alone."""
    if jax.default_backend() != "gpu" or type_of(settings.products) != "bfloat16" or settings.floor == 0.0:
        return None
    from capax.planning import fused_images  # Pallas is slow to import

    capable = getattr(jax.devices()[0], "compute_capability", "") in fused_images.MEASURED
    room = fused_images.fits(settings.deter, settings.hidden, settings.stoch, action_dim, settings.members)
    return fused_images if capable and room else None


def rollout(
    params: tuple[RSSM | None, Any], start: Belief, actions: Float[Array, "N H A"], key: Key, *, settings: RSSMSettings
) -> Imagined:
    """Imagine each candidate from a belief, or from one of its own. `params`: of `ready`."""
    N, H, _ = actions.shape
    return imagined(params, begun(params, start, N, settings), actions, noise(key, H, settings), settings=settings)


def noise(key: Key, horizon: int, settings: RSSMSettings) -> Float[Array, "H S"]:
    """That all candidates of a rollout share; the same whatever the products."""
    return jr.normal(key, (horizon, settings.stoch)).astype(type_of(settings.products))


def drawn(key: Key, horizon: int, action_dim: int, settings: RSSMSettings) -> Float[Array, "H S"]:
    """The same as rollouts read it, for many at once."""
    kernels, eps = fused(settings, action_dim), noise(key, horizon, settings)
    return eps if kernels is None else kernels.widened(eps)


def begun(params: tuple[RSSM | None, Any], start: Belief, candidates: int, settings: RSSMSettings) -> Any:
    """What so many candidates begin with, or fewer, as rollouts read it: the same in all rounds of a plan."""
    dtype, (half, packed) = type_of(settings.products), params
    first = Belief(*(part.astype(dtype) for part in start))
    if half is not None:
        return first
    from capax.planning import fused_images

    return fused_images.begin(packed, *first, candidates)


def imagined(
    params: tuple[RSSM | None, Any],
    start: Any,
    actions: Float[Array, "N H A"],
    noise: Float[Array, "H S"],
    *,
    settings: RSSMSettings,
) -> Imagined:
    """From what `begun` made, with noise that is drawn already; the heads see all steps at once."""
    half, packed = params
    N, H, A = actions.shape
    dtype = type_of(settings.products)
    if half is not None:
        h, s = recurrence(half, start.h, start.s, actions, noise, min_sd=settings.min_sd, dtype=dtype)  # [H N ·]
        reward, cost = (part.T.astype(jnp.float32) for part in heads(half, h, s))
        before = jnp.concatenate([jnp.broadcast_to(start.h, (1, *h.shape[1:])), h[:-1]])
        moves = actions.swapaxes(0, 1).astype(dtype)
        rows = (part.reshape(H * N, -1).astype(jnp.float32) for part in (before, moves))
        u = disagreement(half.members, *rows)[1].reshape(H, N).T
    else:
        kernels, how = fused(settings, A), dict(min_sd=settings.min_sd, members=settings.members, stoch=settings.stoch)
        reward, cost, u = kernels.rollout(packed, start, actions, noise, **how)
    u = uncertainty(u, settings)
    return Imagined(*(part[:, None, :] for part in (reward, cost, u, jnp.ones_like(u))))


def heads(net: RSSM, h: Float[Array, "... H"], s: Float[Array, "... S"]) -> tuple[Any, Any]:
    """Reward and cost of beliefs, as `head` has them; the two first layers are one product, and nothing is copied."""
    first = [jnp.concatenate(pair, -1) for pair in zip(_both(net.reward[0]), _both(net.cost[0]), strict=True)]
    H = h.shape[-1]
    hidden = jax.nn.relu(h @ first[0][:H] + (s @ first[0][H:] + first[1]))
    reward, cost = jnp.split(hidden, 2, -1)
    return head(net.reward[1:], reward), head(net.cost[1:], cost)


def recurrence(
    net: RSSM, h: Any, s: Any, actions: Float[Array, "N H A"], noise: Float[Array, "H S"], *, min_sd: float, dtype: Any
) -> tuple[Any, Any]:
    """The h and s that each candidate comes to, each with a leading step."""
    stoch, deter = s.shape[-1], h.shape[-1]
    first = Belief(*(jnp.broadcast_to(part, (actions.shape[0], part.shape[-1])) for part in (h, s)))
    moved = actions.swapaxes(0, 1).astype(dtype) @ net.embed.w[stoch:] + net.embed.b  # [H N D]

    # what a new h is multiplied with, next step's gates and the prior, is one product
    after = Dense(*(jnp.concatenate(pair, -1) for pair in zip(_both(net.gru.h), _both(net.prior[0]), strict=True)))

    def step(carry: tuple[Belief, Any], at: Any) -> tuple[tuple[Belief, Any], Belief]:
        (belief, gates), (moved, eps) = carry, at
        x = jax.nn.relu(belief.s @ net.embed.w[:stoch] + moved)
        h = net.gru.mixed(net.gru.x(x), gates, belief.h)
        gates, hidden = jnp.split(after(h), [3 * deter], -1)
        prior = gaussian_of(net.prior, hidden, min_sd)
        following = Belief(h, (prior.mean + prior.sd * eps).astype(dtype))
        return (following, gates), following

    _, beliefs = jax.lax.scan(step, (first, net.gru.h(first.h)), (moved, noise), unroll=UNROLLED)
    return beliefs.h, beliefs.s


def _both(layer: Dense) -> tuple[Any, Any]:
    return layer.w, layer.b
