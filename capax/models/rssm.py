"""Recurrent state-space model (PlaNet) with a cost head: predicts rewards and costs from images alone.

A belief is a deterministic part h, carried by a GRU, and a stochastic part s. `observe` filters images into beliefs,
`rssm_rollout` imagines without images, `loss` trains all parts on sequences. A few small networks predict the next s
from (h, a) and disagree where data are rare: their variance is the uncertainty u.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jax import Array
from jaxtyping import Bool, Float, UInt8

from capax.core.types import Key
from capax.data.image_episodes import ImageBatch
from capax.models.convolution import block_kernel, downsample, downsample_blocked, upsample
from capax.models.layers import GRU, Conv, Dense, Members
from capax.models.rssm_settings import RSSMSettings as RSSMSettings

GREY_LEVELS = 32
"""Levels that an image is reduced to (5 bits, as in PlaNet). Finer levels are noise, not worth learning."""


class RSSM(eqx.Module):
    """All parameters of the model."""

    encoder: tuple[Conv, ...]
    decoder_in: Dense
    decoder: tuple[Conv, ...]
    embed: Dense
    gru: GRU
    prior: tuple[Dense, Dense]
    posterior: tuple[Dense, Dense]
    reward: tuple[Dense, ...]
    cost: tuple[Dense, ...]
    members: Members


class Belief(NamedTuple):
    """The model's estimate of the world's state."""

    h: Float[Array, "... H"]
    s: Float[Array, "... S"]

    @property
    def feature(self) -> Float[Array, "... H+S"]:
        """h and s in one array."""
        return jnp.concatenate([self.h, self.s], -1)


class Gaussian(NamedTuple):
    """Independent normal distributions."""

    mean: Float[Array, "... S"]
    sd: Float[Array, "... S"]


class Losses(NamedTuple):
    """Parts of the loss, per step."""

    image: Float[Array, ""]
    reward: Float[Array, ""]
    cost: Float[Array, ""]
    kl: Float[Array, ""]
    members: Float[Array, ""]


def init(key: Key, channels: int, action_dim: int, settings: RSSMSettings) -> RSSM:
    """Weights drawn uniformly from ±1/√in, zero biases."""
    keys = iter(jr.split(key, 32))
    H, S, A, U, D = settings.deter, settings.stoch, action_dim, settings.hidden, settings.depth

    def dense(i: int, o: int) -> Dense:
        return Dense(_uniform(next(keys), (i, o), i), jnp.zeros(o))

    def conv(k: int, i: int, o: int, fan_in: int) -> Conv:
        return Conv(_uniform(next(keys), (k, k, i, o), fan_in), jnp.zeros(o))

    def stacked(i: int, o: int) -> Dense:
        return Dense(_uniform(next(keys), (settings.members, i, o), i), jnp.zeros((settings.members, 1, o)))

    encoder_widths = [channels, D, 2 * D, 4 * D, 8 * D]
    decoder_widths = [32 * D, 4 * D, 2 * D, D, channels]
    return RSSM(
        encoder=tuple(conv(4, i, o, 16 * i) for i, o in pairwise(encoder_widths)),
        decoder_in=dense(H + S, 32 * D),
        decoder=tuple(
            conv(k, i, o, k * k * i // 4)
            for k, i, o in zip((5, 5, 6, 6), decoder_widths[:-1], decoder_widths[1:], strict=True)
        ),
        embed=dense(S + A, H),
        gru=GRU(dense(H, 3 * H), dense(H, 3 * H)),
        prior=(dense(H, U), dense(U, 2 * S)),
        posterior=(dense(H + 32 * D, U), dense(U, 2 * S)),
        reward=(dense(H + S, U), dense(U, U), dense(U, 1)),
        cost=(dense(H + S, U), dense(U, U), dense(U, 1)),
        members=Members((stacked(H + A, S), stacked(S + A, S), stacked(S + A, S))),
    )


def _uniform(key: Key, shape: tuple[int, ...], fan_in: int) -> Float[Array, ...]:
    bound = 1.0 / np.sqrt(fan_in)
    return jr.uniform(key, shape, minval=-bound, maxval=bound)


def initial_belief(batch: tuple[int, ...], settings: RSSMSettings) -> Belief:
    """The belief before the first image of an episode."""
    return Belief(jnp.zeros((*batch, settings.deter)), jnp.zeros((*batch, settings.stoch)))


def quantise(image: UInt8[Array, "*B 64 64 C"]) -> Float[Array, "*B 64 64 C"]:
    """An image in 32 levels, centred: within [−½, ½)."""
    return jnp.floor(image.astype(jnp.float32) * (GREY_LEVELS / 256.0)) / GREY_LEVELS - 0.5


def dequantisation_noise(key: Key, shape: tuple[int, ...]) -> Float[Array, ...]:
    """Uniform noise in (0, 1), in 256 steps.

    One random word gives four values, since drawing words takes longer than using them.
    """
    words = jr.bits(key, (-(-math.prod(shape) // 4),))
    values = jax.lax.bitcast_convert_type(words, jnp.uint8).ravel()[: math.prod(shape)]
    return (values.reshape(shape).astype(jnp.float32) + 0.5) / 256.0


def prepare_filter(net: RSSM) -> RSSM:
    """The parameters that `encode_image` and `filter_step` read, prepared once per fit.

    Kernels are laid out as `downsample_blocked` reads them.
    """
    net = eqx.tree_at(lambda n: (n.decoder_in, n.decoder, n.reward, n.cost, n.members), net, (None,) * 5)
    blocked_kernels = [jnp.moveaxis(block_kernel(layer.w), -1, 0) for layer in net.encoder]
    return eqx.tree_at(lambda n: [layer.w for layer in n.encoder], net, blocked_kernels)


def encode_image(net: RSSM, x: Float[Array, "64 64 C"]) -> Float[Array, " E"]:
    """`encode` of one image, with the parameters of `prepare_filter`."""
    return _encode(net, x[None], downsample_blocked)[0]


def encode(net: RSSM, x: Float[Array, "N 64 64 C"]) -> Float[Array, "N E"]:
    """Features of images. Four convolutions of stride 2: 64, 31, 14, 6, 2 pixels."""
    return _encode(net, x, downsample)


def _encode(net: RSSM, x: Float[Array, "N 64 64 C"], convolve: Any) -> Float[Array, "N E"]:
    for layer in net.encoder:
        x = jax.nn.relu(convolve(x, layer.w) + layer.b)
    return x.reshape(x.shape[0], -1)


def decode(net: RSSM, feature: Float[Array, "N H+S"]) -> Float[Array, "N 64 64 C"]:
    """Images from beliefs. Four transposed convolutions of stride 2: 1, 5, 13, 30, 64 pixels."""
    first, *others = net.decoder
    k, _, i, o = first.w.shape
    x = net.decoder_in(feature) @ first.w.transpose(2, 0, 1, 3).reshape(i, -1)  # one pixel: a matrix product
    x = x.reshape(-1, k, k, o) + first.b
    for layer in others:
        x = upsample(jax.nn.relu(x), layer.w) + layer.b
    return x


def head(layers: tuple[Dense, ...], feature: Float[Array, "... H+S"]) -> Float[Array, ...]:
    """One number per belief: the reward, or the cost or its logit."""
    *hidden, last = layers
    for layer in hidden:
        feature = jax.nn.relu(layer(feature))
    return last(feature)[..., 0]


def prior_step(
    net: RSSM, belief: Belief, action: Float[Array, "... A"], min_sd: float
) -> tuple[Float[Array, "... H"], Gaussian]:
    """The next h, and the distribution of s before its image."""
    x = jax.nn.relu(net.embed(jnp.concatenate([belief.s, action], -1)))
    h = net.gru(x, belief.h)
    return h, gaussian(net.prior, h, min_sd)


def gaussian(layers: tuple[Dense, Dense], x: Float[Array, "... X"], min_sd: float) -> Gaussian:
    """Mean and standard deviation of s from a network of two layers."""
    return gaussian_from_hidden(layers, layers[0](x), min_sd)


def gaussian_from_hidden(layers: tuple[Dense, Dense], hidden: Float[Array, "... U"], min_sd: float) -> Gaussian:
    """The same, from the output of the first layer."""
    mean, raw = jnp.split(layers[1](jax.nn.relu(hidden)), 2, -1)
    return Gaussian(mean, jax.nn.softplus(raw) + min_sd)


def filter_step(
    net: RSSM,
    belief: Belief,
    action: Float[Array, "... A"],
    embedded: Float[Array, "... E"],
    noise: Float[Array, "... S"],
    *,
    min_sd: float,
) -> tuple[Belief, Gaussian, Gaussian]:
    """The belief after an action and the image that follows it, with the prior and the posterior of s."""
    h, prior = prior_step(net, belief, action, min_sd)
    posterior = gaussian(net.posterior, jnp.concatenate([h, embedded], -1), min_sd)
    return Belief(h, posterior.mean + posterior.sd * noise), prior, posterior


def observe(
    net: RSSM,
    belief: Belief,
    actions: Float[Array, "T B A"],
    embedded: Float[Array, "T B E"],
    noise: Float[Array, "T B S"],
    min_sd: float,
    last: Bool[Array, "T B"] | None = None,
) -> tuple[Belief, Gaussian, Gaussian]:
    """`filter_step` over T steps. Every result has a leading T. Over the `last` step of an episode s is not carried.

    Only what depends on the last belief runs step by step. The products with actions and images are computed at once.
    """
    H, S = (part.shape[-1] for part in belief)
    action_part = actions @ net.embed.w[S:] + net.embed.b
    image_part = embedded @ net.posterior[0].w[H:] + net.posterior[0].b

    def step(belief: Belief, parts: Any) -> tuple[Belief, tuple[Belief, Gaussian]]:
        action_part, image_part, noise, last = parts
        if last is not None:
            belief = Belief(belief.h, jnp.where(last[:, None], 0.0, belief.s))
        h = net.gru(jax.nn.relu(belief.s @ net.embed.w[:S] + action_part), belief.h)
        posterior = gaussian_from_hidden(net.posterior, h @ net.posterior[0].w[:H] + image_part, min_sd)
        belief = Belief(h, posterior.mean + posterior.sd * noise)
        return belief, (belief, posterior)

    _, (beliefs, posterior) = jax.lax.scan(step, belief, (action_part, image_part, noise, last))
    return beliefs, gaussian(net.prior, beliefs.h, min_sd), posterior


def disagreement(
    members: Members, h: Float[Array, "M H"], action: Float[Array, "M A"]
) -> tuple[Float[Array, "E M S"], Float[Array, " M"]]:
    """The members' predictions of the next s, and their variance (n − 1) averaged over its dimensions: u(h, a)."""
    predicted = h
    for number, layer in enumerate(members.layers):
        width = predicted.shape[-1]
        predicted = predicted @ layer.w[:, :width] + (action @ layer.w[:, width:] + layer.b)  # [E M S]
        if number < len(members.layers) - 1:
            predicted = jax.nn.relu(predicted)
    ddof = 1 if predicted.shape[0] > 1 else 0
    return predicted, predicted.var(0, ddof=ddof).mean(-1)


