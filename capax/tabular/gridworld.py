"""Random gridworlds, drawn as in the paper's experiment."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int
from numpy import ndarray as Array

from capax.core.checks import between, short_repr, whole, word
from capax.core.errors import InputError
from capax.tabular.cmdp import CMDP, MAX_DENSE_STATES

MAX_SIZE = 8192
"""Largest number of cells per side. The transitions of such a world take 64 GiB."""
SLIPS = ("any", "other", "torus")
"""Kinds of slip, see `gridworld`."""
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
"""The actions up, down, left and right as (row, column) steps."""


class World(NamedTuple):
    """A gridworld: its true CMDP and its geometry. An agent may know the geometry."""

    cmdp: CMDP
    successors: Int[Array, "S 4"]
    """The cell that each of the four moves leads to. A move into a wall leads back to the cell itself."""
    size: int
    """Cells per side."""


def gridworld(
    rng: np.random.Generator, *, size: int = 8, slip: str = "any", slip_probability: float = 0.2, gamma: float = 0.99
) -> World:
    """Draw a random gridworld as in the paper: mean rewards and costs ~ Beta(1, 3) for each (s, a), uniform start.

    With probability `slip_probability` a move goes in a random direction. With `slip="any"` this is any of the four
    directions, with "other" one of the three other directions. "torus" is "any" on a grid whose edges are joined.
    """
    if not isinstance(rng, np.random.Generator):
        raise InputError(f"rng is {short_repr(rng)}: give numpy.random.default_rng(seed).")
    size, slip = whole("size", size, most=MAX_SIZE), word("slip", slip, SLIPS)
    slip_probability = between(0.0, 1.0)("slip_probability", slip_probability)
    S, A = size * size, len(MOVES)
    successors = _successors(size, torus=slip == "torus")
    cmdp = CMDP(
        P=_transition_probabilities(successors, _direction_probabilities(slip, slip_probability)),
        r=rng.beta(1.0, 3.0, size=(S, A)),
        c=rng.beta(1.0, 3.0, size=(S, A)),
        mu0=np.full(S, 1.0 / S),
        gamma=gamma,
    )
    return World(cmdp, successors, size)


def _direction_probabilities(slip: str, probability: float) -> Float[Array, "4 4"]:
    """Probability of moving in each direction (column) for each chosen direction (row)."""
    chosen = np.eye(4)
    if slip == "other":
        return (1.0 - probability) * chosen + probability * (1.0 - chosen) / 3.0
    return (1.0 - probability) * chosen + probability / 4.0


def _successors(size: int, torus: bool) -> Int[Array, "S 4"]:
    """The cell that each of the four moves leads to."""
    row, column = np.divmod(np.arange(size * size), size)
    cells = []
    for down, right in MOVES:
        to_row, to_column = row + down, column + right
        if torus:
            to_row, to_column = to_row % size, to_column % size
        else:
            to_row, to_column = np.clip(to_row, 0, size - 1), np.clip(to_column, 0, size - 1)
        cells.append(to_row * size + to_column)
    return np.stack(cells, axis=1)


def _transition_probabilities(successors: Int[Array, "S 4"], directions: Float[Array, "4 4"]) -> Any:
    """Transition probabilities P(s'|s,a): dense `[S, 4, S]`, or sparse `[S*4, S]` for a large grid."""
    S = len(successors)
    rows = np.repeat(np.arange(S * 4), 4)
    entries = (np.tile(directions, (S, 1)).ravel(), (rows, np.repeat(successors, 4, axis=0).ravel()))
    P = sp.csr_array(sp.coo_array(entries, shape=(S * 4, S)))
    return P.toarray().reshape(S, 4, S) if S <= MAX_DENSE_STATES else P
