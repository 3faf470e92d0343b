"""What will happen, and how sure is that? A probabilistic ensemble for states, rewards, costs and endings.

E networks see different resamplings of the same transitions. Each predicts a Gaussian over the change of the state, the
reward and the cost (a logit where the cost is binary) and the logit of the episode's end. Inputs and targets are scaled by
the data's own deviations, so nothing depends on the units that an environment counts in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jax import Array
from jaxtyping import Bool, Float, Int

from capax.buffer import Buffer
from capax.checks import above_0, between, flag, room, settle, whole, word
from capax.cores import everywhere, shared_out
from capax.errors import InputError
from capax.lanes import shared
from capax.models.layers import type_of
from capax.penalty import spread
from capax.planning.ccem import Imagined, Rollout
from capax.types import Key


@dataclass(frozen=True)
class EnsembleSettings:
    """Sizes and training of the ensemble; the defaults are those of the paper and its published code."""

    members: int = 5
    """E: networks."""
    hidden: int = 200
    """Units of a hidden layer."""
    layers: int = 4
    """Hidden layers."""
    particles: int = 20
    """P: imagined states per candidate, shared out evenly among the members (TS∞)."""
    exact: bool = False
    """Ask every member about every particle: u is then the maximum at the same (s, a), for E times the work."""
    floor: float = 0.05
    """Least deviation that counts in u, as a share of what the data's own changes deviate by."""
    products: str = "auto"
    """Matrix products while imagining: float32, bfloat16, or auto (bfloat16 on a GPU, float32 elsewhere)."""
    rollout: str = "auto"
    """Imagining on a GPU: plain, fused (one kernel for all steps), or auto (fused where it can be)."""
    learning_rate: float = 1e-3
    """Of Adam."""
    batch: int = 256
    """Transitions per member and gradient step."""
    epochs: float = 5.0
    """Passes over the buffer in a fit."""
    least_updates: int = 2000
    """Gradient steps of a fit at least, however small the buffer; 5 passes over the first 1000 steps would be 20."""
    most_updates: int = 1_000_000
    """Gradient steps of a fit at most."""
    weight_decay: float = 2.5e-5
    """Of the first layer; deeper ones have twice, three times, … as much, the last one four times (published code)."""

    def __post_init__(self) -> None:
        settle(self, whole, "members", "hidden", "particles", "batch", "most_updates")
        settle(self, partial(whole, most=1000), "layers")
        settle(self, partial(whole, least=0), "least_updates")
        settle(self, above_0(1e9), "learning_rate", "epochs")
        settle(self, between(0.0, 1e9), "floor", "weight_decay")
        settle(self, flag, "exact")
        settle(self, partial(word, choices=("auto", "float32", "bfloat16")), "products")
        settle(self, partial(word, choices=("auto", "plain", "fused")), "rollout")
        if self.rollout == "fused" and self.exact:
            raise InputError("rollout is fused, which asks each member about its own particles: leave exact out.")
        if self.particles % self.members:
            raise InputError(f"particles is {self.particles}: give a multiple of the {self.members} members.")
        if self.least_updates > self.most_updates:
            raise InputError(
                f"least_updates is {self.least_updates}, more than most_updates, {self.most_updates}: give fewer."
            )
        room(vars(self), "members", "batch", "hidden")
        if self.layers > 1:
            room(vars(self), "members", "layers", "hidden", "hidden")

    def decays(self) -> list[float]:
        """Weight decay of each layer: 1, 2, 3, 3, …, 4 times the first one's."""
        inner = [min(i + 1, 3) for i in range(self.layers)]
        return [self.weight_decay * factor for factor in [*inner, 4]]


JUDGED = 1000
"""Steps that are looked at once more after a fit, where costs are flags."""
UNROLL = 5
"""Imagined steps per turn of the compiled loop: fewer, larger pieces for a GPU to launch."""


class Scaling(NamedTuple):
    """The data's own units."""

    input_mean: Float[Array, " S+A"]
    input_sd: Float[Array, " S+A"]
    target_mean: Float[Array, " S+2"]
    target_sd: Float[Array, " S+2"]
    """Of Δs, reward and cost (0 and 1 for a binary cost)."""
    low: Float[Array, " S"]
    high: Float[Array, " S"]
    """An imagined state is kept within these."""
    binary: Bool[Array, ""]
    """Every cost seen was 0 or 1."""
    ends: Bool[Array, ""]
    """An episode has been seen to terminate."""


class Ensemble(eqx.Module):
    """Parameters of the E members, stacked."""

    weights: tuple[Float[Array, E in out], ...]
    biases: tuple[Float[Array, "E 1 out"], ...]
    max_logvar: Float[Array, " D"]
    min_logvar: Float[Array, " D"]


