"""Count models and their priors give the estimates derived by hand, dense and sparse."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from capax.core.errors import InputError
from capax.tabular import CMDP, CountModel, gridworld, neighbour_prior, pooled_prior, self_loop_prior, uniform_prior
from capax.tabular.cmdp import MAX_DENSE_STATES

SUCCESSORS_2X2 = np.array([[0, 2, 0, 1], [1, 3, 0, 1], [0, 2, 2, 3], [1, 3, 2, 3]])
"""Up, down, left and right of each cell of a 2×2 grid; walls lead back to the cell itself."""


def random_steps(rng: np.random.Generator, S: int, A: int, T: int = 200) -> tuple[np.ndarray, ...]:
    """Random s, a and s_next of T steps."""
    return rng.integers(S, size=T), rng.integers(A, size=T), rng.integers(S, size=T)


# Priors.


def test_neighbour_prior_counts_walls_as_the_cell_itself():
    # Cell 0 of the 2×2 grid: up and left stay (2 pseudo-counts), down is cell 2, right is cell 1.
    prior = neighbour_prior(SUCCESSORS_2X2, 3)
    for action in range(3):
        np.testing.assert_array_equal(prior[0, action], [2.0, 1.0, 1.0, 0.0])


def test_neighbour_estimate_is_count_plus_one_over_n_plus_four():
    # Three steps 0 → 1 and one 0 → 2 under action 0: (0+2)/8, (3+1)/8, (1+1)/8, and 0 for cell 3, which is no neighbour.
    model = CountModel.init(neighbour_prior(SUCCESSORS_2X2, 4)).fit(
        np.zeros(4, int), np.zeros(4, int), np.array([1, 1, 2, 1])
    )
    np.testing.assert_allclose(model.P[0, 0], [2 / 8, 4 / 8, 2 / 8, 0.0], rtol=1e-15)
    np.testing.assert_allclose(model.P[0, 1], [2 / 4, 1 / 4, 1 / 4, 0.0], rtol=1e-15)  # an untried action


def test_neighbour_prior_of_half_counts():
    # Jeffreys: (count + ½)/(n + 2) with one step 0 → 1.
    prior = neighbour_prior(SUCCESSORS_2X2, 4, each=0.5)
    model = CountModel.init(prior).fit(np.array([0]), np.array([0]), np.array([1]))
    np.testing.assert_allclose(model.P[0, 0], [1 / 3, 1.5 / 3, 0.5 / 3, 0.0], rtol=1e-15)


def test_uniform_estimate_by_hand():
    # One pseudo-count over four states, one step 1 → 3: (0 + ¼)/2 three times and (1 + ¼)/2.
    model = CountModel.init(uniform_prior(4, 2)).fit(np.array([1]), np.array([0]), np.array([3]))
    np.testing.assert_allclose(model.P[1, 0], [0.125, 0.125, 0.125, 0.625], rtol=1e-15)
    np.testing.assert_allclose(model.P[1, 1], 0.25, rtol=1e-15)


def test_self_loop_estimate_by_hand():
    # Two pseudo-counts on staying, one step 1 → 2: staying 2/3, moving 1/3. An untried action stays.
    model = CountModel.init(self_loop_prior(3, 2, mass=2.0)).fit(np.array([1]), np.array([0]), np.array([2]))
    np.testing.assert_allclose(model.P[1, 0], [0.0, 2 / 3, 1 / 3], rtol=1e-15)
    np.testing.assert_array_equal(model.P[1, 1], [0.0, 1.0, 0.0])


@pytest.mark.parametrize(("prior", "mass"), [
    (neighbour_prior(SUCCESSORS_2X2, 2), 4.0),
    (neighbour_prior(SUCCESSORS_2X2, 2, each=0.5), 2.0),
    (uniform_prior(4, 2, mass=3.0), 3.0),
    (self_loop_prior(4, 2), 1.0),
])  # fmt: skip
def test_mass_is_the_sum_of_a_pairs_prior(prior, mass):
    np.testing.assert_allclose(CountModel.init(prior).mass, np.full((4, 2), mass), rtol=1e-15)


# Counting.


def test_visits_are_counted_per_pair():
    model = CountModel.init(uniform_prior(3, 2)).fit(np.array([0, 0, 2]), np.array([1, 1, 0]), np.array([1, 2, 2]))
    np.testing.assert_array_equal(model.n, [[0, 2], [0, 0], [1, 0]])


def test_dense_equals_sparse():
    rng = np.random.default_rng(0)
    dense = CountModel.init(uniform_prior(5, 3))
    sparse = CountModel.init(sp.csr_array(dense.prior.reshape(15, 5)), 3)
    for _ in range(2):
        steps = random_steps(rng, 5, 3)
        dense, sparse = dense.fit(*steps), sparse.fit(*steps)
    np.testing.assert_array_equal(sparse.counts.toarray().reshape(5, 3, 5), dense.counts)
    np.testing.assert_array_equal(sparse.n, dense.n)
    np.testing.assert_allclose(sparse.mass, dense.mass, rtol=1e-15)
    np.testing.assert_allclose(sparse.P.toarray().reshape(5, 3, 5), dense.P, rtol=1e-14)


@pytest.mark.parametrize("size", [4, 20])
def test_neighbour_prior_of_a_world_fits_its_cmdp(size):
    # Dense up to MAX_DENSE_STATES and sparse above, like the transitions of the world. The estimate is a valid P of a CMDP.
    world = gridworld(np.random.default_rng(1), size=size)
    model = CountModel.init(neighbour_prior(world.successors, 4), 4)
    assert sp.issparse(model.prior) == sp.issparse(world.cmdp.P) == (size * size > MAX_DENSE_STATES)
    steps = (np.arange(size * size), np.zeros(size * size, int), world.successors[:, 1])
    estimate = CMDP(model.fit(*steps).P, world.cmdp.r, world.cmdp.c, world.cmdp.mu0, 0.9)
    np.testing.assert_allclose(np.asarray(estimate.rows.sum(axis=1)).ravel(), 1.0, rtol=1e-14)


def test_batches_add_up():
    rng = np.random.default_rng(2)
    first, second = random_steps(rng, 4, 2), random_steps(rng, 4, 2)
    model = CountModel.init(uniform_prior(4, 2))
    all_at_once = model.fit(*(np.concatenate(pair) for pair in zip(first, second, strict=True)))
    np.testing.assert_array_equal(model.fit(*first).fit(*second).counts, all_at_once.counts)


@pytest.mark.parametrize("sparse", [False, True])
def test_fit_is_pure(sparse):
    prior = uniform_prior(4, 2)
    model = CountModel.init(sp.csr_array(prior.reshape(8, 4)) if sparse else prior, 2)
    fitted = model.fit(*random_steps(np.random.default_rng(3), 4, 2))
    assert fitted.P.sum() == pytest.approx(8.0)  # reading the estimate does not change the model either
    assert model.n.sum() == 0 and fitted.n.sum() == 200
    np.testing.assert_allclose(fitted.mass, 1.0, rtol=1e-15)


def test_estimate_approaches_the_truth():
    # With n draws a frequency has the standard deviation √(p(1−p)/n) ≤ .5/√n, and the prior shifts it by at most 4/n.
    rng, n = np.random.default_rng(4), 10_000
    p = rng.dirichlet(np.ones(4))
    model = CountModel.init(uniform_prior(4, 1, mass=4.0))
    model = model.fit(np.zeros(n, int), np.zeros(n, int), rng.choice(4, size=n, p=p))
    np.testing.assert_allclose(model.P[0, 0], p, atol=4 * 0.5 / np.sqrt(n) + 4 / n)


# Refused input.


@pytest.mark.parametrize(("prior", "actions", "message_part"), [
    (np.ones((2, 3)), None, "shape"),
    (np.ones((2, 3, 4)), None, "shape"),
    (np.zeros((2, 3, 2)), None, "mass"),
    (np.full((2, 1, 2), -1.0), None, "negative"),
    (np.array([[[2.0, -1.0]], [[1.0, 1.0]]]), None, "negative"),
    (np.full((2, 1, 2), np.nan), None, "non-finite"),
    (sp.csr_array(np.ones((6, 3))), None, "actions"),
    (sp.csr_array(np.ones((6, 3))), 3, "actions"),
    (sp.csr_array(np.eye(6, 3)), 2, "mass"),
    (sp.csr_array(-np.ones((6, 3))), 2, "negative"),
    (sp.csr_array(np.ones((6, 3), complex)), 2, "complex128"),
    (sp.coo_array(np.ones(6)), 2, "actions"),
    (np.full((2, 1, 2), 1e101), None, "huge"),
    (np.full((2, 1, 2), 1e-101), None, "mass"),
    (np.ones((0, 2, 0)), None, "shape"),
    (np.ones((2, 0, 2)), None, "shape"),
    (np.ones((2, 1, 2), complex), None, "not an array"),
    (np.ones((2, 3, 2)), 2, "actions is 2"),
])  # fmt: skip
def test_bad_priors_are_refused(prior, actions, message_part):
    with pytest.raises(InputError, match="prior") as error:
        CountModel.init(prior, actions)
    assert message_part in str(error.value)


@pytest.mark.parametrize("transition", [(0, 2, 0), (3, 0, 0), (0, 0, 3), (-1, 0, 0)])
def test_a_transition_outside_the_world_is_refused(transition):
    # three states, two actions: without the check, action 2 of state 0 would count as action 0 of state 1
    s, a, s_next = (np.array([index]) for index in transition)
    with pytest.raises(InputError, match="give indices from 0"):
        CountModel.init(uniform_prior(3, 2)).fit(s, a, s_next)


@pytest.mark.parametrize("bad", ["0", [0.0], 0, [[0]], [True], None, np.array([0], "m8[s]"), [[0], [0, 1]]])
@pytest.mark.parametrize("dense", [True, False])
def test_transitions_that_are_not_indices_are_refused(bad, dense):
    model = CountModel.init(*((uniform_prior(3, 2),) if dense else (sp.csr_array(np.ones((6, 3))), 2)))
    for transitions in ((bad, bad, bad), ([0], bad, [0])):
        with pytest.raises(InputError, match="give one index of each per step"):
            model.fit(*transitions)


@pytest.mark.parametrize(("make_prior", "message_start"), [
    (lambda: uniform_prior(0, 2), "states is 0: give a whole number >= 1."),
    (lambda: uniform_prior(2, "2"), "actions is '2': give a whole number >= 1."),
    (lambda: self_loop_prior(2, 2, 0.0), "mass is 0.0: give a number from"),
    (lambda: self_loop_prior(10**5, 2), "states 100000 × actions 2 × states 100000 is an array of 149 GiB"),
    (lambda: neighbour_prior([[0], [2]], 2), "successors holds 0 to 2: give indices of states from 0 to 1."),
    (lambda: neighbour_prior([0, 1], 2), "successors is not an integer table"),
    (lambda: neighbour_prior([[0]], 2, np.nan), "each is nan: give a number from"),
    (lambda: neighbour_prior([[0]], 2.5), "actions is 2.5: give a whole number >= 1."),
    (lambda: pooled_prior(CountModel.init(uniform_prior(2, 2)), [[0]]), "successors has 1 rows: give one for each of the 2"),
])  # fmt: skip
def test_bad_sizes_of_priors_are_refused(make_prior, message_start):
    with pytest.raises(InputError, match=f"^{message_start}"):
        make_prior()


def test_pooled_prior_spreads_each_pair_like_the_outcomes_of_the_action_elsewhere():
    # On a 3×3 torus every cell has four distinct successors. Action 0 (up) is counted 6 times: 5 steps go up, 1 goes
    # left. With ½ per direction, the shares of up, down, left, right are 5.5/8, .5/8, 1.5/8, .5/8. The mass is
    # 4 × ½ = 2.
    world = gridworld(np.random.default_rng(0), size=3, slip="torus")
    successors = world.successors
    s = np.array([0, 1, 2, 3, 4, 5])
    s_next = np.append(successors[:5, 0], successors[5, 2])
    model = CountModel.init(neighbour_prior(successors, 4, 0.5)).fit(s, np.zeros(6, int), s_next)
    prior = pooled_prior(model, successors)
    for cell in (0, 8):  # a visited cell and an unvisited one
        assert prior[cell, 0, successors[cell]] == pytest.approx(2 * np.array([5.5, 0.5, 1.5, 0.5]) / 8, abs=1e-15)
    assert prior[4, 1, successors[4]] == pytest.approx(np.full(4, 0.5), abs=1e-15)  # action 1 is untried
    assert prior.sum(-1) == pytest.approx(np.full((9, 4), 2.0), abs=1e-14)


def test_pooled_prior_excludes_cells_where_directions_are_ambiguous():
    # In the upper left corner, up and left both stay, so staying there does not show the direction.
    world = gridworld(np.random.default_rng(0), size=3)
    model = CountModel.init(neighbour_prior(world.successors, 4)).fit(
        np.zeros(9, int), np.zeros(9, int), np.zeros(9, int)
    )
    assert pooled_prior(model, world.successors)[4, 0, world.successors[4]] == pytest.approx(np.ones(4), abs=1e-15)


def test_pooled_prior_refuses_sparse_counts():
    world = gridworld(np.random.default_rng(0), size=11)
    with pytest.raises(InputError, match="dense"):
        pooled_prior(CountModel.init(neighbour_prior(world.successors, 4), 4), world.successors)
