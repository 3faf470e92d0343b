"""What will be seen, earned and paid, given only images? A recurrent state-space model (PlaNet) with a cost head.

A belief is a deterministic part h, carried by a GRU, and a stochastic part s. `observe` filters images into beliefs,
`imagine` runs on without them, `loss` trains everything on sequences. A few small networks that predict the next s from (h, a)
disagree where the data are thin: their variance is the uncertainty u.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
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

from capax.checks import above_0, between, room, settle, whole, word
from capax.frames import Drawn
from capax.models.convolution import blocked, doubled, halved, halved_ready
from capax.models.layers import GRU, Conv, Dense, Members
from capax.types import Key

GREYS = 32
"""Levels that an image is reduced to (5 bits, as PlaNet does): finer ones are noise to be modelled."""


@dataclass(frozen=True)
class RSSMSettings:
    """Sizes and training of the model; the defaults are PlaNet's and the paper's where nothing else is said."""

    deter: int = 200
    """Size of h."""
    stoch: int = 30
    """Size of s."""
    hidden: int = 200
    """Units of a hidden layer."""
    depth: int = 32
    """Channels of the first convolution; later ones have twice as many each."""
    min_sd: float = 0.1
    """Least deviation of s."""
    free_nats: float = 3.0
    """Information about an image that costs nothing."""
    members: int = 5
    """Networks whose disagreement is the uncertainty."""
    multiplier: float = 1000.0
    """m in 1[logit + κ·m·u > 0]: with the floor u is some .01 where data are dense, so that κ = .1 is a logit there, and κ = 1
    are ten, as careful as the paper's. Without it u is 1e-4, and m is 10,000 (published code; its table says 100,000)."""
    floor: float = 0.1
    """Least deviation in u, in quadrature: a cost is mistaken for other reasons too than that the members disagree. 0, with
    multiplier 10,000: the paper's u."""
    batch: int = 16
    """Sequences drawn per gradient step (PlaNet: 50)."""
    chunk: int = 12
    """Steps of a sequence (PlaNet: 50)."""
    updates: int = 100
    """Gradient steps per episode."""
    emphasis: float = 100.0
    """How often the errors of reward and cost count in the loss, where an image counts once. 1: the paper."""
    learning_rate: float = 1e-3
    """Of Adam."""
    adam_epsilon: float = 1e-4
    """Of Adam."""
    gradient: float = 1000.0
    """Largest norm of a gradient."""
    products: str = "auto"
    """Matrix products while imagining: float32, bfloat16, or auto (bfloat16 on a GPU, float32 elsewhere)."""

    def __post_init__(self) -> None:
        settle(self, whole, "deter", "stoch", "hidden", "depth", "members", "batch", "chunk", "updates")
        settle(self, above_0(1e9), "min_sd", "learning_rate", "adam_epsilon", "gradient", "multiplier", "emphasis")
        settle(self, between(0.0, 1e9), "free_nats", "floor")
        settle(self, partial(word, choices=("auto", "float32", "bfloat16")), "products")
        room(vars(self), "batch", "chunk", "depth", each=4 * 31 * 31)  # of the first convolution


class RSSM(eqx.Module):
    """All parameters."""

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
    """What is known of the world's state."""

    h: Float[Array, "... H"]
    s: Float[Array, "... S"]

    @property
    def feature(self) -> Float[Array, "... H+S"]:
        return jnp.concatenate([self.h, self.s], -1)


