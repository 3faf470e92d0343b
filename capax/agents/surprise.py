"""Learning within an episode: a cost that was not foreseen is learned from before the next step.

Who drives into a zone that the model believes to be free pays in every step, and without this would plan to stay.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy import ndarray as Array

from capax.models import cost_networks
from capax.models.cost_networks import CostNetworks
from capax.models.ensemble import Ensemble, Scaling
from capax.models.ensemble_fit import bce

RECALLED_STEPS = 64
"""Latest steps of the episode that are learned from."""
UPDATES = 40
FORESEEN = 0.5
"""A cost with at least this probability was foreseen."""


class Recalled(NamedTuple):
    """The latest steps of an episode, in places 0, 1, … and then over the oldest."""

    obs: Array
    action: Array
    cost: Array
    steps: int
    """Steps so far."""

    @staticmethod
    def nothing(obs_dim: int, action_dim: int) -> Recalled:
        """No step yet."""
        obs, action = (np.zeros((RECALLED_STEPS, size), np.float32) for size in (obs_dim, action_dim))
        return Recalled(obs, action, np.zeros(RECALLED_STEPS, np.float32), 0)

    def with_step(self, obs: Any, action: Any) -> Recalled:
        """One step more, whose cost is not known yet."""
        place = self.steps % RECALLED_STEPS
        after = Recalled(self.obs.copy(), self.action.copy(), self.cost.copy(), self.steps + 1)
        after.obs[place], after.action[place], after.cost[place] = obs, action, 0.0
        return after

    def with_cost(self, cost: float) -> Recalled:
        """The cost of the latest step."""
        paid = self.cost.copy()
        paid[(self.steps - 1) % RECALLED_STEPS] = cost
        return self._replace(cost=paid)


def relearned(model: Ensemble, scale: Scaling, steps: Recalled, learning_rate: float) -> Ensemble:
    """The model after its networks for costs have learned from the steps of this episode."""
    used = (np.arange(RECALLED_STEPS) < steps.steps).astype(np.float32)
    costs = _learn(model.costs, scale, steps.obs, steps.action, steps.cost, used, learning_rate)
    return eqx.tree_at(lambda tree: tree.costs, model, costs)


@jax.jit
def _learn(
    net: CostNetworks, scale: Scaling, obs: Any, action: Any, cost: Any, used: Any, learning_rate: float
) -> CostNetworks:
    x = (jnp.concatenate([obs, action], -1) - scale.input_mean) / scale.input_sd
    x = jnp.broadcast_to(x, (len(net.biases[0]), *x.shape))
    kinds = [used * (cost > 0.0), used * (cost <= 0.0)]
    weight = sum(kind / jnp.maximum(kind.sum(), 1.0) for kind in kinds)
    adam = optax.adam(cost_networks.RATE * learning_rate)

    def update(_: Any, carry: Any) -> Any:
        net, optimiser = carry
        grads = jax.grad(lambda net: (weight * bce(cost_networks.logits(net, x), cost)).sum())(net)
        steps, optimiser = adam.update(grads, optimiser)
        return optax.apply_updates(net, steps), optimiser

    return jax.lax.fori_loop(0, UPDATES, update, (net, adam.init(net)))[0]