class Prediction(NamedTuple):
    """Of one step, in scaled units; D = S + 2: Δs, reward, cost."""

    mean: Float[Array, "E B D"]
    logvar: Float[Array, "E B D"]
    end: Float[Array, "E B"]
    """Logit of the episode's end."""


def init(key: Key, obs_dim: int, action_dim: int, settings: EnsembleSettings) -> Ensemble:
    """Truncated-normal weights of deviation 1/(2√in), zero biases (published code)."""
    D = obs_dim + 2
    sizes = [obs_dim + action_dim, *[settings.hidden] * settings.layers, 2 * D + 1]
    keys = jr.split(key, len(sizes) - 1)
    weights = tuple(
        jr.truncated_normal(k, -2.0, 2.0, (settings.members, i, o)) / (2.0 * np.sqrt(i))
        for k, i, o in zip(keys, sizes[:-1], sizes[1:], strict=True)
    )
    biases = tuple(jnp.zeros((settings.members, 1, o)) for o in sizes[1:])
    bounds = (jnp.full(D, at, jnp.float32) for at in (0.5, -10.0))
    return Ensemble(weights, biases, *bounds)


def scaling(buffer: Buffer) -> Scaling:
    """Means and deviations of the buffer; a quantity that never changed keeps its unit."""
    inputs = np.concatenate([buffer.obs, buffer.action], axis=1)
    targets = np.concatenate([buffer.next_obs - buffer.obs, buffer.reward[:, None], buffer.cost[:, None]], axis=1)
    binary = bool(np.isin(buffer.cost, (0.0, 1.0)).all())
    target_mean, target_sd = targets.mean(0, dtype=np.float64), _deviation(targets)
    if binary:
        target_mean[-1], target_sd[-1] = 0.0, 1.0
    states = np.concatenate([buffer.obs, buffer.next_obs])
    low, high = states.min(0), states.max(0)
    room = np.where(high > low, high - low, 1e-6)
    return Scaling(
        input_mean=_float32(inputs.mean(0, dtype=np.float64)),
        input_sd=_float32(_deviation(inputs)),
        target_mean=_float32(target_mean),
        target_sd=_float32(target_sd),
        low=_float32(low - room),
        high=_float32(high + room),
        binary=jnp.asarray(binary),
        ends=jnp.asarray(bool(buffer.terminated.any())),
    )


def _float32(x: Any) -> Array:
    return jnp.asarray(x, jnp.float32)


def _deviation(x: Float[np.ndarray, "n D"]) -> Float[np.ndarray, " D"]:
    sd = x.std(0, dtype=np.float64)
    return np.where(sd > 1e-6 * np.maximum(1e-6, np.abs(x).max(0)), sd, 1.0)


def predict(net: Ensemble, x: Float[Array, "E B in"]) -> Prediction:
    """What each member expects of its own scaled inputs."""
    h = x
    for w, b in zip(net.weights[:-1], net.biases[:-1], strict=True):
        h = jax.nn.swish(h @ w + b)
    out = jnp.matmul(h, net.weights[-1], preferred_element_type=jnp.float32) + net.biases[-1]
    D = net.max_logvar.shape[0]
    logvar = net.max_logvar - jax.nn.softplus(net.max_logvar - out[..., D : 2 * D])
    logvar = net.min_logvar + jax.nn.softplus(logvar - net.min_logvar)
    return Prediction(out[..., :D], logvar, out[..., 2 * D])


def for_products(net: Ensemble, products: str) -> Ensemble:
    """The same network with hidden layers in the type of the products, and its first and last matrix padded with zeros
    to a multiple of 8, which is what a GPU's matrix units take."""
    products = type_of(products)
    wide = [(-net.weights[0].shape[1]) % 8, (-net.weights[-1].shape[2]) % 8]
    first = jnp.pad(net.weights[0], ((0, 0), (0, wide[0]), (0, 0)))
    last, bias = (jnp.pad(x, ((0, 0), (0, 0), (0, wide[1]))) for x in (net.weights[-1], net.biases[-1]))
    weights = tuple(w.astype(products) for w in (first, *net.weights[1:-1], last))
    biases = (*(b.astype(products) for b in net.biases[:-1]), bias)
    return Ensemble(weights, biases, net.max_logvar, net.min_logvar)


def nll(
    mean: Float[Array, "... D"], logvar: Float[Array, "... D"], target: Float[Array, "... D"]
) -> Float[Array, "... D"]:
    """Twice the negative log-likelihood of a Gaussian, without its constant:  (μ − y)² e^(−log σ²) + log σ²."""
    return jnp.square(mean - target) * jnp.exp(-logvar) + logvar


