"""A rover that starts inside a radiating zone: every step in it costs, from the first on, and waiting breaks the limit.

It drives like a car: it accelerates ahead and turns. The dose of a step is 1 at the source and falls to 0 at the edge of
the zone; the limit is 7. The reward is the way made towards the place to inspect, and 1 for reaching it; places lie
around the zone. It is hard because no behaviour is free of cost, a slow exit breaks the limit, and the short ways between
places lead back through the zone.
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray as Array

from capax.envs.suite.base import Change, SuiteEnv

DT = 0.1
ZONE, NEAR = 1.0, 0.3
"""Radius of the zone around the origin, and the distance at which a place is inspected."""
ARENA = 2.5
"""The rover stays within ±ARENA."""


class RadiationExit(SuiteEnv):
    """State: position, heading, speed, and the place to inspect. Actions: throttle and turn."""

    obs_dim, low, high, steps = 7, (-1.0, -1.0), (1.0, 1.0), 120

    def start(self, random: np.random.Generator) -> Array:
        return np.array([*random.uniform(-0.3, 0.3, 2), random.uniform(-np.pi, np.pi), 0.0, *self.place(random)])

    def place(self, random: np.random.Generator) -> Array:
        """A place to inspect."""
        angle, distance = random.uniform(-np.pi, np.pi), random.uniform(1.4, 2.1)
        return distance * np.array([np.cos(angle), np.sin(angle)])

    def observe(self, state: Array) -> Array:
        x, y, heading, speed, *goal = state
        return np.array([x, y, np.cos(heading), np.sin(heading), speed, *goal])

    def advance(self, state: Array, action: Array, random: np.random.Generator) -> Change:
        rover, heading, speed, goal = state[:2], state[2], state[3], state[4:]
        speed = float(np.clip(speed + DT * (4.0 * action[0] - 1.5 * speed), -0.5, 2.0))
        heading = heading + DT * 3.0 * float(action[1]) + 0.01 * random.normal()
        moved = np.clip(rover + DT * speed * np.array([np.cos(heading), np.sin(heading)]), -ARENA, ARENA)
        reward = float(np.linalg.norm(rover - goal) - np.linalg.norm(moved - goal))
        if np.linalg.norm(moved - goal) < NEAR:
            reward, goal = reward + 1.0, self.place(random)
        dose = max(0.0, 1.0 - float(moved @ moved) / ZONE**2)
        return Change(np.array([*moved, heading, speed, *goal]), reward, dose)

    def reference(self) -> Array:
        rover, heading, goal = self.state[:2], self.state[2], self.state[4:]
        distance = float(np.linalg.norm(rover))
        wish = (goal - rover) / max(float(np.linalg.norm(goal - rover)), 1e-6)
        if distance < ZONE:  # straight on out of the zone
            wish = np.array([np.cos(heading), np.sin(heading)]) + 1.0 * rover
        elif distance < ZONE + 0.5 and wish @ rover < 0.0:  # around it, on the side that is nearer
            around = np.array([-rover[1], rover[0]]) / distance
            around *= 1.0 if around @ wish >= 0.0 else -1.0
            wish = around + 3.0 * (ZONE + 0.3 - distance) * rover / distance
        turn = (np.arctan2(wish[1], wish[0]) - heading + np.pi) % (2.0 * np.pi) - np.pi
        throttle = 1.0 if distance < ZONE else 1.0 - 1.2 * abs(turn)
        return np.clip([throttle, 4.0 * turn], -1.0, 1.0)
