"""Policies are evaluated exactly, and invalid CMDPs, policies and penalties are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from support.cmdps import TRANSITION_KINDS, random_cmdp, random_policy, sparse_copy

from capax.core.errors import InputError
from capax.tabular import CMDP, evaluate, penalised, values
from capax.tabular.cmdp import occupancy_and_values, support
from capax.tabular.counts import CountModel

TWO_STATES = {
    "P": np.array([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.0, 1.0]]]),
    "r": np.array([[1.0, 0.0], [0.0, 0.0]]),
    "c": np.array([[0.0, 0.0], [1.0, 2.0]]),
    "mu0": np.array([1.0, 0.0]),
    "gamma": 0.5,
}
"""State 0: action 0 stays and earns 1, action 1 leaves with probability ½. State 1 is absorbing and costs 1 or 2 a step."""


def changed(name: str, *index: Any, to: Any) -> dict[str, Any]:
    """One array of TWO_STATES with one entry changed."""
    array = TWO_STATES[name].copy()
    array[index] = to
    return {name: array}


# Evaluation.


def test_evaluation_of_two_states_by_hand():
    # Action 1 in state 0: the occupancy x of state 0 is (1−γ) + γx/2, so x = .5 / .75 = 2/3; state 1 has the rest.
    # Action 0 in state 1 costs 1 a step: reward 0, cost 1/3.
    reward, cost, occupancy = evaluate(CMDP(**TWO_STATES), np.array([1, 0]))
    np.testing.assert_allclose(occupancy, [[0.0, 2 / 3], [1 / 3, 0.0]], rtol=1e-14)
    assert (reward, cost) == (0.0, pytest.approx(1 / 3, rel=1e-14))


def test_evaluation_of_a_stochastic_policy_by_hand():
    # Half of each action in state 0: x = .5 + .5·.75x, so x = .8. It earns .4; state 1 with half of each costs .2·1.5.
    reward, cost, occupancy = evaluate(CMDP(**TWO_STATES), np.full((2, 2), 0.5))
    np.testing.assert_allclose(occupancy, [[0.4, 0.4], [0.1, 0.1]], rtol=1e-14)
    assert (reward, cost) == (pytest.approx(0.4, rel=1e-14), pytest.approx(0.3, rel=1e-14))


def test_values_of_two_states_by_hand():
    # Not normalised. V(1) = 1/(1−.5) = 2; V(0) = .5 (½V(0) + ½·2), so V(0) = 2/3.
    np.testing.assert_allclose(values(CMDP(**TWO_STATES), np.array([1, 0]), TWO_STATES["c"]), [2 / 3, 2.0], rtol=1e-14)


@pytest.mark.parametrize("kind", TRANSITION_KINDS)
@pytest.mark.parametrize("gamma", [0.0, 0.7, 0.95])
def test_occupancy_is_the_discounted_sum_of_visits(kind, gamma):
    # (1−γ) Σ_t γ^t Pr(s_t, a_t), summed until γ^t < 1e-17.
    rng = np.random.default_rng(0)
    cmdp = random_cmdp(rng, gamma=gamma, kind=kind)
    policy = random_policy(rng, cmdp)
    visits, here = np.zeros(cmdp.S), cmdp.mu0
    for t in range(800):
        visits = visits + (1 - gamma) * gamma**t * here
        here = np.einsum("s,sa,sat->t", here, policy, cmdp.P)
    expected = visits[:, None] * policy
    reward, cost, occupancy = evaluate(cmdp, policy)
    np.testing.assert_allclose(occupancy, expected, atol=1e-13)
    assert (reward, cost) == pytest.approx(((expected * cmdp.r).sum(), (expected * cmdp.c).sum()), abs=1e-13)


@pytest.mark.parametrize("kind", TRANSITION_KINDS)
@pytest.mark.parametrize("gamma", [0.0, 0.9, 0.999])
def test_occupancy_is_a_distribution(kind, gamma):
    rng = np.random.default_rng(1)
    cmdp = random_cmdp(rng, S=30, gamma=gamma, kind=kind)
    occupancy = evaluate(cmdp, random_policy(rng, cmdp)).occupancy
    assert occupancy.min() >= 0.0 and occupancy.sum() == pytest.approx(1.0, abs=1e-11)


def test_values_of_the_start_are_the_evaluation():
    rng = np.random.default_rng(2)
    cmdp = random_cmdp(rng)
    policy = random_policy(rng, cmdp)
    value = (1 - cmdp.gamma) * cmdp.mu0 @ values(cmdp, policy, cmdp.r)
    assert value == pytest.approx(evaluate(cmdp, policy).reward, abs=1e-13)


def test_dense_equals_sparse():
    rng = np.random.default_rng(3)
    cmdp = random_cmdp(rng, S=20, kind="sparse")
    policy = random_policy(rng, cmdp)
    dense, sparse = evaluate(cmdp, policy), evaluate(sparse_copy(cmdp), policy)
    np.testing.assert_allclose(sparse.occupancy, dense.occupancy, atol=1e-14)
    np.testing.assert_allclose(values(sparse_copy(cmdp), policy, cmdp.c), values(cmdp, policy, cmdp.c), rtol=1e-12)


@pytest.mark.parametrize("form", [lambda cmdp: cmdp, sparse_copy])
def test_one_factorisation_gives_occupancy_and_values(form):
    rng = np.random.default_rng(4)
    cmdp = form(random_cmdp(rng))
    policy = random_policy(rng, cmdp)
    occupancy, v = occupancy_and_values(cmdp, policy, cmdp.c)
    np.testing.assert_allclose(occupancy, evaluate(cmdp, policy).occupancy, atol=1e-15)
    np.testing.assert_allclose(v, values(cmdp, policy, cmdp.c), rtol=1e-13)


def test_evaluation_does_not_change_the_cmdp():
    cmdp = random_cmdp(np.random.default_rng(5))
    before = cmdp.P.copy()
    evaluate(cmdp, np.zeros(cmdp.S, int))
    np.testing.assert_array_equal(cmdp.P, before)


def test_actions_are_a_deterministic_policy():
    cmdp = random_cmdp(np.random.default_rng(6), S=3, A=2)
    from_actions, from_probabilities = evaluate(cmdp, np.array([1, 0, 1])), evaluate(cmdp, [[0, 1], [1, 0], [0, 1]])
    np.testing.assert_array_equal(from_actions.occupancy, from_probabilities.occupancy)


@pytest.mark.parametrize("container", [sp.csr_matrix, sp.csc_array, sp.coo_array, sp.lil_array])
def test_every_sparse_container_is_accepted(container):
    cmdp = random_cmdp(np.random.default_rng(7), kind="sparse")
    other = replace(cmdp, P=container(cmdp.rows))
    actions = np.zeros(cmdp.S, int)
    assert evaluate(other, actions).reward == pytest.approx(evaluate(cmdp, actions).reward, abs=1e-14)


def test_lists_and_integers_are_accepted():
    cmdp = CMDP([[[1]]], [[1]], [[2]], [1], 0)
    assert evaluate(cmdp, [0])[:2] == (1.0, 2.0)


# The penalty and the support.


def test_penalised_raises_only_the_cost():
    cmdp = CMDP(**TWO_STATES)
    with_penalty = penalised(cmdp, np.array([[0.1, 0.2], [0.3, 0.4]]))
    np.testing.assert_allclose(with_penalty.c, [[0.1, 0.2], [1.3, 2.4]], rtol=1e-15)
    np.testing.assert_array_equal(cmdp.c, TWO_STATES["c"])
    np.testing.assert_array_equal(with_penalty.r, cmdp.r)
    assert with_penalty.P is cmdp.P


@pytest.mark.parametrize("u", [np.zeros(2), np.zeros((2, 3)), np.full((2, 2), -1e-9), np.full((2, 2), np.nan), "much"])
def test_bad_penalties_are_refused(u):
    with pytest.raises(InputError, match=r"^u "):
        penalised(CMDP(**TWO_STATES), u)


@pytest.mark.parametrize("form", [lambda cmdp: cmdp, sparse_copy])
def test_support_rebuilds_the_transitions(form):
    cmdp = random_cmdp(np.random.default_rng(8), kind="sparse")
    successors, probability = support(form(cmdp))
    assert successors.shape == (6, 3, 2)
    P = np.zeros(cmdp.P.shape)
    np.add.at(P, (*np.indices(successors.shape)[:2], successors), probability)
    np.testing.assert_array_equal(P, cmdp.P)


# Refused input.


@pytest.mark.parametrize(("changes", "message_start"), [
    (changed("P", 0, 0, 0, to=0.9), "P of state 0, action 0 sums to 0.9"),
    (changed("P", 1, 1, to=[0.5, 0.5 + 1e-6]), "P of state 1, action 1"),
    (changed("P", 1, 1, to=[-0.5, 1.5]), "P has the negative entry"),
    (changed("P", 1, 1, 0, to=np.nan), "P has an entry that is not finite"),
    (changed("P", 1, 1, 0, to=np.inf), "P has an entry that is not finite"),
    ({"P": TWO_STATES["P"].reshape(4, 2)}, "P has shape"),
    ({"P": TWO_STATES["P"][:1]}, "P has shape"),
    ({"P": [[["a"]]]}, "P is not an array"),
    ({"P": sp.csr_array(TWO_STATES["P"].reshape(4, 2)[:3])}, "sparse P has shape"),
    ({"P": sp.csr_array(0.5 * TWO_STATES["P"].reshape(4, 2))}, "P of state 0, action 0 sums to 0.5"),
    ({"P": sp.csr_array(changed("P", 1, 1, to=[-0.5, 1.5])["P"].reshape(4, 2))}, "P has the negative entry"),
    ({"P": sp.csr_array(changed("P", 1, 1, 0, to=np.nan)["P"].reshape(4, 2))}, "P has an entry that is not finite"),
    ({"P": sp.csr_array((4, 2))}, "P of state 0, action 0 sums to 0"),
    ({"r": np.zeros(2)}, "r has shape"),
    ({"r": np.zeros((2, 0))}, "r has shape"),
    ({"r": np.zeros((3, 2))}, "c has shape"),
    ({"c": np.zeros((2, 3))}, "c has shape"),
    (changed("r", 0, 0, to=np.inf), "r has an entry"),
    (changed("c", 0, 0, to=np.nan), "c has an entry"),
    ({"c": [[1.0, 2.0], [3.0]]}, "c is not an array"),
    ({"mu0": np.ones(3) / 3}, "mu0 has shape"),
    ({"mu0": np.array([0.5, 0.4])}, "mu0 sums to 0.9"),
    ({"mu0": np.array([1.5, -0.5])}, "mu0 has the negative entry"),
    ({"mu0": np.array([np.nan, 1.0])}, "mu0 has an entry"),
    ({"gamma": 1.0}, "gamma is 1.0"),
    ({"gamma": -0.1}, "gamma is -0.1"),
    ({"gamma": np.nan}, "gamma is nan"),
    ({"gamma": "high"}, "gamma is 'high'"),
    ({"gamma": None}, "gamma is None"),
    ({"gamma": "0.5"}, "gamma is '0.5'"),
    ({"gamma": True}, "gamma is True"),
    ({"gamma": np.array([0.5])}, "gamma is array([0.5])"),
    ({"gamma": 1.0 - 1e-9}, "gamma is 0.999999999: give a number with 0 <= gamma < 1, at most 0.999999"),
    ({"r": np.full((2, 2), 1e301)}, "r has an entry beyond ±1e+300"),
    ({"r": TWO_STATES["r"].astype(complex)}, "r is not an array of numbers"),
    ({"c": TWO_STATES["c"].astype(object)}, "c is not an array of numbers"),
    ({"c": TWO_STATES["c"].astype(str)}, "c is not an array of numbers"),
    ({"mu0": 10**400}, "mu0 has an entry that is not finite"),
    ({"P": sp.csr_array(TWO_STATES["P"].reshape(4, 2).astype(complex))}, "sparse P holds complex128"),
])  # fmt: skip
def test_bad_cmdps_are_refused_in_one_sentence(changes, message_start):
    with pytest.raises(InputError) as error:
        CMDP(**{**TWO_STATES, **changes})
    message = str(error.value)
    assert message.startswith(message_start) and ": " in message and message.endswith(".") and "\n" not in message


@pytest.mark.parametrize(("policy", "message_part"), [
    ([0, 2], "actions from 0 to 2"),
    ([-1, 0], "actions from -1"),
    ([0, 0, 0], "shape"),
    ([0.0, 1.0], "shape"),
    (np.full((2, 3), 1 / 3), "shape"),
    ([[0.5, 0.4], [1.0, 0.0]], "policy in state 0 sums to 0.9"),
    ([[1.5, -0.5], [1.0, 0.0]], "negative"),
    ([[np.nan, 1.0], [1.0, 0.0]], "not finite"),
    ([[1.0], [1.0, 0.0]], "not an array"),
    (np.array([0, 1], "m8[s]"), "shape"),
    ([[1e308, 1e308], [1.0, 0.0]], "sums to inf"),
])  # fmt: skip
@pytest.mark.parametrize("use", [evaluate, lambda cmdp, policy: values(cmdp, policy, cmdp.c)])
def test_bad_policies_are_refused(use, policy, message_part):
    with pytest.raises(InputError, match="policy") as error:
        use(CMDP(**TWO_STATES), policy)
    assert message_part in str(error.value)


@pytest.mark.parametrize("signal", [np.zeros(2), np.zeros((2, 3)), "cost", [[np.nan, 0], [0, 0]], [[1e301, 0], [0, 0]]])
def test_bad_signals_are_refused(signal):
    with pytest.raises(InputError, match=r"^signal "):
        values(CMDP(**TWO_STATES), [0, 1], signal)


@pytest.mark.parametrize("other", [None, 3, TWO_STATES])
def test_other_objects_than_cmdps_are_refused(other):
    for use in (lambda: evaluate(other, [0, 1]), lambda: values(other, [0, 1], 0), lambda: penalised(other, 0.0)):
        with pytest.raises(InputError, match=r"^cmdp is .*: give a capax\.tabular\.CMDP\.$"):
            use()


def test_a_row_sum_with_a_rounding_error_is_accepted():
    P = TWO_STATES["P"].copy()
    P[0, 1] = [0.1 + 0.2, 0.7]  # 1 + 2e-16
    CMDP(**{**TWO_STATES, "P": P})


def sparse_world(change: Callable[[Any], Any]) -> CMDP:
    """A world of 120 states whose sparse transitions were changed by hand."""
    P = sp.csr_array((np.ones(240), np.zeros(240, int), np.arange(241)), shape=(240, 120))
    return CMDP(change(P), np.zeros((120, 2)), np.zeros((120, 2)), np.full(120, 1 / 120), 0.9)


def put(array: Any, part: str, value: int) -> Any:
    """Write one index into a sparse array, as nothing in SciPy prevents."""
    indices = array.coords[1] if part == "coords" else getattr(array, part)
    indices[5] = value
    return array


@pytest.mark.parametrize("change", [
    lambda P: put(P, "indices", 2**30), lambda P: put(P, "indices", -(2**30)), lambda P: put(P, "indices", 120),
    lambda P: put(P, "indptr", 2**30), lambda P: put(P, "indptr", -1), lambda P: put(P.tocsc(), "indices", 2**30),
    lambda P: put(P.tocoo(), "coords", 2**30), lambda P: put(P.tocoo(), "coords", -1),
    lambda P: put(P.tobsr((2, 2)), "indices", 2**30),
])  # fmt: skip
def test_sparse_transitions_whose_indices_leave_their_shape_are_refused(change):
    # SciPy computes with them unchecked, beyond the ends of its arrays
    with pytest.raises(InputError, match=r"sparse P is no whole array, .*: give indices within its shape"):
        sparse_world(change)
    with pytest.raises(InputError, match="sparse prior is no whole array"):
        CountModel.init(change(sp.csr_array((np.ones(240), np.zeros(240, int), np.arange(241)), shape=(240, 120))), 2)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "lil", "dok"])
def test_sparse_transitions_of_any_form_are_taken(form):
    assert sparse_world(lambda P: P.asformat(form)).S == 120