def bce(logit: Float[Array, ...], label: Float[Array, ...]) -> Float[Array, ...]:
    """Negative log-likelihood of a 0/1 label."""
    return jax.nn.softplus(logit) - label * logit


def loss(
    net: Ensemble,
    x: Float[Array, "E B in"],
    y: Float[Array, "E B D"],
    end: Float[Array, "E B"],
    weight: Float[Array, " B"],
    scale: Scaling,
    decays: tuple[float, ...],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Sum over members of each head's loss, averaged over its own dimensions, with the bounds' and the weights' terms.

    Beside it the mean over members of the heads' losses alone, which is what is logged.
    """
    p = predict(net, x)
    gaussian = nll(p.mean, p.logvar, y)  # [E B D]
    cost = jnp.where(scale.binary, bce(p.mean[..., -1], y[..., -1]), gaussian[..., -1])
    heads = gaussian[..., :-2].mean(-1) + gaussian[..., -2] + cost + jnp.where(scale.ends, bce(p.end, end), 0.0)
    data = (heads * weight).sum(-1) / weight.sum()  # [E]
    bounds = 0.01 * (net.max_logvar - net.min_logvar).sum()
    decay = sum(d * jnp.square(w).sum() / 2.0 for d, w in zip(decays, net.weights, strict=True))
    return data.sum() + bounds + decay, data.mean()


@shared
@partial(jax.jit, static_argnames="settings")
def fit(
    net: Ensemble,
    optimiser: Any,
    scale: Scaling,
    buffer: Buffer,
    count: Int[Array, ""],
    key: Key,
    settings: EnsembleSettings,
) -> tuple[Ensemble, Any, Float[Array, ""]]:
    """Train on the first `count` rows of a padded buffer; returns the loss averaged over the last pass.

    Each member resamples the rows with replacement once per fit (a bootstrap), and every batch is drawn from these anew: an
    order to be sorted would be sorted in every step where several fits are made as one. `count` is traced: a growing
    buffer compiles nothing.
    """
    adam = optax.adam(settings.learning_rate)
    decays = tuple(settings.decays())
    k_boot, k_batch = jr.split(key)
    rows = jr.randint(k_boot, (settings.members, buffer.reward.shape[0]), 0, count)
    per_epoch = (count + settings.batch - 1) // settings.batch
    updates = jnp.clip(
        jnp.ceil(settings.epochs * per_epoch).astype(jnp.int32), settings.least_updates, settings.most_updates
    )
    full = (jnp.arange(settings.batch) < count).astype(jnp.float32)  # fewer rows than a batch are taken once, about

    def update(number: Int[Array, ""], carry: Any) -> Any:
        net, optimiser, total = carry
        index = rows[:, jr.randint(jr.fold_in(k_batch, number), (settings.batch,), 0, count)]  # [E B]
        x, y, end = examples(buffer, index, scale)
        (_, data), grads = jax.value_and_grad(loss, has_aux=True)(net, x, y, end, full, scale, decays)
        steps, optimiser = adam.update(grads, optimiser)
        return optax.apply_updates(net, steps), optimiser, total + jnp.where(number >= updates - per_epoch, data, 0.0)

    net, optimiser, total = jax.lax.fori_loop(0, updates, update, (net, optimiser, jnp.zeros(())))
    return net, optimiser, total / jnp.minimum(updates, per_epoch)


def examples(buffer: Buffer, index: Int[Array, "E B"], scale: Scaling) -> tuple[Any, Any, Any]:
    """Scaled inputs `[E B S+A]`, targets `[E B S+2]` and endings `[E B]` of these rows."""
    obs, action, reward, cost, next_obs, end = (jnp.asarray(part)[index] for part in buffer.columns)
    x = (jnp.concatenate([obs, action], -1) - scale.input_mean) / scale.input_sd
    y = jnp.concatenate([next_obs - obs, reward[..., None], cost[..., None]], -1)
    y = (y - scale.target_mean) / scale.target_sd
    return x, y, end


def rollout(
    params: tuple[Ensemble, Scaling],
    start: Float[Array, " S"],
    actions: Float[Array, "N H A"],
    key: Key,
    *,
    settings: EnsembleSettings,
) -> Imagined:
    """Imagine each candidate from `start`: every member moves its own particles and samples their next states.

    Particles of different candidates share their noise, so that candidates differ by their actions alone. What an
    imagined ending is followed by counts for nothing.
    """
    net, scale = params
    net = for_products(net, settings.products)
    dtype, width = net.weights[0].dtype, net.weights[0].shape[1]
    E, G, S = settings.members, settings.particles // settings.members, start.shape[0]
    N, H, A = actions.shape
    noise = jr.normal(key, (H, E, 1, G, S))
    mean, sd = scale.input_mean, scale.input_sd
    moves = ((actions - mean[S:]) / sd[S:]).swapaxes(0, 1)  # [H N A]
    moves = jnp.pad(moves, ((0, 0), (0, 0), (0, width - S - A))).astype(dtype)

    def step(carry: Any, at: Any) -> tuple[Any, Any]:
        state, alive = carry  # [E N G S], [E N G]
        move, eps = at
        x = ((state - mean[:S]) / sd[:S]).astype(dtype)
        x = jnp.concatenate([x, jnp.broadcast_to(move[None, :, None, :], (E, N, G, width - S))], -1)
        x = x.reshape(E, N * G, width)
        p = jax.tree.map(lambda y: y.reshape(E, N, G, *y.shape[2:]), predict(net, x))
        sigma = jnp.exp(0.5 * p.logvar[..., :S])
        if settings.exact:
            u = _exact(net, x, S, settings.floor).reshape(E, N, G)
        else:
            u = spread(sigma, settings.floor).max(0, keepdims=True)
        change = (p.mean[..., :S] + sigma * eps) * scale.target_sd[:S] + scale.target_mean[:S]
        reward, cost = (p.mean[..., i] * scale.target_sd[i] + scale.target_mean[i] for i in (S, S + 1))
        ended = scale.ends & (p.end > 0.0)
        state = jnp.clip(state + change, scale.low, scale.high)
        return (state, jnp.where(ended, 0.0, alive)), (reward, cost, jnp.broadcast_to(u, alive.shape), alive)

    first = (jnp.broadcast_to(start, (E, N, G, S)), jnp.ones((E, N, G)))
    _, parts = jax.lax.scan(step, first, (moves, noise), unroll=UNROLL)
    return Imagined(*(jnp.moveaxis(part, 0, -1).swapaxes(0, 1).reshape(N, E * G, H) for part in parts))


def imagination(settings: EnsembleSettings, obs_dim: int, action_dim: int) -> tuple[Callable[[Any], Any], Rollout]:
    """What makes parameters ready, once per fit, and the rollout that takes them then: this one, or `planning.fused`."""
    plain: tuple[Callable[[Any], Any], Rollout] = everywhere, shared_out(partial(rollout, settings=settings))
    asked, gpu = settings.rollout == "fused", jax.default_backend() == "gpu"
    if asked and not gpu:
        raise InputError("rollout is fused, and JAX finds no GPU here: choose auto or plain.")
    if not gpu or settings.exact or settings.rollout == "plain":
        return plain
    from capax.planning import fused  # Pallas is slow to import

    dtype = type_of(settings.products)
    refused = fused.refusal(obs_dim, action_dim, settings.hidden, settings.layers, dtype)
    if (has := getattr(jax.devices()[0], "compute_capability", "none")) != fused.CAPABLE:
        refused = f"is written for an H100 or H200 (compute capability {fused.CAPABLE}, and this GPU has {has})"
    if refused and asked:
        raise InputError(f"rollout is fused, which {refused}: choose auto or plain.")
    if refused:
        return plain
    sizes = {name: getattr(settings, name) for name in ("particles", "hidden", "layers", "floor")}
    pack = jax.jit(partial(fused.pack, dtype=dtype))
    return lambda params: (pack(*params), params[1]), partial(fused.rollout, **sizes)


def judged(
    params: tuple[Ensemble, Scaling], buffer: Buffer, key: Key, settings: EnsembleSettings
) -> tuple[Any, Any, Any, Any]:
    """Cost (or logit) in the mean over the particles, uncertainty, true cost and reward of some steps that were seen."""
    which = np.asarray(jr.randint(key, (JUDGED,), 0, buffer.size))
    logit, u = _judged(params, buffer.obs[which], buffer.action[which], key, settings)
    return np.asarray(logit), np.asarray(u), buffer.cost[which], buffer.reward[which]


@partial(jax.jit, static_argnames="settings")
def _judged(params: Any, obs: Any, action: Any, key: Key, settings: EnsembleSettings) -> tuple[Any, Any]:
    def one(obs: Any, action: Any) -> Any:
        return rollout(params, obs, action[None, None], key, settings=settings)

    imagined = jax.vmap(one)(obs, action)  # each [n 1 P 1]
    return imagined.cost.mean((1, 2, 3)), imagined.uncertainty.mean((1, 2, 3))


def _exact(net: Ensemble, x: Float[Array, "E M in"], S: int, floor: float) -> Float[Array, " E*M"]:
    """max_i ‖Σ_i(s, a)‖ with every member asked about every particle."""
    everyone = jnp.broadcast_to(x.reshape(1, -1, x.shape[-1]), (x.shape[0], x.shape[0] * x.shape[1], x.shape[-1]))
    return spread(jnp.exp(0.5 * predict(net, everyone).logvar[..., :S]), floor).max(0)
