"""The ensemble's functions, compiled once for the tests that share them."""

from __future__ import annotations

import jax

from capax.models import ensemble

init, predict = jax.jit(ensemble.init, static_argnums=(1, 2, 3)), jax.jit(ensemble.predict)
rollout = jax.jit(ensemble.rollout, static_argnames="settings")
