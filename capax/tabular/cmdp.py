"""What is a finite constrained MDP, and what does a policy earn and pay in it, exactly?"""

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

from capax.checks import number, numbers, shown
from capax.errors import InputError

ROW_SUM_TOLERANCE = 1e-9
"""How far a row of probabilities may be from 1 before it is called wrong."""

LARGEST_GAMMA = 0.999999
"""With a larger one, the tolerances of rows and of linear programs are no longer small beside 1 − γ."""

LARGEST_SIGNAL = 1e300
"""Of rewards and costs: what they sum to is a float still."""

DENSE_STATES = 100
"""Up to this many states, capax builds dense P; above it, sparse ones (a 16×16 grid is then solved 10 times faster)."""


@dataclass(frozen=True, eq=False)
class CMDP:
    """A finite constrained MDP; every value in it and from it is normalised by (1 − γ).

    With occupancy ρ(s,a) = (1−γ) Σ_t γ^t Pr(s_t=s, a_t=a), so Σρ = 1, the return is Σρr, the cost Σρc, and a limit is
    compared with Σρc directly.
    """

    P: Any
    """Transition probabilities: a dense array `[S, A, S]`, or a SciPy sparse one `[S*A, S]` with row `s*A + a`."""
    r: Float[Array, "S A"]
    """Expected reward of a step."""
    c: Float[Array, "S A"]
    """Expected cost of a step."""
    mu0: Float[Array, " S"]
    """Distribution of the first state."""
    gamma: float
    """Discount, 0 ≤ γ < 1 (at most 0.999999)."""

    def __post_init__(self) -> None:
        mu0 = _numbers("mu0", self.mu0)
        r, c = _signal("r", self.r), _signal("c", self.c)
        if r.ndim != 2 or 0 in r.shape:
            raise InputError(
                f"r has shape {r.shape}: give one reward per state and action, shape [S, A], neither of them 0."
            )
        S, A = r.shape
        if c.shape != (S, A):
            raise InputError(f"c has shape {c.shape} but r has {r.shape}: give both the shape [S, A].")
        if mu0.shape != (S,):
            raise InputError(f"mu0 has shape {mu0.shape}: give one probability per state, shape ({S},).")
        _check_rows("mu0", mu0[None, :], lambda i: "mu0")
        wanted = f"a number with 0 <= gamma < 1, at most {LARGEST_GAMMA}"
        gamma = number("gamma", self.gamma, wanted, lambda x: 0.0 <= x <= LARGEST_GAMMA)
        for name, value in (("P", _transitions(self.P, S, A)), ("r", r), ("c", c), ("mu0", mu0), ("gamma", gamma)):
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
        """P as a matrix `[S*A, S]`, dense or sparse as it was given."""
        return self.P if sp.issparse(self.P) else self.P.reshape(self.S * self.A, self.S)


Solver = Callable[[Array, bool], Array]


class Evaluation(NamedTuple):
    """What a policy earns and pays, and where it goes (all normalised, Σ occupancy = 1)."""

    reward: float
    cost: float
    occupancy: Float[Array, "S A"]


def evaluate(cmdp: CMDP, policy: Float[Array, "S A"] | Int[Array, " S"]) -> Evaluation:
    """Exact return, cost and occupancy of `policy`: ρ solves the flow equations of Eq. 2 for that policy.

    `policy` holds action probabilities `[S, A]`, or one action per state `[S]`.
    """
    return evaluate_trusted(checked(cmdp), _policy(cmdp, policy))


def evaluate_trusted(cmdp: CMDP, pi: Float[Array, "S A"]) -> Evaluation:
    """`evaluate` for probabilities that need no check."""
    rho = occupancy(cmdp, pi)
    return Evaluation(float((rho * cmdp.r).sum()), float((rho * cmdp.c).sum()), rho)


def occupancy(cmdp: CMDP, pi: Float[Array, "S A"]) -> Float[Array, "S A"]:
    """The normalised occupancy of a policy that is trusted to be one."""
    return _occupancy(cmdp, pi, factor(flow(cmdp, pi)))


