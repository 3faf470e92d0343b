"""What do visit counts say about a finite MDP's transitions?"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int
from numpy import ndarray as Array

from capax.checks import between, numbers, room, whole
from capax.errors import InputError
from capax.tabular.cmdp import DENSE_STATES

MOST_MASS = 1e100
LEAST_MASS = 1e-100
"""Pseudo-counts of a pair, at most and at least: their sums and ratios are floats."""
as_mass = between(1e10 * LEAST_MASS, 1e-10 * MOST_MASS)


class CountModel(NamedTuple):
    """Transition counts over a Dirichlet prior:  T̂(s'|s,a) = (count + prior) / (n + m),  m the prior's mass of a pair.

    `counts` and `prior` are dense `[S, A, S]`, or sparse `[S*A, S]` for large S; every pair needs m > 0.
    """

    counts: Any
    prior: Any
    actions: int
    """A, which the sparse form does not show."""

    @classmethod
    def init(cls, prior: Any, actions: int | None = None) -> CountModel:
        """No data yet. `prior` holds pseudo-counts; a sparse one needs the number of `actions`."""
        if sp.issparse(prior):
            A = 0 if actions is None else whole("actions", actions)
            if prior.ndim != 2 or prior.shape != (prior.shape[1] * A, prior.shape[1]) or 0 in prior.shape:
                raise InputError(f"a sparse prior of shape {prior.shape} needs actions=A with shape [S*A, S].")
            if prior.dtype.kind not in "biuf":
                raise InputError(f"sparse prior holds {prior.dtype}: give pseudo-counts >= 0.")
            prior = sp.csr_array(prior, dtype=np.float64)
            counts: Any = sp.csr_array(prior.shape)
            entries = prior.data
        else:
            try:
                prior = numbers(prior)
            except Exception:  # whatever an object does when it is asked for its numbers
                raise InputError("prior is not an array of numbers: give pseudo-counts of shape [S, A, S].") from None
            if prior.ndim != 3 or prior.shape[0] != prior.shape[2] or 0 in prior.shape:
                raise InputError(f"prior has shape {prior.shape}: give pseudo-counts of shape [S, A, S], S and A >= 1.")
            counts, A, entries = np.zeros(prior.shape), prior.shape[1], prior
            if actions is not None and whole("actions", actions) != A:
                raise InputError(f"actions is {actions}, but prior has shape {prior.shape}: give {A}, or None.")
        if not (entries <= MOST_MASS).all() or entries.min(initial=0.0) < 0.0:
            raise InputError(
                f"prior has a negative, huge or non-finite entry: give pseudo-counts from 0 to {MOST_MASS:g}."
            )
        if np.asarray(prior.sum(axis=-1)).min() < LEAST_MASS:
            raise InputError("prior leaves a pair (s, a) without any mass: give each pair a pseudo-count > 0.")
        return cls(counts, prior, A)

    def fit(self, s: Int[Array, " T"], a: Int[Array, " T"], s_next: Int[Array, " T"]) -> CountModel:
        """The model with these transitions added."""
        s, a, s_next = (_indices(x) for x in (s, a, s_next))
        if not s.shape == a.shape == s_next.shape:
            raise InputError("s, a and s_next are not whole numbers of one length: give one index of each per step.")
        S = self.prior.shape[-1]
        for name, index, size in (("s", s, S), ("a", a, self.actions), ("s_next", s_next, S)):
            if index.astype(np.uint64).max(initial=0) >= size:  # a negative number becomes a huge one
                raise InputError(f"{name} holds {index.min()} to {index.max()}: give indices from 0 to {size - 1}.")
        if sp.issparse(self.prior):
            seen = sp.csr_array((np.ones(len(s)), (s * self.actions + a, s_next)), shape=self.prior.shape)
            return self._replace(counts=self.counts + seen)
        counts = self.counts.copy()
        np.add.at(counts, (s, a, s_next), 1.0)
        return self._replace(counts=counts)

    @property
    def n(self) -> Float[Array, "S A"]:
        """Visits of each pair."""
        return np.asarray(self.counts.sum(axis=-1)).reshape(-1, self.actions)

    @property
    def mass(self) -> Float[Array, "S A"]:
        """Prior mass m of each pair."""
        return np.asarray(self.prior.sum(axis=-1)).reshape(-1, self.actions)

    @property
    def P(self) -> Any:
        """The estimate T̂, in the shape that `CMDP` takes."""
        total = self.counts + self.prior
        if sp.issparse(total):
            return sp.diags_array(1.0 / np.asarray(total.sum(axis=1)).ravel()) @ total
        total /= total.sum(axis=-1, keepdims=True)
        return total


def _indices(value: Any) -> Int[Array, " T"]:
    """Whole numbers in a row."""
    try:
        array = np.asarray(value)
    except Exception:  # whatever an object does when it is asked for its numbers
        array = np.zeros(())
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError("s, a and s_next are not whole numbers of one length: give one index of each per step.")
    return array


def _cells(successors: Any) -> Int[Array, "S K"]:
    """The cells that a step can reach, checked."""
    try:
        array = np.asarray(successors)
    except Exception:
        array = np.zeros(())
    if array.ndim != 2 or array.dtype.kind not in "iu" or 0 in array.shape:
        raise InputError("successors is no table of whole numbers: give the cells that a step can reach, shape [S, K].")
    if array.min() < 0 or array.max() >= len(array):
        raise InputError(
            f"successors holds {array.min()} to {array.max()}: give indices of states from 0 to {len(array) - 1}."
        )
    return array


def _sizes(states: Any, actions: Any) -> tuple[int, int]:
    """S and A of a dense prior, checked."""
    sizes = {"states": whole("states", states), "actions": whole("actions", actions)}
    room(sizes, "states", "actions", "states", each=8)
    return sizes["states"], sizes["actions"]


def neighbour_prior(successors: Int[Array, "S K"], actions: int, each: float = 1.0) -> Any:
    """`each` pseudo-counts for each of the K cells that a step from s can reach:  T̂ = (count + each)/(n + K·each).

    Dense `[S, A, S]`, or sparse `[S*A, S]` for many states.
    """
    successors, each = _cells(successors), as_mass("each", each)
    S, K = successors.shape
    actions = whole("actions", actions)
    room({"states": S, "actions": actions, "successors": K}, "states", "actions", "successors", each=24)
    cells = np.repeat(successors, actions, axis=0)
    rows = np.repeat(np.arange(S * actions), K)
    prior = sp.csr_array(sp.coo_array((np.full(rows.size, each), (rows, cells.ravel())), shape=(S * actions, S)))
    return prior.toarray().reshape(S, actions, S) if S <= DENSE_STATES else prior


def pooled_prior(model: CountModel, successors: Int[Array, "S K"]) -> Float[Array, "S A S"]:
    """A prior of the same mass in each pair, spread over the K directions as the same action turned out in all cells.

    Only the shape of the prior is shared: a pair's own counts outweigh it as soon as there are more than its mass. Cells
    where two directions lead to the same place do not tell which one it was, and are left out of the sum.
    """
    if sp.issparse(model.prior):
        raise InputError("a pooled prior needs dense counts: use it for worlds of up to a few hundred states.")
    successors = _cells(successors)
    (S, K), A = successors.shape, model.actions
    if len(model.prior) != S:
        raise InputError(f"successors has {S} rows: give one for each of the {len(model.prior)} states.")
    telling = (np.diff(np.sort(successors, axis=1), axis=1) > 0).all(1)
    by_direction = np.take_along_axis(model.counts, np.broadcast_to(successors[:, None, :], (S, A, K)), axis=2)
    total = by_direction[telling].sum(0) + 0.5  # [A, K], Jeffreys' prior for each action
    share = total / total.sum(1, keepdims=True)
    prior, s, a = np.zeros(model.prior.shape), np.arange(S)[:, None], np.arange(A)[None, :]
    for direction in range(K):
        prior[s, a, successors[:, direction, None]] += model.mass * share[:, direction]
    return prior


def uniform_prior(states: int, actions: int, mass: float = 1.0) -> Float[Array, "S A S"]:
    """`mass` pseudo-counts, spread over all states: nothing is known of where a step may lead."""
    states, actions = _sizes(states, actions)
    return np.full((states, actions, states), as_mass("mass", mass) / states)


def self_loop_prior(states: int, actions: int, mass: float = 1.0) -> Float[Array, "S A S"]:
    """`mass` pseudo-counts on staying: what was never tried is taken to do nothing."""
    states, actions = _sizes(states, actions)
    return np.repeat(as_mass("mass", mass) * np.eye(states)[:, None, :], actions, axis=1)
