"""Random CMDPs and policies that the tests share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from capax.agents.tabular import KnownWorld
from capax.tabular import CMDP, World, neighbour_prior

TRANSITION_KINDS = ("mixing", "peaked", "sparse", "chain", "split")
"""Kinds of random transitions, see `random_cmdp`."""


def random_cmdp(
    rng: np.random.Generator, S: int = 6, A: int = 3, gamma: float = 0.9, kind: str = "mixing", digits: int = 16
) -> CMDP:
    """A random CMDP with transitions of this kind. r and c are rounded to `digits`; few digits make ties."""
    P = np.zeros((S, A, S))
    if kind in ("mixing", "peaked"):
        P = rng.dirichlet(np.full(S, 5.0 if kind == "mixing" else 0.05), size=(S, A))
    else:
        for s, a in np.ndindex(S, A):
            cells = np.arange(S)
            if kind == "split":  # two halves that do not reach each other; the first state is in one of them
                cells = cells[: (S + 1) // 2] if s < (S + 1) // 2 else cells[(S + 1) // 2 :]
            cells = rng.choice(cells, size=1 if kind == "chain" else min(2, len(cells)), replace=False)
            P[s, a, cells] = rng.dirichlet(np.ones(len(cells)))
    P /= P.sum(-1, keepdims=True)
    mu0 = np.eye(S)[0] if kind in ("chain", "split") else rng.dirichlet(np.ones(S))
    return CMDP(P, rng.random((S, A)).round(digits), rng.random((S, A)).round(digits), mu0, gamma)


def sparse_copy(cmdp: CMDP) -> CMDP:
    """The same CMDP with sparse transitions."""
    return replace(cmdp, P=sp.csr_array(cmdp.rows))


def random_policy(rng: np.random.Generator, cmdp: CMDP) -> np.ndarray:
    """Random action probabilities `[S, A]`."""
    return rng.dirichlet(np.full(cmdp.A, 0.5), size=cmdp.S)


def agent_knowledge(world: World, each: float = 1.0) -> KnownWorld:
    """What an agent knows about a world: all but its transitions."""
    cmdp = world.cmdp
    return KnownWorld(cmdp.r, cmdp.c, cmdp.mu0, neighbour_prior(world.successors, cmdp.A, each))


def two_doors(p: float, gamma: float = 0.9) -> CMDP:
    """State 0 leads to a free trap (1) with probability 1 − p, and to a trap that costs 1 per step (2) with p."""
    P = np.array([[[0, 1 - p, p]], [[0, 1, 0]], [[0, 0, 1]]], float)
    return CMDP(P=P, r=np.zeros((3, 1)), c=np.array([[0.0], [0.0], [1.0]]), mu0=np.array([1.0, 0, 0]), gamma=gamma)
