"""Finite constrained MDPs (CMDPs) and the exact return, cost and occupancy of a policy."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg.lapack as lapack
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from jaxtyping import Float, Int
from numpy import ndarray as Array

from capax.core.checks import number, numbers, short_repr, sparse_problem
from capax.core.errors import InputError

ROW_SUM_TOLERANCE = 1e-9
"""Largest allowed difference between the sum of a row of probabilities and 1."""

MAX_GAMMA = 0.999999
"""Largest allowed discount. Above it, the tolerances of rows and linear programs are not small compared with 1 − γ."""

MAX_SIGNAL = 1e300
"""Largest allowed |reward| and |cost|. Their sums still fit in a float."""

MAX_DENSE_STATES = 100
"""Up to this many states, capax builds a dense P. Above it, P is sparse: a 16×16 grid is then solved 10 times faster."""


@dataclass(frozen=True, eq=False)
class CMDP:
    """A finite constrained MDP. Returns and costs of its policies are normalised by (1 − γ).

    The occupancy is ρ(s,a) = (1−γ) Σ_t γ^t Pr(s_t=s, a_t=a), so Σρ = 1. The return is Σρr and the cost is Σρc. A cost
    limit is compared with Σρc directly.
    """

    P: Any
    """Transition probabilities: a dense array `[S, A, S]`, or a SciPy sparse array `[S*A, S]` with row `s*A + a`."""
    r: Float[Array, "S A"]
    """Expected reward of a step."""
    c: Float[Array, "S A"]
    """Expected cost of a step."""
    mu0: Float[Array, " S"]
    """Distribution of the first state."""
    gamma: float
    """Discount, 0 ≤ γ < 1 (at most 0.999999)."""

    def __post_init__(self) -> None:
        mu0 = _finite_numbers("mu0", self.mu0)
        r, c = _checked_signal("r", self.r), _checked_signal("c", self.c)
        if r.ndim != 2 or 0 in r.shape:
            raise InputError(
                f"r has shape {r.shape}: give one reward per state and action, shape [S, A], with S and A >= 1."
            )
        S, A = r.shape
        if c.shape != (S, A):
            raise InputError(f"c has shape {c.shape} but r has {r.shape}: give both the shape [S, A].")
        if mu0.shape != (S,):
            raise InputError(f"mu0 has shape {mu0.shape}: give one probability per state, shape ({S},).")
        _check_rows("mu0", mu0[None, :], lambda i: "mu0")
        requirement = f"a number with 0 <= gamma < 1, at most {MAX_GAMMA}"
        gamma = number("gamma", self.gamma, requirement, lambda x: 0.0 <= x <= MAX_GAMMA)
        for name, value in (
            ("P", _checked_transitions(self.P, S, A)),
            ("r", r),
            ("c", c),
            ("mu0", mu0),
            ("gamma", gamma),
        ):
            object.__setattr__(self, name, value)

    @property
    def S(self) -> int:
        """Number of states."""
        return self.r.shape[0]

    @property
    def A(self) -> int:
        """Number of actions."""
        return self.r.shape[1]

    @property
    def rows(self) -> Any:
        """P as a matrix `[S*A, S]`, dense if P is dense and sparse if P is sparse."""
        return self.P if sp.issparse(self.P) else self.P.reshape(self.S * self.A, self.S)


LinearSolver = Callable[[Array, bool], Array]
"""(b, transposed) ↦ the solution x of matrix·x = b, or of matrixᵀ·x = b."""


class Evaluation(NamedTuple):
    """Exact return, cost and occupancy of a policy (all normalised, Σ occupancy = 1)."""

    reward: float
    cost: float
    occupancy: Float[Array, "S A"]


def evaluate(cmdp: CMDP, policy: Float[Array, "S A"] | Int[Array, " S"]) -> Evaluation:
    """Exact return, cost and occupancy of `policy`: ρ solves the flow equations of Eq. 2 for that policy.

    `policy` holds action probabilities `[S, A]`, or one action per state `[S]`.
    """
    return evaluate_unchecked(checked_cmdp(cmdp), _checked_policy(cmdp, policy))


def evaluate_unchecked(cmdp: CMDP, pi: Float[Array, "S A"]) -> Evaluation:
    """Exact return, cost and occupancy of action probabilities `pi`, without checking the inputs."""
    rho = occupancy(cmdp, pi)
    return Evaluation(float((rho * cmdp.r).sum()), float((rho * cmdp.c).sum()), rho)


def occupancy(cmdp: CMDP, pi: Float[Array, "S A"]) -> Float[Array, "S A"]:
    """Normalised occupancy of action probabilities `pi`, without checking the inputs."""
    return _occupancy(cmdp, pi, lu_solver(flow_matrix(cmdp, pi)))


def values(
    cmdp: CMDP, policy: Float[Array, "S A"] | Int[Array, " S"], signal: Float[Array, "S A"]
) -> Float[Array, " S"]:
    """State values of `policy` for a per-step `signal` (r or c): V = signal + γ P V, **not** normalised."""
    pi = _checked_policy(checked_cmdp(cmdp), policy)
    signal = _checked_signal("signal", signal)
    if signal.shape != pi.shape:
        raise InputError(f"signal has shape {signal.shape}: give one number per state and action, shape {pi.shape}.")
    return lu_solver(flow_matrix(cmdp, pi))((pi * signal).sum(1), False)


def occupancy_and_values(
    cmdp: CMDP, pi: Float[Array, "S A"], signal: Float[Array, "S A"]
) -> tuple[Float[Array, "S A"], Float[Array, " S"]]:
    """Occupancy and state values of `pi` from one LU factorisation, without checking the inputs."""
    solver = lu_solver(flow_matrix(cmdp, pi))
    return _occupancy(cmdp, pi, solver), solver((pi * signal).sum(1), False)


def penalised(cmdp: CMDP, u: Float[Array, "S A"]) -> CMDP:
    """The same CMDP with the conservative cost  c̃(s,a) = c(s,a) + u(s,a)  (Eq. 5, where u is γβu, or κ/√n)."""
    u = _checked_signal("u", u)
    if u.shape != checked_cmdp(cmdp).c.shape:
        raise InputError(f"u has shape {u.shape}: give one penalty per state and action, shape {cmdp.c.shape}.")
    if (u < 0).any():
        raise InputError("u has a negative entry: a penalty may only raise the cost, so give numbers >= 0.")
    return replace_unchecked(cmdp, c=cmdp.c + u)


def checked_cmdp(cmdp: Any) -> CMDP:
    """Return `cmdp`, or raise an InputError if it is not a CMDP."""
    if not isinstance(cmdp, CMDP):
        raise InputError(f"cmdp is {short_repr(cmdp)}: give a capax.tabular.CMDP.")
    return cmdp


def replace_unchecked(cmdp: CMDP, **changes: Any) -> CMDP:
    """A copy with changed fields that are not checked. Algorithm 1 makes one or two such copies for every policy."""
    changed = copy(cmdp)
    for name, value in changes.items():
        object.__setattr__(changed, name, value)
    return changed


def support(cmdp: CMDP) -> tuple[Int[Array, "S A K"], Float[Array, "S A K"]]:
    """The possible successors of each pair and their probabilities. Pairs with fewer than K successors are padded with 0."""
    rows = sp.csr_array(cmdp.rows, copy=True)  # without the copy, a sparse P would share its buffers with `rows`
    rows.eliminate_zeros()
    lengths = np.diff(rows.indptr)
    slot = np.arange(rows.nnz) - np.repeat(rows.indptr[:-1], lengths)
    pair = np.repeat(np.arange(rows.shape[0]), lengths)
    successors = np.zeros((rows.shape[0], lengths.max()), dtype=np.int64)
    probability = np.zeros(successors.shape)
    successors[pair, slot], probability[pair, slot] = rows.indices, rows.data
    return successors.reshape(cmdp.S, cmdp.A, -1), probability.reshape(cmdp.S, cmdp.A, -1)


def flow_matrix(cmdp: CMDP, pi: Float[Array, "S A"]) -> Any:
    """The flow matrix I − γ P_π, dense if P is dense and sparse if P is sparse."""
    S, A = cmdp.S, cmdp.A
    if sp.issparse(cmdp.P):
        mix = sp.csr_array((pi.ravel(), np.arange(S * A), np.arange(0, S * A + 1, A)), shape=(S, S * A))
        return sp.csc_array(sp.eye_array(S) - cmdp.gamma * (mix @ cmdp.P))
    matrix = -cmdp.gamma * (pi[:, None, :] @ cmdp.P)[:, 0, :]
    matrix.ravel()[:: S + 1] += 1.0
    return matrix


def _occupancy(cmdp: CMDP, pi: Float[Array, "S A"], solver: LinearSolver) -> Float[Array, "S A"]:
    """Normalised occupancy ρ = dπ of a policy, with  dᵀ(I − γP_π) = (1−γ)μ₀ᵀ."""
    visits = solver((1.0 - cmdp.gamma) * cmdp.mu0, True)
    return np.maximum(visits, 0.0)[:, None] * pi  # rounding can give −1e-18 for a state that is never visited


def lu_solver(matrix: Any) -> LinearSolver:
    """Factorise `matrix` once (LU) and return the function that solves linear systems with it. `matrix` is overwritten."""
    if sp.issparse(matrix):
        lu = spla.splu(matrix)
        return lambda b, transposed: lu.solve(b, trans="T" if transposed else "N")
    # LAPACK wants column-major arrays. The transpose of a C array is one, so nothing is copied. This takes half the time
    # of np.linalg.solve.
    factors, pivots, _ = lapack.dgetrf(matrix.T, overwrite_a=True)
    return lambda b, transposed: lapack.dgetrs(factors, pivots, b, trans=int(not transposed))[0]


def _checked_policy(cmdp: CMDP, policy: Any) -> Float[Array, "S A"]:
    """Check a policy and return its action probabilities `[S, A]`."""
    policy = policy if isinstance(policy, np.ndarray) else _to_array("policy", policy)
    S, A = cmdp.S, cmdp.A
    if policy.shape == (S,) and policy.dtype.kind in "iu":
        if policy.min() < 0 or policy.max() >= A:
            raise InputError(
                f"policy has actions from {policy.min()} to {policy.max()}: give actions from 0 to {A - 1}."
            )
        return np.eye(A)[policy]
    if policy.shape != (S, A):
        raise InputError(f"policy has shape {policy.shape}: give probabilities [{S}, {A}], or {S} integer actions.")
    policy = _finite_numbers("policy", policy)
    _check_rows("policy", policy, lambda i: f"policy in state {i}")
    return policy


def _checked_transitions(P: Any, S: int, A: int) -> Any:
    """Check P and return a float64 copy, dense `[S, A, S]` or sparse `[S*A, S]`."""
    if sp.issparse(P):
        if P.shape != (S * A, S):
            raise InputError(f"sparse P has shape {P.shape}: give [S*A, S] = ({S * A}, {S}), with row s*A + a.")
        if P.dtype.kind not in "biuf":
            raise InputError(f"sparse P holds {P.dtype}: give real, finite entries.")
        if (problem := sparse_problem(P)) is not None:
            raise InputError(f"sparse P is no whole array, {problem}: give indices within its shape.")
        P = sp.csr_array(P, dtype=np.float64, copy=True)
        _check_entries("P", P.data)
        rows = P
    else:
        P = _finite_numbers("P", P)
        if P.shape != (S, A, S):
            raise InputError(f"P has shape {P.shape}: give [S, A, S] = ({S}, {A}, {S}), or a sparse [S*A, S].")
        rows = P.reshape(S * A, S)
    _check_rows("P", rows, lambda i: f"P of state {i // A}, action {i % A}")
    return P


def _to_array(name: str, value: Any) -> Array:
    """Convert `value` to an array, or raise an InputError."""
    try:
        return np.asarray(value)
    except Exception:  # a foreign object may raise anything when NumPy converts it
        raise InputError(f"{name} is not an array of numbers: give real, finite entries.") from None


def _finite_numbers(name: str, value: Any) -> Array:
    """Copy `value` into a float64 array, or raise an InputError if an entry is not a finite number."""
    try:
        array = numbers(value)  # a copy, so that the caller cannot change it after the check
    except Exception:
        raise InputError(f"{name} is not an array of numbers: give real, finite entries.") from None
    if not np.isfinite(array).all():
        raise InputError(f"{name} has an entry that is not finite: replace every NaN and infinity with a number.")
    return array


def _checked_signal(name: str, value: Any) -> Array:
    """Check an array of rewards, costs or penalties and return a float64 copy."""
    array = _finite_numbers(name, value)
    if np.abs(array).max(initial=0.0) > MAX_SIGNAL:
        raise InputError(f"{name} has an entry beyond ±{MAX_SIGNAL:g}: use larger units for it.")
    return array


def _check_entries(name: str, entries: Array) -> None:
    """Check that all entries are finite and ≥ 0."""
    if not np.isfinite(entries).all():
        raise InputError(f"{name} has an entry that is not finite: replace every NaN and infinity with a number.")
    if entries.size and entries.min() < 0:
        raise InputError(f"{name} has the negative entry {entries.min():g}: probabilities must be >= 0.")


def _check_rows(name: str, rows: Any, row_name: Callable[[int], str]) -> None:
    """Check that every row is a distribution. `row_name(i)` names row i in the error message."""
    if not sp.issparse(rows):
        _check_entries(name, rows)
    with np.errstate(over="ignore"):
        sums = np.asarray(rows.sum(axis=1)).ravel()
    worst = int(np.abs(sums - 1.0).argmax())
    if abs(sums[worst] - 1.0) > ROW_SUM_TOLERANCE:
        raise InputError(f"{row_name(worst)} sums to {sums[worst]:.9g}: make the probabilities of each row sum to 1.")
