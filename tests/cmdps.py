"""The CMDPs and policies that the tests share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from capax.agents.tabular import Known
from capax.tabular import CMDP, World, neighbour_prior

KINDS = ("mixing", "peaked", "sparse", "chain", "split")


def random_cmdp(
    rng: np.random.Generator, S: int = 6, A: int = 3, gamma: float = 0.9, kind: str = "mixing", digits: int = 16
) -> CMDP:
    """A random CMDP. `kind` says what P is like; r and c are rounded to `digits`, so that few digits make ties."""
    P = np.zeros((S, A, S))
    if kind in ("mixing", "peaked"):
        P = rng.dirichlet(np.full(S, 5.0 if kind == "mixing" else 0.05), size=(S, A))
    else:
        for s, a in np.ndindex(S, A):
            cells = np.arange(S)
            if kind == "split":  # two halves that do not reach each other, the start in one of them
                cells = cells[: (S + 1) // 2] if s < (S + 1) // 2 else cells[(S + 1) // 2 :]
            cells = rng.choice(cells, size=1 if kind == "chain" else min(2, len(cells)), replace=False)
            P[s, a, cells] = rng.dirichlet(np.ones(len(cells)))
    P /= P.sum(-1, keepdims=True)
    mu0 = np.eye(S)[0] if kind in ("chain", "split") else rng.dirichlet(np.ones(S))
    return CMDP(P, rng.random((S, A)).round(digits), rng.random((S, A)).round(digits), mu0, gamma)


def thin(cmdp: CMDP) -> CMDP:
    """The same CMDP with sparse transitions."""
    return replace(cmdp, P=sp.csr_array(cmdp.rows))


def random_policy(rng: np.random.Generator, cmdp: CMDP) -> np.ndarray:
    return rng.dirichlet(np.full(cmdp.A, 0.5), size=cmdp.S)


def told(world: World, each: float = 1.0) -> Known:
    """What an agent is told of a world."""
    cmdp = world.cmdp
    return Known(cmdp.r, cmdp.c, cmdp.mu0, neighbour_prior(world.successors, cmdp.A, each))


def doors(p: float, gamma: float = 0.9) -> CMDP:
    """From the start, state 0, to a free trap (1) with 1 − p, or to one that costs 1 a step for ever (2) with p."""
    P = np.array([[[0, 1 - p, p]], [[0, 1, 0]], [[0, 0, 1]]], float)
    return CMDP(P=P, r=np.zeros((3, 1)), c=np.array([[0.0], [0.0], [1.0]]), mu0=np.array([1.0, 0, 0]), gamma=gamma)
