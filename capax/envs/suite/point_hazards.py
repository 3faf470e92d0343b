"""A point robot that goes to a goal around hazard discs. A step inside a disc costs 1.

Coming nearer to the goal earns reward, and so does each step at it. Cutting through a disc is shorter, and a few steps of
it are allowed.
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray as Array

from capax.envs.suite.base import Change, SuiteEnv

DT = 0.1
HAZARDS = np.array([[0.0, 0.0], [1.1, 0.9], [-1.1, 0.9], [0.0, -1.3]])
RADIUS, GOAL_RADIUS = 0.4, 0.3
ARENA = 2.0
"""The robot stays within ±ARENA."""


class PointHazards(SuiteEnv):
    """State: position, velocity, goal, which is observed relative to the robot. The action is a force."""

    obs_dim, low, high, steps = 6, (-1.0, -1.0), (1.0, 1.0), 100

    def start(self, random: np.random.Generator) -> Array:
        return np.concatenate([self.free(random), np.zeros(2), self.free(random)])

    def free(self, random: np.random.Generator) -> Array:
        """A place that is clear of the hazards."""
        while True:
            place = random.uniform(-0.9 * ARENA, 0.9 * ARENA, 2)
            if np.linalg.norm(HAZARDS - place, axis=1).min() > RADIUS + 0.35:
                return place

    def observe(self, state: Array) -> Array:
        place, speed, goal = np.split(state, 3)
        return np.concatenate([place, speed, goal - place])

    def advance(self, state: Array, action: Array, random: np.random.Generator) -> Change:
        place, speed, goal = np.split(state, 3)
        speed = 0.9 * speed + DT * 3.0 * action
        moved = np.clip(place + DT * speed, -ARENA, ARENA)
        reward = float(np.linalg.norm(place - goal) - np.linalg.norm(moved - goal))
        if np.linalg.norm(moved - goal) < GOAL_RADIUS:
            reward += 0.1
        cost = float(np.linalg.norm(HAZARDS - moved, axis=1).min() < RADIUS)
        return Change(np.concatenate([moved, speed, goal]), reward, cost)

    def reference(self) -> Array:
        place, speed, goal = np.split(self.state, 3)
        wish = (goal - place) / max(float(np.linalg.norm(goal - place)), 1e-6)
        for hazard in HAZARDS:
            offset = place - hazard
            distance = float(np.linalg.norm(offset))
            if distance < RADIUS + 0.45 and wish @ offset < 0.0:  # go around, on the side that is nearer
                around = np.array([-offset[1], offset[0]]) / distance
                around *= 1.0 if around @ wish >= 0.0 else -1.0
                wish = around + 1.2 * (RADIUS + 0.2 - distance) * offset / distance * 3.0
        wish = wish / max(float(np.linalg.norm(wish)), 1e-6) * min(1.0, 1.5 * float(np.linalg.norm(goal - place)))
        return np.clip(2.5 * (1.0 * wish - speed), -1.0, 1.0)
