"""A car that keeps its lane on a winding road: a step outside the lane costs 1, and the limit is 0.

The reward is the way made (m). Steering turns the car, but the tyres hold v² times the curvature only up to a limit, so a
bend has a greatest speed, and the car must brake before it enters. The next bend and the distance to it are observed. It
is hard because each bend asks anew for the right speed, a fast car leaves the lane within a few steps, and not one step
outside is allowed.
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray as Array

from capax.envs.suite.base import Change, SuiteEnv

DT = 0.1
LANE = 1.0
"""Distance (m) from the middle of the lane above which a step costs 1."""
GRIP = 5.0
"""Greatest acceleration (m/s²) to the side."""


class LaneKeeping(SuiteEnv):
    """State: offset, heading against the road, speed, curvature, distance to the next piece of road, its curvature."""

    obs_dim, low, high, steps = 6, (-5.0, -1.0), (3.0, 1.0), 120

    def start(self, random: np.random.Generator) -> Array:
        heading = random.uniform(-0.02, 0.02)
        return np.array([random.uniform(-0.3, 0.3), heading, random.uniform(4.0, 7.0), 0.0, *self.piece(random, 0.0)])

    def piece(self, random: np.random.Generator, curvature: float) -> tuple[float, float]:
        """Distance to the end of a piece of road that has begun, and the curvature of the one after it."""
        straight = curvature != 0.0 and random.random() < 0.5
        bend = 0.0 if straight else random.choice([-1.0, 1.0]) * random.uniform(0.01, 0.05)
        return random.uniform(12.0, 25.0), bend

    def advance(self, state: Array, action: Array, random: np.random.Generator) -> Change:
        offset, heading, speed, curvature, ahead, bend = state
        throttle, steering = action
        drag = 0.05 if abs(offset) <= LANE else 0.5  # beside the lane is grass
        speed = float(np.clip(speed + DT * (throttle - drag * speed), 1.0, 20.0))
        hold = GRIP / speed**2
        turned = float(np.clip(0.12 * steering, -hold, hold))
        heading += DT * speed * (turned - curvature) + 0.004 * random.normal()
        heading = float(np.clip(heading, -1.2, 1.2))
        offset = float(np.clip(offset + DT * speed * np.sin(heading), -10.0, 10.0))
        way = DT * speed * np.cos(heading)
        ahead -= way
        if ahead <= 0.0:
            curvature = bend
            ahead, bend = self.piece(random, curvature)
        return Change(np.array([offset, heading, speed, curvature, ahead, bend]), way, float(abs(offset) > LANE))

    def reference(self) -> Array:
        offset, heading, speed, curvature, ahead, bend = self.state
        fastest = min(np.sqrt(0.7 * GRIP / max(abs(bend), 1e-3)), 14.0)
        # slow enough in this piece, and for braking by 3 m/s² before the next one
        wish = min(
            np.sqrt(0.7 * GRIP / max(abs(curvature), 1e-3)), np.sqrt(fastest**2 + 2.0 * 3.0 * max(ahead - 2.0, 0.0))
        )
        turned = curvature - 0.03 * offset - 0.25 * heading
        return np.clip([(wish - speed) / DT / 2.0, turned / 0.12], self.low, self.high)