def values(
    cmdp: CMDP, policy: Float[Array, "S A"] | Int[Array, " S"], signal: Float[Array, "S A"]
) -> Float[Array, " S"]:
    """State values of `policy` for a per-step `signal` (r or c): V = signal + γ P V, **not** normalised."""
    pi = _policy(checked(cmdp), policy)
    signal = _signal("signal", signal)
    if signal.shape != pi.shape:
        raise InputError(f"signal has shape {signal.shape}: give one number per state and action, shape {pi.shape}.")
    return factor(flow(cmdp, pi))((pi * signal).sum(1), False)


def occupancy_and_values(
    cmdp: CMDP, pi: Float[Array, "S A"], signal: Float[Array, "S A"]
) -> tuple[Float[Array, "S A"], Float[Array, " S"]]:
    """What `evaluate` and `values` give, from one factorisation; `pi` is trusted to be a policy."""
    solver = factor(flow(cmdp, pi))
    return _occupancy(cmdp, pi, solver), solver((pi * signal).sum(1), False)


def penalised(cmdp: CMDP, u: Float[Array, "S A"]) -> CMDP:
    """The same CMDP with the conservative cost  c̃(s,a) = c(s,a) + u(s,a)  (Eq. 5, where u is γβu, or κ/√n)."""
    u = _signal("u", u)
    if u.shape != checked(cmdp).c.shape:
        raise InputError(f"u has shape {u.shape}: give one penalty per state and action, shape {cmdp.c.shape}.")
    if (u < 0).any():
        raise InputError("u has a negative entry: a penalty may only raise the cost, so give numbers >= 0.")
    return trusted(cmdp, c=cmdp.c + u)


def checked(cmdp: Any) -> CMDP:
    """A CMDP, and nothing else."""
    if not isinstance(cmdp, CMDP):
        raise InputError(f"cmdp is {shown(cmdp)}: give a capax.tabular.CMDP.")
    return cmdp


def trusted(cmdp: CMDP, **changes: Any) -> CMDP:
    """A copy with changes that are not checked: Algorithm 1 makes one or two of them for every policy."""
    changed = copy(cmdp)
    for name, value in changes.items():
        object.__setattr__(changed, name, value)
    return changed


def support(cmdp: CMDP) -> tuple[Int[Array, "S A K"], Float[Array, "S A K"]]:
    """The possible successors of each pair and their probabilities; pairs with fewer than K are filled with zeros."""
    rows = sp.csr_array(cmdp.rows, copy=True)  # a sparse one shares its buffers otherwise
    rows.eliminate_zeros()
    lengths = np.diff(rows.indptr)
    slot = np.arange(rows.nnz) - np.repeat(rows.indptr[:-1], lengths)
    pair = np.repeat(np.arange(rows.shape[0]), lengths)
    successors = np.zeros((rows.shape[0], lengths.max()), dtype=np.int64)
    probability = np.zeros(successors.shape)
    successors[pair, slot], probability[pair, slot] = rows.indices, rows.data
    return successors.reshape(cmdp.S, cmdp.A, -1), probability.reshape(cmdp.S, cmdp.A, -1)


def flow(cmdp: CMDP, pi: Float[Array, "S A"]) -> Any:
    """The matrix I − γ P_π, dense or sparse as P is."""
    S, A = cmdp.S, cmdp.A
    if sp.issparse(cmdp.P):
        mix = sp.csr_array((pi.ravel(), np.arange(S * A), np.arange(0, S * A + 1, A)), shape=(S, S * A))
        return sp.csc_array(sp.eye_array(S) - cmdp.gamma * (mix @ cmdp.P))
    matrix = -cmdp.gamma * (pi[:, None, :] @ cmdp.P)[:, 0, :]
    matrix.ravel()[:: S + 1] += 1.0
    return matrix


def _occupancy(cmdp: CMDP, pi: Float[Array, "S A"], solver: Solver) -> Float[Array, "S A"]:
    """Normalised occupancy ρ = dπ of a policy, with  dᵀ(I − γP_π) = (1−γ)μ₀ᵀ."""
    visits = solver((1.0 - cmdp.gamma) * cmdp.mu0, True)
    return np.maximum(visits, 0.0)[:, None] * pi  # rounding can leave −1e-18 where a state is never visited


