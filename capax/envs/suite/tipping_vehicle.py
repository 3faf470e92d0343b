"""A narrow vehicle that tips over unless it steers: unstable, and tipping ends the episode.

The vehicle leans by θ and falls over like an inverted pendulum. Steering at speed v pushes it upright again. Each unit of
speed earns reward; the road shakes a fast vehicle more. A step that leans too far costs 1.
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray as Array

from capax.envs.suite.base import Change, SuiteEnv

DT = 0.05
LEAN, TIP = 0.25, 0.8
"""Lean (rad) above which a step costs 1, and at which the vehicle tips over."""


class TippingVehicle(SuiteEnv):
    """State: speed v, lean θ, lean rate ω. Actions: throttle and steering."""

    obs_dim, low, high, steps = 3, (-1.0, -1.0), (1.0, 1.0), 120

    def start(self, random: np.random.Generator) -> Array:
        return np.array([1.0, random.uniform(-0.05, 0.05), random.uniform(-0.05, 0.05)])

    def advance(self, state: Array, action: Array, random: np.random.Generator) -> Change:
        v, lean, rate = state
        throttle, steering = action
        shake = 0.035 * v * random.normal()
        rate += DT * (6.0 * np.sin(lean) - 4.0 * v * steering) + shake
        lean += DT * rate
        v = max(0.0, v + DT * (3.0 * throttle - 0.6 * v - 0.5 * abs(v * steering)))
        return Change(np.array([v, lean, rate]), v * DT * 4.0, float(abs(lean) > LEAN), bool(abs(lean) > TIP))

    def reference(self) -> Array:
        v, lean, rate = self.state
        steering = (16.0 * lean + 6.0 * rate) / (4.0 * max(v, 0.5))
        return np.array([0.8 if abs(lean) < 0.12 else -0.5, np.clip(steering, -1.0, 1.0)])
