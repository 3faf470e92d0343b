"""Which episodes do rules learn from, here?"""

from __future__ import annotations

from typing import Any

import numpy as np

from capax.types import Episode, Spec

PLANNED: dict[str, Any] = dict(
    cost=[0.2, 0.3, 0.1], uncertainty=[1.0, 2.0, 1.0], first_cost=[0, 0, 0], first_uncertainty=[0, 0, 0],
    penalised=[0.4, 0.5, 0.3], feasible=[1.0, 1.0, 1.0], limit=[0.5, 0.5, 0.5],
)  # fmt: skip


def fabricated(spec: Spec, cost: Any, extras: dict[str, Any]) -> Episode:
    """An episode that paid `cost` after plans that said `extras`."""
    cost = np.asarray(cost, float)
    zeros = np.zeros((len(cost), 1))
    paid = float(spec.weights(len(cost)) @ cost)
    told = {f"plan_{name}": np.asarray(values, float) for name, values in extras.items()}
    return Episode(zeros, zeros, zeros[:, 0], cost, zeros, 0.0, paid, told, np.zeros(len(cost)))
