"""A batch for an improvement: advantages and value targets of whole episodes, padded to few lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from capax.agents.policy_gradient.gae import advantages
from capax.agents.policy_gradient.observations import Moments, Observations
from capax.core.types import Episode
from capax.models.actor_critic import ActorCritic, policy_and_values
from capax.runtime.lanes import batched

PIECE_SIZE = 256
"""Steps whose values are computed at once. The images of a whole batch would not fit into memory."""


class Batch(NamedTuple):
    """Inputs of an improvement, N steps with the padding."""

    observations: Any
    """Inputs of the networks, each stored once; `obs_index` counts them."""
    obs_index: Any
    """`[N]`, or `[N, K]` of images, K = STACKED_IMAGES."""
    action: Any
    """`[N, A]`."""
    old_mean: Any
    """Means of the policy that acted, `[N, A]`."""
    old_log_sd: Any
    """Logarithm of its standard deviations, `[A]`."""
    advantage: Any
    """Of the reward, normalised, `[N]`."""
    cost_advantage: Any
    """Of the cost, normalised, `[N]`."""
    value_target: Any
    """Targets of the value of the reward, `[N]`."""
    cost_value_target: Any
    """Targets of the value of the cost, `[N]`."""


def prepare_batch(
    net: ActorCritic,
    observations: Observations,
    moments: Moments,
    episodes: Sequence[Episode],
    *,
    gamma: float,
    lam: float,
) -> Batch:
    """The batch of whole episodes. Advantages are normalised over all steps; the padding repeats the first steps."""
    table = observations.table(moments, episodes)
    count = len(table.obs_index)
    padded_steps = np.arange(padded_to(count)) % count
    obs_index, next_obs_index = table.obs_index[padded_steps], table.next_obs_index[padded_steps]
    rows = table.rows[np.arange(padded_to(len(table.rows))) % len(table.rows)]
    mean, values, next_values = jax.device_get(means_and_values(net, rows, obs_index, next_obs_index))
    ends = np.cumsum([len(episode.reward) for episode in episodes])[:-1]
    estimates = []
    for signal, value, next_value in zip(("reward", "cost"), values, next_values, strict=True):
        per_episode = zip(episodes, np.split(value[:count], ends), np.split(next_value[:count], ends), strict=True)
        estimates.append(np.concatenate([
            advantages(getattr(episode, signal), v, next_v, episode.terminated, gamma, lam)
            for episode, v, next_v in per_episode
        ]))  # fmt: skip
    targets = [estimate + value[:count] for estimate, value in zip(estimates, values, strict=True)]
    normalised = [(estimate - estimate.mean()) / (estimate.std() + 1e-8) for estimate in estimates]
    action = np.concatenate([episode.action for episode in episodes])
    columns = (action, mean[:count], *normalised, *targets)
    action, mean, *rest = (np.asarray(column, np.float32)[padded_steps] for column in columns)
    return Batch(rows, obs_index, action, mean, np.asarray(net.log_sd), *rest)


@batched
@jax.jit
def means_and_values(net: ActorCritic, rows: Any, obs_index: Any, next_obs_index: Any) -> Any:
    """Means of the policy, both values at each step and both values one step later, computed piece by piece."""

    def of_piece(indices: Any) -> Any:
        policy, values = policy_and_values(net, rows[indices[0]])
        return policy.mean, values, policy_and_values(net, rows[indices[1]])[1]

    size = min(PIECE_SIZE, len(obs_index))
    pieces = tuple(index.reshape(-1, size, *index.shape[1:]) for index in (obs_index, next_obs_index))
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), jax.lax.map(of_piece, pieces))


def padded_to(count: int) -> int:
    """The next power of two. Batches of whole episodes differ in length, and every new length has to be compiled."""
    return 1 << (count - 1).bit_length()
