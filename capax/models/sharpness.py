"""Sharpness of predicted probabilities: a fit is stopped long before its logits have grown as far as the data allow.

Where a cost is decided by the state, logits grow without end while a network is trained, but slowly. Far from any danger
a probability of .003 remains, and over an episode such remainders add up to more than a small limit. So all logits are
multiplied by the factor under which the observed costs are most likely.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.random as jr
import numpy as np
from numpy import ndarray as Array

from capax.core.types import Key
from capax.data.transitions import TransitionBuffer
from capax.kappa.binary import safety_margins
from capax.models import ensemble
from capax.models.ensemble import Ensemble, EnsembleSettings, Scaling

TRIED_STEPS = 1000
"""Transitions of the buffer that are predicted once more after a fit."""
MAX_SHARPNESS = 16.0
"""Largest factor. With 4, an agent that may risk .02 in an episode stays far from any danger, since .001 a step remains there."""
GRID = np.geomspace(1.0, MAX_SHARPNESS, 41)


def sharpness(logit: Array, cost: Array) -> float:
    """The factor from 1 to MAX_SHARPNESS with the greatest likelihood Σ log σ(±a·logit)."""
    if not np.isfinite(logit).all():
        return 1.0
    signed = np.where(cost > 0.0, -logit, logit)
    return float(min(GRID, key=lambda factor: np.logaddexp(0.0, factor * signed).sum()))


def sharpened(
    params: tuple[Ensemble, Scaling], buffer: TransitionBuffer, key: Key, settings: EnsembleSettings
) -> Scaling:
    """The scaling with which the model's logits fit the costs of the buffer best."""
    index = np.asarray(jr.randint(key, (TRIED_STEPS,), 0, buffer.size))
    logit, _ = _predicted(params, buffer.obs[index], buffer.action[index], key, settings)
    scale, logit = params[1], np.asarray(logit)
    return scale._replace(target_sd=scale.target_sd.at[-1].multiply(sharpness(logit, buffer.cost[index])))


def step_margins(
    params: tuple[Ensemble, Scaling], buffer: TransitionBuffer, key: Key, settings: EnsembleSettings
) -> tuple[float, ...]:
    """Margins of good steps of the buffer, for rules that choose κ by them where costs count as flags."""
    index = np.asarray(jr.randint(key, (TRIED_STEPS,), 0, buffer.size))
    logit, u = _predicted(params, buffer.obs[index], buffer.action[index], key, settings)
    return safety_margins(np.asarray(logit), np.asarray(u), buffer.cost[index], buffer.reward[index])


@partial(jax.jit, static_argnames="settings")
def _predicted(params: Any, obs: Any, action: Any, key: Key, settings: EnsembleSettings) -> tuple[Any, Any]:
    """Logits and uncertainties of single steps, averaged over particles."""

    def imagine_step(obs: Any, action: Any) -> tuple[Any, Any]:
        imagined = ensemble.rollout(params, obs, action[None, None], key, settings=settings)
        return imagined.cost.mean(), imagined.uncertainty.mean()

    return jax.vmap(imagine_step)(obs, action)
