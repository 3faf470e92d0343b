"""Transition models learned from visit counts, and their Dirichlet priors."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int
from numpy import ndarray as Array

from capax.core.checks import between, check_size, numbers, sparse_problem, whole
from capax.core.errors import InputError
from capax.tabular.cmdp import MAX_DENSE_STATES

MAX_MASS = 1e100
"""Largest number of pseudo-counts of a pair. Sums and ratios of larger ones could overflow."""
MIN_MASS = 1e-100
"""Smallest number of pseudo-counts of a pair. Ratios of smaller ones could overflow."""
checked_mass = between(1e10 * MIN_MASS, 1e-10 * MAX_MASS)


class CountModel(NamedTuple):
    """Transition counts with a Dirichlet prior:  T̂(s'|s,a) = (count + prior) / (n + m),  m the prior mass of a pair.

    `counts` and `prior` are dense `[S, A, S]`, or sparse `[S*A, S]` for large S. Every pair needs m > 0.
    """

    counts: Any
    prior: Any
    actions: int
    """Number of actions A. The shape of a sparse array does not give it."""

    @classmethod
    def init(cls, prior: Any, actions: int | None = None) -> CountModel:
        """A model without data. `prior` holds pseudo-counts. A sparse prior also needs the number of `actions`."""
        if sp.issparse(prior):
            A = 0 if actions is None else whole("actions", actions)
            if prior.ndim != 2 or prior.shape != (prior.shape[1] * A, prior.shape[1]) or 0 in prior.shape:
                raise InputError(
                    f"sparse prior has shape {prior.shape} and actions is {actions}: give shape [S*A, S] and actions=A."
                )
            if prior.dtype.kind not in "biuf":
                raise InputError(f"sparse prior holds {prior.dtype}: give pseudo-counts >= 0.")
            if (problem := sparse_problem(prior)) is not None:
                raise InputError(f"sparse prior is no whole array, {problem}: give indices within its shape.")
            prior = sp.csr_array(prior, dtype=np.float64)
            counts: Any = sp.csr_array(prior.shape)
            entries = prior.data
        else:
            try:
                prior = numbers(prior)
            except Exception:  # a foreign object may raise anything when NumPy converts it
                raise InputError("prior is not an array of numbers: give pseudo-counts of shape [S, A, S].") from None
            if prior.ndim != 3 or prior.shape[0] != prior.shape[2] or 0 in prior.shape:
                raise InputError(f"prior has shape {prior.shape}: give pseudo-counts of shape [S, A, S], S and A >= 1.")
            counts, A, entries = np.zeros(prior.shape), prior.shape[1], prior
            if actions is not None and whole("actions", actions) != A:
                raise InputError(f"actions is {actions}, but prior has shape {prior.shape}: give {A}, or None.")
        if not (entries <= MAX_MASS).all() or entries.min(initial=0.0) < 0.0:
            raise InputError(
                f"prior has a negative, huge or non-finite entry: give pseudo-counts from 0 to {MAX_MASS:g}."
            )
        if np.asarray(prior.sum(axis=-1)).min() < MIN_MASS:
            raise InputError("prior has a pair (s, a) without mass: give each pair a pseudo-count > 0.")
        return cls(counts, prior, A)

    def fit(self, s: Int[Array, " T"], a: Int[Array, " T"], s_next: Int[Array, " T"]) -> CountModel:
        """A new model with the transitions (s, a, s_next) added to the counts."""
        s, a, s_next = (_indices(x) for x in (s, a, s_next))
        if not s.shape == a.shape == s_next.shape:
            raise InputError(
                "s, a and s_next are not integer arrays of the same length: give one index of each per step."
            )
        S = self.prior.shape[-1]
        for name, index, size in (("s", s, S), ("a", a, self.actions), ("s_next", s_next, S)):
            if index.astype(np.uint64).max(initial=0) >= size:  # as unsigned, a negative index is huge
                raise InputError(f"{name} holds {index.min()} to {index.max()}: give indices from 0 to {size - 1}.")
        if sp.issparse(self.prior):
            new_counts = sp.csr_array((np.ones(len(s)), (s * self.actions + a, s_next)), shape=self.prior.shape)
            return self._replace(counts=self.counts + new_counts)
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
        """The estimate T̂, in the shape that `CMDP` expects."""
        total = self.counts + self.prior
        if sp.issparse(total):
            return sp.diags_array(1.0 / np.asarray(total.sum(axis=1)).ravel()) @ total
        total /= total.sum(axis=-1, keepdims=True)
        return total


def _indices(value: Any) -> Int[Array, " T"]:
    """Check and return a one-dimensional array of integers."""
    try:
        array = np.asarray(value)
    except Exception:  # a foreign object may raise anything when NumPy converts it
        array = np.zeros(())
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError("s, a and s_next are not integer arrays of the same length: give one index of each per step.")
    return array


def _checked_successors(successors: Any) -> Int[Array, "S K"]:
    """Check and return a table `[S, K]` of the states that a step can reach."""
    try:
        array = np.asarray(successors)
    except Exception:
        array = np.zeros(())
    if array.ndim != 2 or array.dtype.kind not in "iu" or 0 in array.shape:
        raise InputError("successors is not an integer table: give the states that a step can reach, shape [S, K].")
    if array.min() < 0 or array.max() >= len(array):
        raise InputError(
            f"successors holds {array.min()} to {array.max()}: give indices of states from 0 to {len(array) - 1}."
        )
    return array


def _checked_sizes(states: Any, actions: Any) -> tuple[int, int]:
    """Check and return the sizes S and A of a dense prior."""
    sizes = {"states": whole("states", states), "actions": whole("actions", actions)}
    check_size(sizes, "states", "actions", "states", each=8)
    return sizes["states"], sizes["actions"]


def neighbour_prior(successors: Int[Array, "S K"], actions: int, each: float = 1.0) -> Any:
    """A prior with `each` pseudo-counts for each of the K states reachable from s:  T̂ = (count + each)/(n + K·each).

    The result is dense `[S, A, S]`, or sparse `[S*A, S]` for many states.
    """
    successors, each = _checked_successors(successors), checked_mass("each", each)
    S, K = successors.shape
    actions = whole("actions", actions)
    check_size({"states": S, "actions": actions, "successors": K}, "states", "actions", "successors", each=24)
    cells = np.repeat(successors, actions, axis=0)
    rows = np.repeat(np.arange(S * actions), K)
    prior = sp.csr_array(sp.coo_array((np.full(rows.size, each), (rows, cells.ravel())), shape=(S * actions, S)))
    return prior.toarray().reshape(S, actions, S) if S <= MAX_DENSE_STATES else prior


def pooled_prior(model: CountModel, successors: Int[Array, "S K"]) -> Float[Array, "S A S"]:
    """A prior that pools the outcomes of each action over all states, with the prior mass of each pair unchanged.

    The mass of a pair is spread over the K directions like the outcomes of the same action in all states. A pair's own
    counts outweigh the prior as soon as there are more of them than its mass. States where two directions lead to the
    same successor are excluded, because there a count does not show the direction.
    """
    if sp.issparse(model.prior):
        raise InputError("a pooled prior needs dense counts: use it for worlds with at most a few hundred states.")
    successors = _checked_successors(successors)
    (S, K), A = successors.shape, model.actions
    if len(model.prior) != S:
        raise InputError(f"successors has {S} rows: give one for each of the {len(model.prior)} states.")
    unambiguous = (np.diff(np.sort(successors, axis=1), axis=1) > 0).all(1)
    by_direction = np.take_along_axis(model.counts, np.broadcast_to(successors[:, None, :], (S, A, K)), axis=2)
    total = by_direction[unambiguous].sum(0) + 0.5  # [A, K], with Jeffreys' prior for each action
    share = total / total.sum(1, keepdims=True)
    prior, s, a = np.zeros(model.prior.shape), np.arange(S)[:, None], np.arange(A)[None, :]
    for direction in range(K):
        prior[s, a, successors[:, direction, None]] += model.mass * share[:, direction]
    return prior


def uniform_prior(states: int, actions: int, mass: float = 1.0) -> Float[Array, "S A S"]:
    """A prior that spreads `mass` pseudo-counts over all states. It assumes nothing about where a step leads."""
    states, actions = _checked_sizes(states, actions)
    return np.full((states, actions, states), checked_mass("mass", mass) / states)


def self_loop_prior(states: int, actions: int, mass: float = 1.0) -> Float[Array, "S A S"]:
    """A prior with `mass` pseudo-counts on staying. It assumes that an untried action changes nothing."""
    states, actions = _checked_sizes(states, actions)
    return np.repeat(checked_mass("mass", mass) * np.eye(states)[:, None, :], actions, axis=1)
