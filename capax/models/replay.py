"""Predictions for actions that were really taken: stretches of past episodes, imagined from their first state."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from capax.core.types import Key
from capax.models import ensemble
from capax.models.ensemble import EnsembleSettings
from capax.planning.scoring import LIVED_RATE, PARTS, at_least, charged, part_length


class Replay(NamedTuple):
    """Predictions for the T steps of an episode. In row p they come from a stretch that began p parts of a plan earlier;
    NaN where the episode had not begun then."""

    cost: Float[Array, "PARTS T"]
    uncertainty: Float[Array, "PARTS T"]
    part: int
    """Steps of a part."""

    def with_sight(self, parts: int) -> tuple[Float[Array, " T"], Float[Array, " T"]]:
        """Cost and uncertainty of each step if a new stretch begins after every `parts` parts."""
        steps = np.arange(self.cost.shape[1])
        age = steps // self.part % parts
        return self.cost[age, steps], self.uncertainty[age, steps]


def replay(
    params: tuple[ensemble.Ensemble, ensemble.Scaling],
    obs: Float[Array, "T S"],
    action: Float[Array, "T A"],
    key: Key,
    horizon: int,
    settings: EnsembleSettings,
    steps: int,
) -> Replay:
    """The model's predictions for an episode, averaged over particles. A cost that is 0 or 1 is a probability.

    `steps` is the greatest length of an episode: shorter ones are padded, and compile nothing new.
    """
    part = part_length(horizon)
    blocks, length = -(-max(steps, len(obs)) // part), PARTS * part
    starts = np.zeros((blocks, obs.shape[1]), np.float32)
    starts[: -(-len(obs) // part)] = obs[::part]
    padded = np.zeros((blocks * part + length, action.shape[1]), np.float32)
    padded[: len(action)] = action
    stretches = np.stack([padded[block * part : block * part + length] for block in range(blocks)])
    cost, u = (np.asarray(x, np.float64) for x in _imagine(params, starts, stretches, key, settings))
    cost, u = (_by_age(x.reshape(blocks, PARTS, part))[:, : len(obs)] for x in (cost, u))
    return Replay(cost, u, part)


def _by_age(predicted: Float[Array, "blocks PARTS part"]) -> Float[Array, "PARTS T"]:
    """Predictions in the order of the steps, for each age of the stretch that they come from."""
    blocks, _, part = predicted.shape
    rows = np.full((PARTS, blocks, part), np.nan)
    for age in range(PARTS):
        rows[age, age:] = predicted[: max(0, blocks - age), age]
    return rows.reshape(PARTS, -1)


@partial(jax.jit, static_argnames="settings")
def _imagine(params: Any, starts: Any, actions: Any, key: Key, settings: EnsembleSettings) -> tuple[Any, Any]:
    def imagine(start: Any, actions: Any) -> Any:
        return ensemble.rollout(params, start, actions[None], key, settings=settings)

    imagined = jax.vmap(imagine)(starts, actions)  # each [n 1 P H]
    scale = params[1]
    cost = at_least(imagined.cost, scale.least_cost, scale.binary)
    cost = jnp.where(scale.binary, jax.nn.sigmoid(cost), cost)
    cost, u = (charged(part[:, 0], imagined.alive[:, 0], LIVED_RATE) for part in (cost, imagined.uncertainty))
    return cost.mean(1), u.mean(1)


def explained_reward(
    params: tuple[ensemble.Ensemble, ensemble.Scaling],
    obs: Float[Array, "T S"],
    action: Float[Array, "T A"],
    reward: Float[Array, " T"],
    steps: int,
) -> float | None:
    """The share of the reward's variance in an episode that the model predicts one step ahead; None if it did not vary."""
    varied = float(np.square(reward - reward.mean()).sum())
    if not varied > 1e-12 * max(1.0, float(np.square(reward).sum())):
        return None
    padded = [np.zeros((max(steps, len(part)), part.shape[1]), np.float32) for part in (obs, action)]
    for whole, part in zip(padded, (obs, action), strict=True):
        whole[: len(part)] = part
    predicted = np.asarray(_predicted_reward(params, *padded), np.float64)[: len(reward)]
    return 1.0 - float(np.square(reward - predicted).sum()) / varied


@jax.jit
def _predicted_reward(params: Any, obs: Any, action: Any) -> Any:
    net, scale = params
    inputs = (jnp.concatenate([obs, action], -1) - scale.input_mean) / scale.input_sd
    mean = ensemble.predict(net, jnp.broadcast_to(inputs, (len(net.biases[0]), *inputs.shape))).mean.mean(0)
    S = obs.shape[1]
    return mean[:, S] * scale.target_sd[S] + scale.target_mean[S]
