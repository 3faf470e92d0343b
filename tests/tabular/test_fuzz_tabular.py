"""Every CMDP, count, prior and gridworld is either valid or refused with one sentence, never with another exception."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from support.fuzz_strategies import Refused, anything, arrays, cases, floats, mostly, refusal, scalars, whole

from capax.tabular import (
    CMDP,
    CountModel,
    evaluate,
    gridworld,
    neighbour_prior,
    penalised,
    pooled_prior,
    self_loop_prior,
    solve,
    uniform_prior,
    values,
)

# CMDPs.


@st.composite
def cmdps(draw: Any) -> dict[str, Any]:
    """Arguments of a CMDP: valid ones, or with one argument spoilt."""
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    S, A = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    P = rng.dirichlet(np.full(S, draw(st.sampled_from([0.05, 1.0]))), size=(S, A))
    arguments: dict[str, Any] = {
        "P": P / P.sum(-1, keepdims=True),
        "r": rng.normal(size=(S, A)) * draw(st.sampled_from([0.0, 1.0, 1e-12, 1e290])),
        "c": rng.random((S, A)) * draw(st.sampled_from([0.0, 1.0, 1.0, 1e-290, 1e20])),
        "mu0": rng.dirichlet(np.ones(S)),
        "gamma": draw(st.sampled_from([0.0, 0.5, 0.99, 0.999999])),
    }
    if draw(st.booleans()):
        arguments["P"] = draw(st.sampled_from([sp.csr_array, sp.coo_array, sp.csc_matrix]))(
            arguments["P"].reshape(S * A, S)
        )
    for name in draw(st.lists(st.sampled_from(list(arguments)), max_size=1)):
        fault = draw(st.sampled_from(["other", "entry", "shape", "scale", "type"]))
        if fault == "other" or name == "gamma" or sp.issparse(arguments[name]):
            close = st.sampled_from([1.0, 1.0 - 1e-9, 1.0 - 1e-15, -1e-9]) | floats
            arguments[name] = draw(close if name == "gamma" and draw(st.booleans()) else anything)
        elif fault == "entry":
            with np.errstate(all="ignore"):
                arguments[name].flat[draw(st.integers(0, arguments[name].size - 1))] = draw(floats)
        elif fault == "shape":
            arguments[name] = draw(
                st.sampled_from(
                    [arguments[name].T, arguments[name][None], arguments[name].ravel(), arguments[name][:0]]
                )
            )
        elif fault == "scale":
            arguments[name] = arguments[name] * draw(st.sampled_from([2.0, -1.0, 1 + 5e-10, 1 + 1e-8]))
        else:
            with np.errstate(all="ignore"):
                arguments[name] = arguments[name].astype(draw(st.sampled_from(["f4", "i4", "O", "U9", "?"])))
    return arguments


def assert_distributions(rows: Any) -> None:
    assert np.isfinite(rows).all() and (rows >= 0.0).all() and np.allclose(rows.sum(-1), 1.0, rtol=0.0, atol=1e-8)


@cases(350)
@given(
    cmdps(),
    mostly(st.floats(-0.2, 1.2), floats | anything),
    mostly(st.sampled_from(["auto", "auto", "highs"]), anything),
)
def test_cmdps_are_solved_or_refused(arguments, limit, method):
    cmdp = refusal(lambda: CMDP(**arguments))
    solution = cmdp if isinstance(cmdp, Refused) else refusal(lambda: solve(cmdp, limit, method))
    if isinstance(solution, Refused):
        return
    assert_distributions(solution.policy)
    unit, slack = np.abs(cmdp.c).max() or 1.0, 1e-9 / (1.0 - cmdp.gamma)  # row sums are checked to 1e-9
    limit = 1e308 if isinstance(limit, int) and limit > 1e308 else float(limit)
    assert abs(solution.occupancy.sum() - 1.0) <= 1e-9 + 2.0 * slack and solution.multiplier >= 0.0
    assert np.isfinite([solution.reward, solution.cost]).all()
    if solution.status == "optimal":
        assert solution.cost <= limit + (1e-7 + 2.0 * slack) * unit
    again = evaluate(cmdp, solution.policy)
    assert (again.reward, again.cost) == (solution.reward, solution.cost)
    warm = solve(cmdp, limit, warm=solution)
    assert warm.status == solution.status or abs(solution.cost - limit) <= (1e-7 + 2.0 * slack) * unit


@cases(200)
@given(st.integers(0, 99), st.data())
def test_policies_signals_and_penalties_are_used_or_refused(seed, data):
    rng = np.random.default_rng(seed)
    S, A = 2, 3
    cmdp = CMDP(rng.dirichlet(np.ones(S), size=(S, A)), rng.random((S, A)), rng.random((S, A)), np.eye(S)[0], 0.9)
    table = st.lists(st.lists(floats, min_size=A, max_size=A), min_size=S, max_size=S)
    valid_policies = st.sampled_from([[0, 2], np.full((S, A), 1 / 3), [[0, 1, 0], [1, 0, 0]]])
    policy = data.draw(
        mostly(valid_policies, st.lists(st.integers(-1, 3), min_size=2, max_size=2) | table | arrays() | anything)
    )
    evaluation = refusal(lambda: evaluate(cmdp, policy))
    if not isinstance(evaluation, Refused):
        assert np.isfinite(evaluation[:2]).all() and evaluation.occupancy.sum() == pytest.approx(1.0, abs=1e-6)
    u = data.draw(mostly(table, arrays() | anything))
    for result in (refusal(lambda: values(cmdp, [0, 1], u)), refusal(lambda: penalised(cmdp, u).c)):
        assert isinstance(result, Refused) or np.isfinite(result).all()
    other = data.draw(anything)
    for call in (lambda: evaluate(other, [0]), lambda: solve(other, 1.0), lambda: penalised(other, u)):
        assert isinstance(refusal(call), Refused)
    if other is not None:
        assert isinstance(refusal(lambda: solve(cmdp, 1.0, warm=other)), Refused)


# Counts, priors and worlds.


@cases(200)
@given(st.data())
def test_counts_are_fitted_or_refused(data):
    S, A = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    sparse_priors = st.sampled_from(["f8", "i4", "c16", "?"]).map(
        lambda kind: sp.csr_array(np.ones((S * A, S)).astype(kind))
    )
    entries = st.lists(st.floats(0.0, 2.0) | floats, min_size=S * A * S, max_size=S * A * S)
    tables = entries.map(lambda x: np.reshape(x, (S, A, S)))
    empty = st.sampled_from([(0, A, 0), (S, 0, S), (0, 0, 0)]).map(np.zeros)
    prior = data.draw(mostly(st.just(np.ones((S, A, S))) | sparse_priors, tables | empty | arrays() | anything))
    actions = data.draw(mostly(st.just(A), st.none() | anything))
    model = refusal(lambda: CountModel.init(prior, actions))
    if isinstance(model, Refused):
        return
    indices = mostly(st.just([0, 0]), st.lists(st.integers(-1, 2), max_size=2) | arrays() | anything)
    s, a, s_next = data.draw(st.tuples(indices, indices, indices) | indices.map(lambda x: (x, x, x)))
    fitted = refusal(lambda: model.fit(s, a, s_next))
    if not isinstance(fitted, Refused):
        model = fitted
        assert model.n.sum() == len(s)
    rows = model.P.toarray() if sp.issparse(model.P) else model.P
    assert_distributions(rows)


@cases(200)
@given(
    mostly(st.integers(1, 4), whole | anything),
    mostly(st.integers(1, 4), whole | anything),
    mostly(st.floats(0.0, 3.0), floats | anything),
    mostly(st.sampled_from([np.zeros((2, 3), int), [[0, 1], [1, 1]], [[0], [2]]]), arrays() | anything),
)
def test_priors_are_valid_or_refused(states, actions, mass, cells):
    for call in (
        lambda: uniform_prior(states, actions, mass),
        lambda: self_loop_prior(states, actions, mass),
        lambda: neighbour_prior(cells, actions, mass),
        lambda: pooled_prior(CountModel.init(uniform_prior(2, 2)), cells),
    ):
        prior = refusal(call)
        if not isinstance(prior, Refused):
            assert np.isfinite(CountModel.init(prior, None if prior.ndim == 3 else actions).mass).all()


@cases(200)
@given(st.data())
def test_gridworlds_are_drawn_or_refused(data):
    arguments = data.draw(
        st.fixed_dictionaries(
            {},
            optional={
                "size": mostly(st.integers(1, 12), st.sampled_from([0, 10**5, 10**30, 2.0, 2.5]) | scalars),
                "slip": mostly(st.sampled_from(["any", "other", "torus"]), anything),
                "slip_probability": mostly(st.floats(0.0, 1.0), floats | anything),
                "gamma": mostly(st.floats(0.0, 0.99), floats | anything),
            },
        )
    )
    rng = data.draw(mostly(st.just(np.random.default_rng(0)), anything))
    world = refusal(lambda: gridworld(rng, **{"size": 2, **arguments}))
    if not isinstance(world, Refused):
        assert isinstance(world.cmdp, CMDP) and len(world.successors) == world.size**2
