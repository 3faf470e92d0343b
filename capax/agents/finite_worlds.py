"""Agents for a finite world. They know all of it but the transitions."""

from __future__ import annotations

from capax.agents.calibrated import Calibrated
from capax.agents.tabular import KnownWorld, TabularCAP
from capax.core.contracts import PlanningRule
from capax.core.types import Spec
from capax.tabular.counts import neighbour_prior
from capax.tabular.gridworld import World

LIMIT = 0.1
"""Cost limit of a world, normalised (paper, appendix)."""
SAMPLES = 500
"""Steps between two policies (paper: 500)."""
RESTARTS = 10
"""Episodes that the calibrated agent divides its samples into, or the next smaller divisor."""
JEFFREYS = 0.5
"""Pseudo-counts per neighbour of the calibrated agent: Jeffreys' prior for a multinomial."""


def cap_agent(world: World, spec: Spec, rule: PlanningRule) -> TabularCAP:
    """CAP with exact plans, and one pseudo-count for each neighbour."""
    return TabularCAP(_known_world(world, 1.0), spec, rule)


def calibrated_agent(world: World, spec: Spec, iterations: int) -> Calibrated:
    """The calibrated agent; its exploration ends after `iterations` policies."""
    return Calibrated(_known_world(world, JEFFREYS), spec, world.successors, explore_fall=iterations)


def _known_world(world: World, pseudo_count: float) -> KnownWorld:
    """The world as an agent knows it, with `pseudo_count` for each neighbour as its prior."""
    cmdp = world.cmdp
    return KnownWorld(cmdp.r, cmdp.c, cmdp.mu0, neighbour_prior(world.successors, cmdp.A, pseudo_count))
