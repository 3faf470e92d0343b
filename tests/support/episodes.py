"""Episodes with chosen costs and plans, for tests of the rules' feedback."""

from __future__ import annotations

from typing import Any

import numpy as np

from capax.core.types import Episode, Spec

PLANS: dict[str, Any] = dict(
    cost=[0.2, 0.3, 0.1], uncertainty=[1.0, 2.0, 1.0], first_cost=[0, 0, 0], first_uncertainty=[0, 0, 0],
    penalised=[0.4, 0.5, 0.3], feasible=[1.0, 1.0, 1.0], limit=[0.5, 0.5, 0.5],
)  # fmt: skip
"""Metrics of the plans of three steps."""


def planned_episode(spec: Spec, cost: Any, plans: dict[str, Any]) -> Episode:
    """An episode with these costs, whose plans reported these metrics, one number for each step."""
    cost = np.asarray(cost, float)
    zeros = np.zeros((len(cost), 1))
    paid = float(spec.cost_weights(len(cost)) @ cost)
    extras = {f"plan_{name}": np.asarray(values, float) for name, values in plans.items()}
    return Episode(zeros, zeros, zeros[:, 0], cost, zeros, 0.0, paid, extras, np.zeros(len(cost)))