def member_errors(
    predicted: Float[Array, "E M S"], s: Float[Array, "M S"], weight: Float[Array, "B E"] | None
) -> Float[Array, ""]:
    """Mean squared error of each member, summed over members. A sequence counts as often as the member's bootstrap has it."""
    squared = jnp.square(predicted - s)
    if weight is None:
        return squared.mean((1, 2)).sum()
    errors = squared.mean(-1).reshape(squared.shape[0], -1, weight.shape[0])  # [E L B]
    return (errors * weight.T[:, None]).mean((1, 2)).sum()


def uncertainty(variance: Float[Array, ...], settings: RSSMSettings) -> Float[Array, ...]:
    """The uncertainty that κ multiplies:  m · (u + floor²)."""
    return settings.multiplier * (variance + settings.floor**2)


def kl(p: Gaussian, q: Gaussian) -> Float[Array, ...]:
    """KL(p ‖ q), summed over the dimensions:  Σ log(σ_q/σ_p) + (σ_p² + (μ_p − μ_q)²)/(2σ_q²) − ½."""
    ratio = jnp.square(p.sd / q.sd)
    return 0.5 * (ratio + jnp.square((p.mean - q.mean) / q.sd) - 1.0 - jnp.log(ratio)).sum(-1)


def infer_beliefs(
    net: RSSM, data: ImageBatch, key: Key, settings: RSSMSettings
) -> tuple[Any, Any, Belief, Gaussian, Gaussian]:
    """Beliefs after each image of some pieces of episodes.

    Returns the images, the actions before them `[L+1, B, A]`, the beliefs, and the prior and posterior of s.
    """
    B, L = data.reward.shape
    k_noise, k_grey = jr.split(key)
    image = quantise(jnp.asarray(data.image))
    x = image + dequantisation_noise(k_grey, image.shape) / GREY_LEVELS
    first = initial_belief((B,), settings)
    noise = jr.normal(k_noise, (L + 1, B, settings.stoch))
    if settings.pieces == "anywhere":
        embedded = encode(net, x[:, 1:].reshape(B * L, *x.shape[2:])).reshape(B, L, -1).swapaxes(0, 1)
        actions, last = jnp.asarray(data.action).swapaxes(0, 1), None if data.last is None else jnp.asarray(data.last).T
        found = actions, *observe(net, first, actions, embedded, noise[1:], settings.min_sd, last)
        standard = Gaussian(first.s, jnp.ones_like(first.s))
        unused = jnp.zeros_like(actions[0]), first, standard, standard  # of the image that is not used
        return x, *jax.tree.map(lambda one, part: jnp.concatenate([one[None], part]), unused, found)
    embedded = encode(net, x.reshape(B * (L + 1), *x.shape[2:])).reshape(B, L + 1, -1).swapaxes(0, 1)
    actions = jnp.pad(data.action, ((0, 0), (1, 0), (0, 0))).swapaxes(0, 1)  # [L+1 B A], zeros before the first image
    belief, prior, posterior = observe(net, first, actions, embedded, noise, settings.min_sd)
    return x, actions, belief, prior, posterior


