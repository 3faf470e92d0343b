"""Rollouts of an image model: imagined beliefs, rewards, costs and uncertainty of candidates.

Only the recurrence runs step by step. The heads and the members see all steps at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax import Array
from jaxtyping import Float

from capax.core.types import Imagined, Key
from capax.models.layers import Dense, product_dtype
from capax.models.rssm import RSSM, Belief, RSSMSettings, disagreement, gaussian_from_hidden, head, uncertainty

UNROLL = 12
"""Steps that are compiled as one piece, for fewer launches on a GPU. 12 is the paper's horizon."""


def prepare_rollout(net: RSSM, settings: RSSMSettings) -> tuple[RSSM | None, Any]:
    """The parameters that rollouts read, prepared once per fit.

    All parts but the members in the type of the products, or the packed parameters of the fused kernels.
    """
    kernels = fused_kernels(settings, net.embed.w.shape[0] - settings.stoch)
    if kernels is not None:
        return None, kernels.pack(net)
    dtype = product_dtype(settings.products)
    net = eqx.tree_at(lambda n: (n.encoder, n.posterior, n.decoder_in, n.decoder), net, (None,) * 4)
    return eqx.tree_at(lambda n: n.members, jax.tree.map(lambda leaf: leaf.astype(dtype), net), net.members), None


def fused_kernels(settings: RSSMSettings, action_dim: int) -> Any:
    """`models.kernels.rssm_kernels` where rollouts use it, else None.

    It is used on GPUs that it was measured on, unless the model is too large for it or `unsupported_reason` says why not.
    """
    if jax.default_backend() != "gpu" or unsupported_reason(settings):
        return None
    from capax.models.kernels import rssm_kernels  # Pallas is slow to import

    measured = getattr(jax.devices()[0], "compute_capability", "") in rssm_kernels.MEASURED_CAPABILITIES
    fits = rssm_kernels.fits(settings.deter, settings.hidden, settings.stoch, action_dim, settings.members)
    return rssm_kernels if measured and fits else None


def unsupported_reason(settings: RSSMSettings) -> str:
    """The reason why the fused kernels cannot imagine in this way. Empty if they can."""
    if (dtype := product_dtype(settings.products)) != "bfloat16":
        return f"they compute bfloat16 products, where products is {dtype}"
    if settings.floor == 0.0:
        return "their u is too coarse without a floor"
    if settings.noise != "shared":
        return f"they share noise between candidates, where noise is {settings.noise}"
    return (
        "" if settings.one_step == "now" else f"they read the h before an action, where one_step is {settings.one_step}"
    )


def rollout(
    params: tuple[RSSM | None, Any], start: Belief, actions: Float[Array, "N H A"], key: Key, *, settings: RSSMSettings
) -> Imagined:
    """Imagine each candidate from one belief, or each from its own. `params` come from `prepare_rollout`."""
    N, H, _ = actions.shape
    each = noise_of_each(settings, H)
    eps = noise(key, H, settings) if each is None else each(key, N)
    return imagine(params, prepare_start(params, start, N, settings), actions, eps, settings=settings)


def noise(key: Key, horizon: int, settings: RSSMSettings) -> Float[Array, "H S"]:
    """The noise that all candidates of a rollout share. It is the same for every type of products."""
    return jr.normal(key, (horizon, settings.stoch)).astype(product_dtype(settings.products))


def noise_of_each(settings: RSSMSettings, horizon: int) -> Callable[[Key, int], Float[Array, "N H S"]] | None:
    """A function of a key and a number of candidates that draws noise for each of them; None if they share it."""
    if settings.noise == "shared":
        return None
    return lambda key, count: jax.vmap(lambda one: noise(one, horizon, settings))(jr.split(key, count))


def draw_noise(key: Key, horizon: int, action_dim: int, settings: RSSMSettings) -> Any:
    """The shared noise in the form that rollouts read. It can be drawn for many rollouts at once.

    Where each candidate has its own, the key, from which `noise_of_each` draws.
    """
    if settings.noise == "own":
        return key
    kernels, eps = fused_kernels(settings, action_dim), noise(key, horizon, settings)
    return eps if kernels is None else kernels.pad_noise(eps)


