"""Probabilistic ensemble that predicts states, rewards, costs and episode ends, with its uncertainty.

E networks are trained on different resamplings of the same transitions. Each predicts a Gaussian over the change of the
state, the reward and the cost (a logit where the cost is binary), and the logit of the episode's end. Inputs and
targets are scaled by the data's own standard deviations, so results do not depend on the units of the environment.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from capax.core.errors import InputError
from capax.core.types import Imagined, Key, Rollout
from capax.data.transitions import TransitionBuffer
from capax.models import cost_networks
from capax.models.cost_networks import CostNetworks
from capax.models.ensemble_settings import EnsembleSettings as EnsembleSettings
from capax.models.layers import product_dtype, state_noise
from capax.planning.penalty import deviation_norm
from capax.runtime.cpu_devices import replicate, split_candidates

UNROLL = 5
"""Imagined steps per turn of the compiled loop. A GPU launches fewer, larger pieces."""


class Scaling(NamedTuple):
    """Units of the data, taken from the data."""

    input_mean: Float[Array, " S+A"]
    input_sd: Float[Array, " S+A"]
    target_mean: Float[Array, " S+2"]
    target_sd: Float[Array, " S+2"]
    """Of Δs, reward and cost (0 and 1 for a binary cost)."""
    low: Float[Array, " S"]
    """Imagined states are clipped from below at this."""
    high: Float[Array, " S"]
    """Imagined states are clipped from above at this."""
    binary: Bool[Array, ""]
    """Every cost in the data was 0 or 1."""
    ends: Bool[Array, ""]
    """An episode in the data terminated."""
    least_cost: Any = -np.inf
    """The least cost of the data, or 0 if that is less. −∞ where predicted costs may be lower (published code)."""


class Ensemble(eqx.Module):
    """Parameters of the E members, stacked."""

    weights: tuple[Float[Array, "E I O"], ...]
    biases: tuple[Float[Array, "E 1 O"], ...]
    max_logvar: Float[Array, " D"]
    min_logvar: Float[Array, " D"]
    costs: CostNetworks | None = None
    """Networks of their own for costs of 0 or 1."""


class Prediction(NamedTuple):
    """Predictions for one step, in scaled units; D = S + 2: Δs, reward, cost."""

    mean: Float[Array, "E B D"]
    logvar: Float[Array, "E B D"]
    end: Float[Array, "E B"]
    """Logit of the episode's end."""


def init(key: Key, obs_dim: int, action_dim: int, settings: EnsembleSettings) -> Ensemble:
    """Truncated-normal weights of standard deviation 1/(2√in), zero biases (published code)."""
    D = obs_dim + 2
    sizes = [obs_dim + action_dim, *[settings.hidden] * settings.layers, 2 * D + 1]
    keys = jr.split(key, len(sizes) - 1)
    weights = tuple(
        jr.truncated_normal(k, -2.0, 2.0, (settings.members, i, o)) / (2.0 * np.sqrt(i))
        for k, i, o in zip(keys, sizes[:-1], sizes[1:], strict=True)
    )
    biases = tuple(jnp.zeros((settings.members, 1, o)) for o in sizes[1:])
    costs = None
    if settings.cost_networks == "own":
        costs = cost_networks.init(jr.fold_in(key, 1), settings.members, sizes[0], settings.hidden, settings.layers)
    return Ensemble(weights, biases, jnp.full(D, 0.5), jnp.full(D, -10.0), costs)


def scaling(
    buffer: TransitionBuffer, settings: EnsembleSettings | None = None, origin: float | Float[np.ndarray, " S"] = 0.0
) -> Scaling:
    """Means and standard deviations of the buffer. A quantity that never changed keeps its unit.

    States of the buffer are relative to `origin`.
    """
    settings = settings or EnsembleSettings()
    inputs = np.concatenate([buffer.obs, buffer.action], axis=1)
    targets = np.concatenate([buffer.next_obs - buffer.obs, buffer.reward[:, None], buffer.cost[:, None]], axis=1)
    binary = bool(np.isin(buffer.cost, (0.0, 1.0)).all())
    target_mean, target_sd = targets.mean(0, dtype=np.float64), _standard_deviation(targets)
    if settings.targets == "raw":
        target_mean, target_sd = np.zeros_like(target_mean), np.ones_like(target_sd)
    if binary:
        target_mean[-1], target_sd[-1] = 0.0, 1.0
    states = np.concatenate([buffer.obs, buffer.next_obs])
    low, high = states.min(0), states.max(0)
    span = np.where(high > low, high - low, 1e-6)
    low, high = low - span, high + span
    if settings.clamp > 0.0:
        low, high = -settings.clamp - origin + 0.0 * low, settings.clamp - origin + 0.0 * high
    return Scaling(
        input_mean=_float32(inputs.mean(0, dtype=np.float64)),
        input_sd=_float32(_standard_deviation(inputs)),
        target_mean=_float32(target_mean),
        target_sd=_float32(target_sd),
        low=_float32(low),
        high=_float32(high),
        binary=jnp.asarray(binary),
        ends=jnp.asarray(bool(buffer.terminated.any())),
        least_cost=_float32(-np.inf if settings.clamp > 0.0 else np.min(buffer.cost, initial=0.0)),
    )