def loss(
    net: RSSM,
    data: ImageBatch,
    binary: Bool[Array, ""],
    key: Key,
    settings: RSSMSettings,
) -> tuple[Float[Array, ""], Losses]:
    """Errors of decoded images, rewards and costs, the KL of posterior and prior, and the members' errors.

    Squared errors are summed over pixels. The first image of a piece has no action before it: the belief there starts
    from zeros, so the image is decoded but its KL does not count. Where pieces lie anywhere, it is not used at all.
    """
    B, L = data.reward.shape
    x, actions, belief, prior, posterior = infer_beliefs(net, data, key, settings)
    feature, unused = belief.feature, int(settings.pieces == "anywhere")  # [L+1 B H+S]
    shown = x.swapaxes(0, 1)[unused:]
    decoded = decode(net, feature[unused:].reshape(len(shown) * B, -1)).reshape(shown.shape)
    pixels = jnp.square(decoded - shown).sum((2, 3, 4)).mean()
    reward = jnp.square(head(net.reward, feature[1:]) - data.reward.T).mean()
    logit = head(net.cost, feature[1:])
    cost = jnp.where(binary, jax.nn.softplus(logit) - data.cost.T * logit, jnp.square(logit - data.cost.T)).mean()
    kl_loss = jnp.maximum(
        kl(Gaussian(*(p[1:] for p in posterior)), Gaussian(*(p[1:] for p in prior))), settings.free_nats
    )
    h, s = (jax.lax.stop_gradient(part) for part in belief)
    before = h[1:] if settings.one_step == "next" else h[:-1]
    predicted, _ = disagreement(net.members, before.reshape(L * B, -1), actions[1:].reshape(L * B, -1))
    member_loss = member_errors(predicted, s[1:].reshape(L * B, -1), data.weight)
    parts = Losses(pixels, reward, cost, kl_loss.mean(), member_loss)
    return pixels + settings.signal_weight * (reward + cost) + parts.kl + member_loss, parts


def optimiser(settings: RSSMSettings) -> optax.GradientTransformation:
    """Adam with gradient clipping."""
    return optax.chain(
        optax.clip_by_global_norm(settings.gradient), optax.adam(settings.learning_rate, eps=settings.adam_epsilon)
    )


@partial(jax.jit, static_argnames="settings")
def update(
    net: RSSM, optimiser_state: Any, data: ImageBatch, binary: Bool[Array, ""], key: Key, settings: RSSMSettings
) -> tuple[RSSM, Any, Losses]:
    """One gradient step."""
    grads, parts = jax.grad(loss, has_aux=True)(net, data, binary, key, settings)
    steps, optimiser_state = optimiser(settings).update(grads, optimiser_state)
    return optax.apply_updates(net, steps), optimiser_state, parts
