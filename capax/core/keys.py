"""Random keys of an episode: of its environment, of its actions, and of each of its steps."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr

from capax.core.types import Key

BLOCK_STEPS = 50
"""Steps whose keys are made in one call."""


class StepKeys:
    """A key for each step of an episode, `jr.fold_in(key, step)`. Keys are made in blocks, which delays plans less."""

    def __init__(self, key: Key) -> None:
        self._key, self._first = key, -BLOCK_STEPS
        self._block: tuple[Key, ...] = ()

    def __call__(self, step: int) -> Key:
        if not 0 <= step - self._first < BLOCK_STEPS:
            self._first, self._block = step, _step_keys(self._key, step)
        return self._block[step - self._first]


@jax.jit
def _step_keys(key: Key, first: int) -> tuple[Key, ...]:
    return tuple(jax.vmap(jr.fold_in, (None, 0))(key, first + jnp.arange(BLOCK_STEPS)))


@jax.jit
def split_episode_key(key: Key) -> tuple[Any, Key]:
    """The environment's seed and the actions' key of an episode. Nothing else splits the two streams."""
    k_env, k_act = jr.split(key)
    return jr.bits(k_env, dtype=jnp.uint32) >> 1, k_act