def factor(matrix: Any) -> Solver:
    """The function (b, transposed) ↦ x with matrix·x = b, after one LU factorisation, which overwrites the matrix."""
    if sp.issparse(matrix):
        lu = spla.splu(matrix)
        return lambda b, transposed: lu.solve(b, trans="T" if transposed else "N")
    # the transpose of a C array is what LAPACK calls an array, so nothing is copied; half the time of np.linalg.solve
    factors, pivots, _ = lapack.dgetrf(matrix.T, overwrite_a=True)
    return lambda b, transposed: lapack.dgetrs(factors, pivots, b, trans=int(not transposed))[0]


def _policy(cmdp: CMDP, policy: Any) -> Float[Array, "S A"]:
    """A policy as probabilities `[S, A]`, checked."""
    policy = policy if isinstance(policy, np.ndarray) else _array("policy", policy)
    S, A = cmdp.S, cmdp.A
    if policy.shape == (S,) and policy.dtype.kind in "iu":
        if policy.min() < 0 or policy.max() >= A:
            raise InputError(f"policy names action {policy.min()} or {policy.max()}: give actions from 0 to {A - 1}.")
        return np.eye(A)[policy]
    if policy.shape != (S, A):
        raise InputError(f"policy has shape {policy.shape}: give probabilities [{S}, {A}], or {S} integer actions.")
    policy = _numbers("policy", policy)
    _check_rows("policy", policy, lambda i: f"policy in state {i}")
    return policy


def _transitions(P: Any, S: int, A: int) -> Any:
    if sp.issparse(P):
        if P.shape != (S * A, S):
            raise InputError(f"sparse P has shape {P.shape}: give [S*A, S] = ({S * A}, {S}), with row s*A + a.")
        if P.dtype.kind not in "biuf":
            raise InputError(f"sparse P holds {P.dtype}: give real, finite entries.")
        P = sp.csr_array(P, dtype=np.float64, copy=True)
        _check_entries("P", P.data)
        rows = P
    else:
        P = _numbers("P", P)
        if P.shape != (S, A, S):
            raise InputError(f"P has shape {P.shape}: give [S, A, S] = ({S}, {A}, {S}), or a sparse [S*A, S].")
        rows = P.reshape(S * A, S)
    _check_rows("P", rows, lambda i: f"P of state {i // A}, action {i % A}")
    return P


def _array(name: str, value: Any) -> Array:
    try:
        return np.asarray(value)
    except Exception:  # whatever an object does when it is asked for its numbers
        raise InputError(f"{name} is not an array of numbers: give real, finite entries.") from None


def _numbers(name: str, value: Any) -> Array:
    try:
        array = numbers(value)  # a copy: what was checked cannot be changed from outside
    except Exception:
        raise InputError(f"{name} is not an array of numbers: give real, finite entries.") from None
    if not np.isfinite(array).all():
        raise InputError(f"{name} has an entry that is not finite: replace every NaN and infinity by a number.")
    return array


def _signal(name: str, value: Any) -> Array:
    """Rewards, costs, or what is added to them."""
    array = _numbers(name, value)
    if np.abs(array).max(initial=0.0) > LARGEST_SIGNAL:
        raise InputError(f"{name} has an entry beyond ±{LARGEST_SIGNAL:g}: count it in larger units.")
    return array


def _check_entries(name: str, entries: Array) -> None:
    if not np.isfinite(entries).all():
        raise InputError(f"{name} has an entry that is not finite: replace every NaN and infinity by a number.")
    if entries.size and entries.min() < 0:
        raise InputError(f"{name} has the negative entry {entries.min():g}: probabilities must be >= 0.")


def _check_rows(name: str, rows: Any, place: Any) -> None:
    """Every row is a distribution; `place(i)` names row i for the message."""
    if not sp.issparse(rows):
        _check_entries(name, rows)
    with np.errstate(over="ignore"):
        sums = np.asarray(rows.sum(axis=1)).ravel()
    worst = int(np.abs(sums - 1.0).argmax())
    if abs(sums[worst] - 1.0) > ROW_SUM_TOLERANCE:
        raise InputError(f"{place(worst)} sums to {sums[worst]:.9g}: make the probabilities of each row sum to 1.")
