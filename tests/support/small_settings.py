"""Small settings by kind of method: an episode takes milliseconds with them. Tests change what they are about."""

from __future__ import annotations

from typing import Any

VECTOR: dict[str, Any] = dict(
    hidden=8, layers=1, members=2, particles=4, population=12, elites=3, iterations=2, horizon=4, batch=16,
    least_updates=5, most_updates=10, start_steps=20, fit_every=10,
)  # fmt: skip
"""An ensemble that learns a little, and plans."""
TINY_VECTOR: dict[str, Any] = dict(
    hidden=4, layers=1, members=2, particles=2, population=4, elites=2, iterations=1, horizon=2, batch=4,
    least_updates=1, most_updates=2, start_steps=6, fit_every=3,
)  # fmt: skip
"""An ensemble that goes through all the motions. What it learns does not matter."""
IMAGE: dict[str, Any] = dict(
    deter=6, stoch=3, hidden=6, depth=1, members=2, batch=2, chunk=4, updates=2, horizon=3, iterations=2, population=8,
    elites=2, start_steps=16,
)  # fmt: skip
"""A latent model of images."""
GRADIENT: dict[str, Any] = dict(batch=20, minibatch=8, epochs=2, hidden=8)
"""A policy-gradient method."""