def prepare_start(params: tuple[RSSM | None, Any], start: Belief, candidates: int, settings: RSSMSettings) -> Any:
    """The start beliefs of up to `candidates` candidates, in the form that rollouts read.

    They are the same in all rounds of a plan.
    """
    dtype, (net_cast, packed) = product_dtype(settings.products), params
    first = Belief(*(part.astype(dtype) for part in start))
    if net_cast is not None:
        return first
    from capax.models.kernels import rssm_kernels

    return rssm_kernels.prepare_start(packed, *first, candidates)


def imagine(
    params: tuple[RSSM | None, Any],
    start: Any,
    actions: Float[Array, "N H A"],
    noise: Float[Array, "*N H S"],
    *,
    settings: RSSMSettings,
) -> Imagined:
    """Imagine each candidate from the starts of `prepare_start`, with noise from `draw_noise` or `noise_of_each`."""
    net_cast, packed = params
    N, H, A = actions.shape
    dtype = product_dtype(settings.products)
    if net_cast is not None:
        h, s = recurrence(net_cast, start.h, start.s, actions, noise, min_sd=settings.min_sd, dtype=dtype)  # [H N ·]
        reward, cost = (part.T.astype(jnp.float32) for part in heads(net_cast, h, s))
        if settings.one_step == "now":
            h = jnp.concatenate([jnp.broadcast_to(start.h, (1, *h.shape[1:])), h[:-1]])
        moves = actions.swapaxes(0, 1).astype(dtype)
        rows = (part.reshape(H * N, -1).astype(jnp.float32) for part in (h, moves))
        u = disagreement(net_cast.members, *rows)[1].reshape(H, N).T
    else:
        kernels, sizes = (
            fused_kernels(settings, A),
            dict(min_sd=settings.min_sd, members=settings.members, stoch=settings.stoch),
        )
        reward, cost, u = kernels.rollout(packed, start, actions, noise, **sizes)
    u = uncertainty(u, settings)
    return Imagined(*(part[:, None, :] for part in (reward, cost, u, jnp.ones_like(u))))


def heads(net: RSSM, h: Float[Array, "... H"], s: Float[Array, "... S"]) -> tuple[Any, Any]:
    """Reward and cost of beliefs, as `head` computes them. The two first layers are one product."""
    first = [
        jnp.concatenate(pair, -1)
        for pair in zip(_weight_and_bias(net.reward[0]), _weight_and_bias(net.cost[0]), strict=True)
    ]
    H = h.shape[-1]
    hidden = jax.nn.relu(h @ first[0][:H] + (s @ first[0][H:] + first[1]))
    reward, cost = jnp.split(hidden, 2, -1)
    return head(net.reward[1:], reward), head(net.cost[1:], cost)


def recurrence(
    net: RSSM,
    h: Any,
    s: Any,
    actions: Float[Array, "N H A"],
    noise: Float[Array, "*N H S"],
    *,
    min_sd: float,
    dtype: Any,
) -> tuple[Any, Any]:
    """The h and s that each candidate leads to, with a leading step dimension."""
    noise = jnp.moveaxis(noise, -2, 0)  # [H S] or [H N S]
    stoch, deter = s.shape[-1], h.shape[-1]
    first = Belief(*(jnp.broadcast_to(part, (actions.shape[0], part.shape[-1])) for part in (h, s)))
    action_part = actions.swapaxes(0, 1).astype(dtype) @ net.embed.w[stoch:] + net.embed.b  # [H N D]

    # the two products with a new h, for the next gates and for the prior, are one
    from_h = Dense(
        *(
            jnp.concatenate(pair, -1)
            for pair in zip(_weight_and_bias(net.gru.h), _weight_and_bias(net.prior[0]), strict=True)
        )
    )

    def step(carry: tuple[Belief, Any], inputs: Any) -> tuple[tuple[Belief, Any], Belief]:
        (belief, gates), (action_part, eps) = carry, inputs
        x = jax.nn.relu(belief.s @ net.embed.w[:stoch] + action_part)
        h = net.gru.combine(net.gru.x(x), gates, belief.h)
        gates, hidden = jnp.split(from_h(h), [3 * deter], -1)
        prior = gaussian_from_hidden(net.prior, hidden, min_sd)
        next_belief = Belief(h, (prior.mean + prior.sd * eps).astype(dtype))
        return (next_belief, gates), next_belief

    _, beliefs = jax.lax.scan(step, (first, net.gru.h(first.h)), (action_part, noise), unroll=UNROLL)
    return beliefs.h, beliefs.s


def _weight_and_bias(layer: Dense) -> tuple[Any, Any]:
    return layer.w, layer.b
