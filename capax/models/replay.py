"""What a model predicts for actions that were really taken: stretches of past episodes, imagined from their first state."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from capax.core.types import Key
from capax.models import ensemble
from capax.models.ensemble import EnsembleSettings
from capax.planning.scoring import LIVED_RATE, charged


def replay(
    params: tuple[ensemble.Ensemble, ensemble.Scaling],
    obs: Float[Array, "T S"],
    action: Float[Array, "T A"],
    key: Key,
    horizon: int,
    settings: EnsembleSettings,
    steps: int,
) -> tuple[Float[Array, " T"], Float[Array, " T"]]:
    """Predicted cost and uncertainty of each step of an episode, averaged over particles.

    Every `horizon` steps the imagination begins anew from the true state. A cost that is 0 or 1 is a probability.
    `steps` is the greatest length of an episode: shorter ones are padded, and compile nothing new.
    """
    count = -(-max(steps, len(obs)) // horizon)
    starts = np.zeros((count, obs.shape[1]), np.float32)
    starts[: -(-len(obs) // horizon)] = obs[::horizon]
    actions = np.zeros((count * horizon, action.shape[1]), np.float32)
    actions[: len(action)] = action
    cost, u = _replay(params, starts, actions.reshape(count, horizon, -1), key, settings)
    return tuple(np.asarray(part, np.float64).ravel()[: len(obs)] for part in (cost, u))  # type: ignore[return-value]


@partial(jax.jit, static_argnames="settings")
def _replay(params: Any, starts: Any, actions: Any, key: Key, settings: EnsembleSettings) -> tuple[Any, Any]:
    def imagine(start: Any, actions: Any) -> Any:
        return ensemble.rollout(params, start, actions[None], key, settings=settings)

    imagined = jax.vmap(imagine)(starts, actions)  # each [n 1 P H]
    cost = jnp.where(params[1].binary, jax.nn.sigmoid(imagined.cost), imagined.cost)
    lived = (charged(part[:, 0], imagined.alive[:, 0], LIVED_RATE) for part in (cost, imagined.uncertainty))
    return tuple(part.mean(1) for part in lived)  # type: ignore[return-value]
