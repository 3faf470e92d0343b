"""Checks of observation and action spaces; a space that capax cannot handle is refused with advice."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy import ndarray as Array

from capax.core.actions import ActionBox
from capax.core.checks import numbers, one_line, short_repr
from capax.core.errors import InputError

SIDE = 64
"""Pixels of an image's side."""


def image_shape(space: Any, name: str) -> tuple[int, ...] | None:
    """The shape of image observations, or None if observations are not images."""
    if not isinstance(space, spaces.Box) or len(space.shape) != 3:
        return None
    if space.shape[:2] != (SIDE, SIDE) or space.shape[2] not in (1, 3):
        raise InputError(
            f"{name} has images of shape {space.shape}: make them ({SIDE}, {SIDE}, 3) or ({SIDE}, {SIDE}, 1), for "
            f"instance with gymnasium.wrappers.ResizeObservation(env, ({SIDE}, {SIDE}))."
        )
    in_unit_range = np.min(space.low) >= 0.0 and np.max(space.high) <= 1.0
    if space.dtype != np.uint8 and not (np.issubdtype(space.dtype, np.floating) and in_unit_range):
        raise InputError(
            f"{name} has images of {space.dtype} between {np.min(space.low):g} and {np.max(space.high):g}: give uint8, or "
            "floats from 0 to 1."
        )
    return tuple(int(n) for n in space.shape)


def observation_size(space: Any, name: str) -> int:
    """The number of values of a flat observation."""
    if not isinstance(space, spaces.Box):
        raise InputError(
            f"{name} has {type(space).__name__} observations: wrap it in gymnasium.wrappers.FlattenObservation."
        )
    if len(space.shape) != 1:
        raise InputError(
            f"{name} has observations of shape {space.shape}, which must be flat: wrap it in "
            "gymnasium.wrappers.FlattenObservation."
        )
    if space.shape[0] == 0:
        raise InputError(f"{name} has empty observations: give an environment that shows at least one number.")
    return int(space.shape[0])


def action_bounds(space: Any, name: str) -> tuple[Array, Array]:
    """The lower and the upper bound of each component of an action."""
    advice = "give an environment whose actions are a Box of floats with finite low and high."
    if not isinstance(space, spaces.Box):
        raise InputError(f"{name} has {type(space).__name__} actions: {advice}")
    if not isinstance(space.dtype, np.dtype) or not np.issubdtype(space.dtype, np.floating):
        raise InputError(f"{name} has {one_line(str(space.dtype), 60)} actions: {advice}")
    if not np.shape(space.low) == np.shape(space.high) == space.shape:
        raise InputError(f"{name} has bounds of actions that have not the shape of its actions: {advice}")
    low, high = (np.array(bound, np.float64).ravel() for bound in (space.low, space.high))
    if low.size == 0:
        raise InputError(f"{name} has empty actions: {advice}")
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise InputError(f"{name} has unbounded actions: {advice}")
    return low, high


def random_range(value: Any, box: ActionBox, name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The range of random actions, from the (low, high) that an environment is registered with; empty tuples for None."""
    if value is None:
        return (), ()
    try:
        low, high = (numbers(part).ravel() for part in value)
        fits = low.size == high.size == box.size and bool(((box.low <= low) & (low <= high) & (high <= box.high)).all())
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise InputError(
            f"{name} is registered with random_actions={short_repr(value)}: register (low, high) within its actions."
        )
    return tuple(low.tolist()), tuple(high.tolist())