class Gaussian(NamedTuple):
    """Independent normals."""

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
    """Uniform weights within 1/√in."""
    keys = iter(jr.split(key, 32))
    H, S, A, U, D = settings.deter, settings.stoch, action_dim, settings.hidden, settings.depth

    def dense(i: int, o: int) -> Dense:
        return Dense(_uniform(next(keys), (i, o), i), jnp.zeros(o))

    def conv(k: int, i: int, o: int, fan: int) -> Conv:
        return Conv(_uniform(next(keys), (k, k, i, o), fan), jnp.zeros(o))

    def stacked(i: int, o: int) -> Dense:
        return Dense(_uniform(next(keys), (settings.members, i, o), i), jnp.zeros((settings.members, 1, o)))

    widths = [channels, D, 2 * D, 4 * D, 8 * D]
    back = [32 * D, 4 * D, 2 * D, D, channels]
    return RSSM(
        encoder=tuple(conv(4, i, o, 16 * i) for i, o in pairwise(widths)),
        decoder_in=dense(H + S, 32 * D),
        decoder=tuple(conv(k, i, o, k * k * i // 4) for k, i, o in zip((5, 5, 6, 6), back[:-1], back[1:], strict=True)),
        embed=dense(S + A, H),
        gru=GRU(dense(H, 3 * H), dense(H, 3 * H)),
        prior=(dense(H, U), dense(U, 2 * S)),
        posterior=(dense(H + 32 * D, U), dense(U, 2 * S)),
        reward=(dense(H + S, U), dense(U, U), dense(U, 1)),
        cost=(dense(H + S, U), dense(U, U), dense(U, 1)),
        members=Members((stacked(H + A, S), stacked(S + A, S), stacked(S + A, S))),
    )


def _uniform(key: Key, shape: tuple[int, ...], fan: int) -> Float[Array, ...]:
    bound = 1.0 / np.sqrt(fan)
    return jr.uniform(key, shape, minval=-bound, maxval=bound)


def start(batch: tuple[int, ...], settings: RSSMSettings) -> Belief:
    """Before the first image of an episode."""
    return Belief(jnp.zeros((*batch, settings.deter)), jnp.zeros((*batch, settings.stoch)))


def quantised(image: UInt8[Array, "*B 64 64 C"]) -> Float[Array, "*B 64 64 C"]:
    """In 32 levels, centred: within [−½, ½)."""
    return jnp.floor(image.astype(jnp.float32) * (GREYS / 256.0)) / GREYS - 0.5


def between_levels(key: Key, shape: tuple[int, ...]) -> Float[Array, ...]:
    """Evenly drawn from (0, 1), in 256 steps: four of them from one random word, which take longer to draw than to use."""
    words = jr.bits(key, (-(-math.prod(shape) // 4),))
    grains = jax.lax.bitcast_convert_type(words, jnp.uint8).ravel()[: math.prod(shape)]
    return (grains.reshape(shape).astype(jnp.float32) + 0.5) / 256.0


def seeing(net: RSSM) -> RSSM:
    """The parts that `see` and `filtered` read, made once per fit: kernels are as `halved_ready` reads them."""
    net = eqx.tree_at(lambda n: (n.decoder_in, n.decoder, n.reward, n.cost, n.members), net, (None,) * 5)
    kernels = [jnp.moveaxis(blocked(layer.w), -1, 0) for layer in net.encoder]
    return eqx.tree_at(lambda n: [layer.w for layer in n.encoder], net, kernels)


def see(net: RSSM, x: Float[Array, "64 64 C"]) -> Float[Array, " E"]:
    """What `encode` makes of one image, from what `seeing` made."""
    return _encoded(net, x[None], halved_ready)[0]


def encode(net: RSSM, x: Float[Array, "N 64 64 C"]) -> Float[Array, "N E"]:
    """Four convolutions of stride 2: 64, 31, 14, 6, 2."""
    return _encoded(net, x, halved)


def _encoded(net: RSSM, x: Float[Array, "N 64 64 C"], convolve: Any) -> Float[Array, "N E"]:
    for layer in net.encoder:
        x = jax.nn.relu(convolve(x, layer.w) + layer.b)
    return x.reshape(x.shape[0], -1)


def decode(net: RSSM, feature: Float[Array, "N H+S"]) -> Float[Array, "N 64 64 C"]:
    """Four transposed convolutions of stride 2: 1, 5, 13, 30, 64."""
    first, *later = net.decoder
    k, _, i, o = first.w.shape
    x = net.decoder_in(feature) @ first.w.transpose(2, 0, 1, 3).reshape(i, -1)  # of a single point, a product
    x = x.reshape(-1, k, k, o) + first.b
    for layer in later:
        x = doubled(jax.nn.relu(x), layer.w) + layer.b
    return x


def head(layers: tuple[Dense, ...], feature: Float[Array, "... H+S"]) -> Float[Array, ...]:
    """A number for each belief."""
    *hidden, last = layers
    for layer in hidden:
        feature = jax.nn.relu(layer(feature))
    return last(feature)[..., 0]


def forward(
    net: RSSM, belief: Belief, action: Float[Array, "... A"], min_sd: float
) -> tuple[Float[Array, "... H"], Gaussian]:
    """The next h, and what s may be before the image is seen."""
    x = jax.nn.relu(net.embed(jnp.concatenate([belief.s, action], -1)))
    h = net.gru(x, belief.h)
    return h, gaussian(net.prior, h, min_sd)


def gaussian(layers: tuple[Dense, Dense], x: Float[Array, "... X"], min_sd: float) -> Gaussian:
    return gaussian_of(layers, layers[0](x), min_sd)


def gaussian_of(layers: tuple[Dense, Dense], hidden: Float[Array, "... U"], min_sd: float) -> Gaussian:
    """The same, from what the first layer gives."""
    mean, raw = jnp.split(layers[1](jax.nn.relu(hidden)), 2, -1)
    return Gaussian(mean, jax.nn.softplus(raw) + min_sd)


def filtered(
    net: RSSM,
    belief: Belief,
    action: Float[Array, "... A"],
    embedded: Float[Array, "... E"],
    noise: Float[Array, "... S"],
    *,
    min_sd: float,
) -> tuple[Belief, Gaussian, Gaussian]:
    """The belief after an action and the image that came of it, with the prior and the posterior of s."""
    h, prior = forward(net, belief, action, min_sd)
    posterior = gaussian(net.posterior, jnp.concatenate([h, embedded], -1), min_sd)
    return Belief(h, posterior.mean + posterior.sd * noise), prior, posterior


def observe(
    net: RSSM,
    belief: Belief,
    actions: Float[Array, "T B A"],
    embedded: Float[Array, "T B E"],
    noise: Float[Array, "T B S"],
    min_sd: float,
) -> tuple[Belief, Gaussian, Gaussian]:
    """`filtered` over T steps; everything comes back with a leading T.

    Only what needs the last belief goes step by step: the products of actions and images are taken at once.
    """
    H, S = (part.shape[-1] for part in belief)
    moved = actions @ net.embed.w[S:] + net.embed.b
    told = embedded @ net.posterior[0].w[H:] + net.posterior[0].b

    def step(belief: Belief, at: Any) -> tuple[Belief, tuple[Belief, Gaussian]]:
        moved, told, noise = at
        h = net.gru(jax.nn.relu(belief.s @ net.embed.w[:S] + moved), belief.h)
        posterior = gaussian_of(net.posterior, h @ net.posterior[0].w[:H] + told, min_sd)
        belief = Belief(h, posterior.mean + posterior.sd * noise)
        return belief, (belief, posterior)

    _, (beliefs, posterior) = jax.lax.scan(step, belief, (moved, told, noise))
    return beliefs, gaussian(net.prior, beliefs.h, min_sd), posterior


def disagreement(
    members: Members, h: Float[Array, "M H"], action: Float[Array, "M A"]
) -> tuple[Float[Array, "E M S"], Float[Array, " M"]]:
    """What each member expects of the next s, and their variance (n − 1), in the mean over its dimensions: u(h, a)."""
    x = h
    for number, layer in enumerate(members.layers):
        X = x.shape[-1]
        x = x @ layer.w[:, :X] + (action @ layer.w[:, X:] + layer.b)  # [E M S]
        if number < len(members.layers) - 1:
            x = jax.nn.relu(x)
    ddof = 1 if x.shape[0] > 1 else 0
    return x, x.var(0, ddof=ddof).mean(-1)


def uncertainty(disagreed: Float[Array, ...], settings: RSSMSettings) -> Float[Array, ...]:
    """What κ multiplies:  m · (u + floor²)."""
    return settings.multiplier * (disagreed + settings.floor**2)


def kl(p: Gaussian, q: Gaussian) -> Float[Array, ...]:
    """KL(p ‖ q), summed over the dimensions:  Σ log(σ_q/σ_p) + (σ_p² + (μ_p − μ_q)²)/(2σ_q²) − ½."""
    ratio = jnp.square(p.sd / q.sd)
    return 0.5 * (ratio + jnp.square((p.mean - q.mean) / q.sd) - 1.0 - jnp.log(ratio)).sum(-1)


def followed(net: RSSM, data: Drawn, key: Key, settings: RSSMSettings) -> tuple[Any, Any, Belief, Gaussian, Gaussian]:
    """The images of some pieces, the actions before them `[L+1, B, A]`, and what is believed after each."""
    B, L = data.reward.shape
    k_noise, k_grey = jr.split(key)
    image = quantised(jnp.asarray(data.image))
    x = image + between_levels(k_grey, image.shape) / GREYS
    embedded = encode(net, x.reshape(B * (L + 1), *x.shape[2:])).reshape(B, L + 1, -1).swapaxes(0, 1)
    actions = jnp.pad(data.action, ((0, 0), (1, 0), (0, 0))).swapaxes(0, 1)  # [L+1 B A], nothing before the first image
    noise = jr.normal(k_noise, (L + 1, B, settings.stoch))
    belief, prior, posterior = observe(net, start((B,), settings), actions, embedded, noise, settings.min_sd)
    return x, actions, belief, prior, posterior


def loss(
    net: RSSM,
    data: Drawn,
    binary: Bool[Array, ""],
    key: Key,
    settings: RSSMSettings,
) -> tuple[Float[Array, ""], Losses]:
    """Images, rewards and costs as they are decoded from the posterior, and what images tell beyond the prior.

    Squared errors are summed over pixels. The first image of a piece has no action before it: the belief begins at nothing
    there, so it is decoded but its KL is not counted.
    """
    B, L = data.reward.shape
    x, actions, belief, prior, posterior = followed(net, data, key, settings)
    feature = belief.feature  # [L+1 B H+S]
    seen = decode(net, feature.reshape((L + 1) * B, -1)).reshape(L + 1, B, *x.shape[2:])
    pixels = jnp.square(seen - x.swapaxes(0, 1)).sum((2, 3, 4)).mean()
    reward = jnp.square(head(net.reward, feature[1:]) - data.reward.T).mean()
    logit = head(net.cost, feature[1:])
    cost = jnp.where(binary, jax.nn.softplus(logit) - data.cost.T * logit, jnp.square(logit - data.cost.T)).mean()
    told = jnp.maximum(kl(Gaussian(*(p[1:] for p in posterior)), Gaussian(*(p[1:] for p in prior))), settings.free_nats)
    h, s = (jax.lax.stop_gradient(part) for part in belief)
    expected, _ = disagreement(net.members, h[:-1].reshape(L * B, -1), actions[1:].reshape(L * B, -1))
    apart = jnp.square(expected - s[1:].reshape(L * B, -1)).mean((1, 2)).sum()
    parts = Losses(pixels, reward, cost, told.mean(), apart)
    return pixels + settings.emphasis * (reward + cost) + parts.kl + apart, parts


def optimiser(settings: RSSMSettings) -> optax.GradientTransformation:
    """Adam behind a clipped gradient."""
    return optax.chain(
        optax.clip_by_global_norm(settings.gradient), optax.adam(settings.learning_rate, eps=settings.adam_epsilon)
    )


@partial(jax.jit, static_argnames="settings")
def update(
    net: RSSM, memory: Any, data: Drawn, binary: Bool[Array, ""], key: Key, settings: RSSMSettings
) -> tuple[RSSM, Any, Losses]:
    """One gradient step."""
    grads, parts = jax.grad(loss, has_aux=True)(net, data, binary, key, settings)
    steps, memory = optimiser(settings).update(grads, memory)
    return optax.apply_updates(net, steps), memory, parts