def _float32(x: Any) -> Array:
    return jnp.asarray(x, jnp.float32)


def _standard_deviation(x: Float[np.ndarray, "n D"]) -> Float[np.ndarray, " D"]:
    sd = x.std(0, dtype=np.float64)
    return np.where(sd > 1e-6 * np.maximum(1e-6, np.abs(x).max(0)), sd, 1.0)


def predict(net: Ensemble, inputs: Float[Array, "E B in"]) -> Prediction:
    """Each member's prediction for its own scaled inputs."""
    h = inputs
    for w, b in zip(net.weights[:-1], net.biases[:-1], strict=True):
        h = jax.nn.swish(h @ w + b)
    out = jnp.matmul(h, net.weights[-1], preferred_element_type=jnp.float32) + net.biases[-1]
    D = net.max_logvar.shape[0]
    logvar = net.max_logvar - jax.nn.softplus(net.max_logvar - out[..., D : 2 * D])
    logvar = net.min_logvar + jax.nn.softplus(logvar - net.min_logvar)
    return Prediction(out[..., :D], logvar, out[..., 2 * D])


def cast_for_products(net: Ensemble, products: str) -> Ensemble:
    """The same network with its hidden layers in the type of the products.

    The first and the last matrix are padded with zeros to a multiple of 8, the size that a GPU's matrix units take.
    """
    products = product_dtype(products)
    padding = [(-net.weights[0].shape[1]) % 8, (-net.weights[-1].shape[2]) % 8]
    first = jnp.pad(net.weights[0], ((0, 0), (0, padding[0]), (0, 0)))
    last, bias = (jnp.pad(x, ((0, 0), (0, 0), (0, padding[1]))) for x in (net.weights[-1], net.biases[-1]))
    weights = tuple(w.astype(products) for w in (first, *net.weights[1:-1], last))
    biases = (*(b.astype(products) for b in net.biases[:-1]), bias)
    costs = net.costs
    if costs is not None:
        first = jnp.pad(costs.weights[0], ((0, 0), (0, padding[0]), (0, 0)))
        cost_weights = tuple(w.astype(products) for w in (first, *costs.weights[1:]))
        costs = CostNetworks(cost_weights, (*(b.astype(products) for b in costs.biases[:-1]), costs.biases[-1]))
    return Ensemble(weights, biases, net.max_logvar, net.min_logvar, costs)


def rollout(
    params: tuple[Ensemble, Scaling],
    start: Float[Array, " S"],
    actions: Float[Array, "N H A"],
    key: Key,
    *,
    settings: EnsembleSettings,
) -> Imagined:
    """Imagine each candidate from `start` (TS∞: every member moves its own particles and samples their next states).

    u(s, a) is the maximum over the members of ‖Σ_i(s, a)‖ (Eq. 7), here each at its own particles.
    Particles of different candidates share their noise, so candidates differ only by their actions, unless `noise` says
    otherwise; `key` may then be one key for each candidate. Steps after an imagined end do not count.
    """
    net, scale = params
    net = cast_for_products(net, settings.products)
    dtype, width = net.weights[0].dtype, net.weights[0].shape[1]
    E, G, S = settings.members, settings.particles // settings.members, start.shape[0]
    N, H, A = actions.shape
    noise = particle_noise(key, N, (H, E, G, S + 2), settings)
    mean, sd = scale.input_mean, scale.input_sd
    scaled_actions = ((actions - mean[S:]) / sd[S:]).swapaxes(0, 1)  # [H N A]
    scaled_actions = jnp.pad(scaled_actions, ((0, 0), (0, 0), (0, width - S - A))).astype(dtype)

    def step(carry: Any, action_and_noise: Any) -> tuple[Any, Any]:
        state, alive = carry  # [E N G S], [E N G]
        action, eps = action_and_noise
        x = ((state - mean[:S]) / sd[:S]).astype(dtype)
        x = jnp.concatenate([x, jnp.broadcast_to(action[None, :, None, :], (E, N, G, width - S))], -1)
        x = x.reshape(E, N * G, width)
        p = jax.tree.map(lambda y: y.reshape(E, N, G, *y.shape[2:]), predict(net, x))
        sigma = jnp.exp(0.5 * p.logvar[..., :S])
        if settings.exact:
            u = _exact_uncertainty(net, x, S, settings.floor).reshape(E, N, G)
        else:
            u = deviation_norm(sigma, settings.floor).max(0, keepdims=True)
        spread = sigma if settings.noise != "squared" else jnp.square(sigma)
        change = (p.mean[..., :S] + spread * eps[..., :S]) * scale.target_sd[:S] + scale.target_mean[:S]
        outcome = p.mean[..., S : S + 2]
        if settings.outcomes == "sample":
            outcome = outcome + outcome_spread(p.logvar[..., S:], scale.binary, settings.noise) * eps[..., S:]
        reward, cost = (outcome[..., i - S] * scale.target_sd[i] + scale.target_mean[i] for i in (S, S + 1))
        ended = scale.ends & (p.end > 0.0)
        state = jnp.clip(state + change, scale.low, scale.high)
        parts = Imagined(reward, cost, jnp.broadcast_to(u, alive.shape), alive)
        return (state, jnp.where(ended, 0.0, alive)), (parts, None if net.costs is None else x)

    first = (jnp.broadcast_to(start, (E, N, G, S)), jnp.ones((E, N, G)))
    _, (parts, inputs) = jax.lax.scan(step, first, (scaled_actions, noise), unroll=UNROLL)
    if net.costs is not None:  # all steps at once
        parts = parts._replace(cost=own_costs(net.costs, inputs, parts.cost, scale))
    return Imagined(*(jnp.moveaxis(part, 0, -1).swapaxes(0, 1).reshape(N, E * G, H) for part in parts))


