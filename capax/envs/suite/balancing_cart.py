"""A pole on a cart: unstable, and the episode ends when the pole falls. A step with the cart off the centre costs 1.

A force accelerates the cart by a, which tips the pole the other way: θ'' = (g sin θ - a cos θ) / l. Each step upright
earns 1, and up to 0.5 more near a target that swings to and fro, often beyond the edge. The limit allows 5 steps beyond
the edge. It is hard because the cart must first move away from where it should go, and the target leads it over the edge.
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray as Array

from capax.envs.suite.base import Change, SuiteEnv

DT = 0.05
EDGE, FALLEN = 0.5, 0.6
"""Distance (m) from the centre above which a step costs 1, and the angle (rad) at which the pole has fallen."""
LENGTH, SWING = 1.5, 0.8
"""Length of the pole (m), and frequency of the target (rad/s)."""


class BalancingCart(SuiteEnv):
    """State: place x and speed v of the cart, angle θ and rate ω of the pole, the target and its speed."""

    obs_dim, low, high, steps = 6, (-1.0,), (1.0,), 150

    def start(self, random: np.random.Generator) -> Array:
        size, phase = random.uniform(0.4, 0.9), random.uniform(0.0, 2.0 * np.pi)
        cart = [random.uniform(-0.3, 0.3), random.uniform(-0.2, 0.2)]
        pole = random.uniform(-0.05, 0.05, 2)
        return np.array([*cart, *pole, size * np.sin(phase), size * SWING * np.cos(phase)])

    def advance(self, state: Array, action: Array, random: np.random.Generator) -> Change:
        x, v, angle, rate, target, drift = state
        push = 6.0 * float(action[0]) - 0.2 * v
        rate += DT * (9.81 * np.sin(angle) - push * np.cos(angle)) / LENGTH + 0.01 * random.normal()
        angle += DT * rate
        v += DT * push
        x += DT * v
        drift -= DT * SWING**2 * target
        target += DT * drift
        fallen = bool(abs(angle) > FALLEN)
        reward = 0.0 if fallen else 1.0 + 0.5 * float(np.exp(-3.0 * abs(x - target)))
        return Change(np.array([x, v, angle, rate, target, drift]), reward, float(abs(x) > EDGE), fallen)

    def reference(self) -> Array:
        x, v, angle, rate, target, drift = self.state
        # follow the target on a smaller swing, with the lean that its acceleration asks for
        share = min(1.0, 0.3 / float(np.hypot(target, drift / SWING)))
        pull = -(SWING**2) * share * target
        gains = np.array([1.1, 1.55, 11.6, 4.3])
        push = gains @ [x - share * target, v - share * drift, angle - pull / 9.81, rate] + pull / 6.0
        return np.array([np.clip(push, -1.0, 1.0)])
