"""What do visit counts say about a finite MDP's transitions?"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int
from numpy import ndarray as Array

from capax.errors import InputError
from capax.tabular.cmdp import DENSE_STATES


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
            if actions is None or prior.shape[0] != prior.shape[1] * actions:
                raise InputError(f"a sparse prior of shape {prior.shape} needs actions=A with shape [S*A, S].")
            prior = sp.csr_array(prior)
            counts: Any = sp.csr_array(prior.shape)
            entries = prior.data
        else:
            try:
                prior = np.asarray(prior, dtype=np.float64)
            except (TypeError, ValueError):
                raise InputError("prior is not an array of numbers: give pseudo-counts of shape [S, A, S].") from None
            if prior.ndim != 3 or prior.shape[0] != prior.shape[2]:
                raise InputError(f"prior has shape {prior.shape}: give pseudo-counts of shape [S, A, S].")
            counts, actions, entries = np.zeros(prior.shape), prior.shape[1], prior
        if not np.isfinite(entries).all() or entries.min(initial=0.0) < 0.0:
            raise InputError("prior has a negative or non-finite entry: give pseudo-counts >= 0.")
        if np.asarray(prior.sum(axis=-1)).min() <= 0.0:
            raise InputError("prior leaves a pair (s, a) without any mass: give each pair a pseudo-count > 0.")
        return cls(counts, prior, actions)

    def fit(self, s: Int[Array, " T"], a: Int[Array, " T"], s_next: Int[Array, " T"]) -> CountModel:
        """The model with these transitions added."""
        s, a, s_next = np.asarray(s), np.asarray(a), np.asarray(s_next)
        if not (s.shape == a.shape == s_next.shape and all(np.issubdtype(x.dtype, np.integer) for x in (s, a, s_next))):
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


def neighbour_prior(successors: Int[Array, "S K"], actions: int, each: float = 1.0) -> Any:
    """`each` pseudo-counts for each of the K cells that a step from s can reach:  T̂ = (count + each)/(n + K·each).

    Dense `[S, A, S]`, or sparse `[S*A, S]` for many states.
    """
    S, K = successors.shape
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
    (S, K), A = successors.shape, model.actions
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
    return np.full((states, actions, states), mass / states)


def self_loop_prior(states: int, actions: int, mass: float = 1.0) -> Float[Array, "S A S"]:
    """`mass` pseudo-counts on staying: what was never tried is taken to do nothing."""
    return np.repeat(mass * np.eye(states)[:, None, :], actions, axis=1)