def own_costs(
    net: CostNetworks, x: Float[Array, "H E M in"], shared: Float[Array, "H E N G"], scale: Scaling
) -> Float[Array, "H E N G"]:
    """Costs from networks of their own if they are 0 or 1, otherwise those of the shared networks."""

    def own() -> Float[Array, "H E N G"]:
        logit = cost_networks.logits(net, x.swapaxes(0, 1).reshape(x.shape[1], -1, x.shape[-1]))
        return logit.reshape(x.shape[1], x.shape[0], *shared.shape[2:]).swapaxes(0, 1) * scale.target_sd[-1]

    return jax.lax.cond(scale.binary, own, lambda: shared)


def particle_noise(key: Key, candidates: int, shape: tuple[int, int, int, int], settings: EnsembleSettings) -> Any:
    """Noise `[H, E, N or 1, G, S+2]` of imagined states, then of reward and cost where these are sampled."""
    H, E, G, D = shape
    size = D if settings.outcomes == "sample" else D - 2
    if settings.noise == "shared":
        return state_noise(key, (H, E, 1, G, size), settings.sampled)
    keys = key if key.ndim else jr.split(key, candidates)
    return jnp.moveaxis(jax.vmap(lambda one: state_noise(one, (H, E, G, size), settings.sampled))(keys), 0, 2)


def outcome_spread(logvar: Float[Array, "... 2"], binary: Bool[Array, ""], noise: str) -> Float[Array, "... 2"]:
    """What the noise of reward and cost is multiplied by: their predicted deviations; a logit has none."""
    spread = jnp.exp((1.0 if noise == "squared" else 0.5) * logvar)
    return spread * jnp.stack([jnp.ones(()), jnp.where(binary, 0.0, 1.0)])


def build_rollout(settings: EnsembleSettings, obs_dim: int, action_dim: int) -> tuple[Callable[[Any], Any], Rollout]:
    """A function that prepares parameters once per fit, and the rollout that reads the prepared parameters.

    The rollout is this module's, or the fused one of `models.kernels.ensemble_kernel`.
    """
    each = None if settings.noise == "shared" else jr.split
    plain: tuple[Callable[[Any], Any], Rollout] = replicate, split_candidates(partial(rollout, settings=settings), each)
    fused_required, gpu = settings.rollout == "fused", jax.default_backend() == "gpu"
    if fused_required and not gpu:
        raise InputError("rollout is fused, and JAX finds no GPU here: choose auto or plain.")
    if not gpu or settings.exact or settings.rollout == "plain" or settings.cost_networks == "own":
        return plain
    from capax.models.kernels import ensemble_kernel  # Pallas is slow to import

    dtype = product_dtype(settings.products)
    reason = ensemble_kernel.unsupported_reason(
        obs_dim, action_dim, settings.hidden, settings.layers, dtype, settings.noise, settings.outcomes
    )
    if (capability := getattr(jax.devices()[0], "compute_capability", "none")) != ensemble_kernel.COMPUTE_CAPABILITY:
        reason = (
            f"is written for an H100 or H200 (compute capability {ensemble_kernel.COMPUTE_CAPABILITY}, "
            f"and this GPU has {capability})"
        )
    if reason and fused_required:
        raise InputError(f"rollout is fused, which {reason}: choose auto or plain.")
    if reason:
        return plain
    sizes = {name: getattr(settings, name) for name in ("particles", "hidden", "layers", "floor", "sampled")}
    pack = jax.jit(partial(ensemble_kernel.pack, dtype=dtype))
    return lambda params: (pack(*params), params[1]), partial(ensemble_kernel.rollout, **sizes)


def _exact_uncertainty(net: Ensemble, x: Float[Array, "E M in"], S: int, floor: float) -> Float[Array, " E*M"]:
    """max_i ‖Σ_i(s, a)‖, with every member evaluated on every particle."""
    shared_inputs = jnp.broadcast_to(x.reshape(1, -1, x.shape[-1]), (x.shape[0], x.shape[0] * x.shape[1], x.shape[-1]))
    return deviation_norm(jnp.exp(0.5 * predict(net, shared_inputs).logvar[..., :S]), floor).max(0)
