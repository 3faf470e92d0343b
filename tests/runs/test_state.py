"""States are restored against an example, which decides classes, shapes and types; a file with anything else is refused."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.forged_checkpoints import JSON, Arrays, check_message, places, replaced

from capax.core.errors import Damaged
from capax.core.types import AnyNumber
from capax.runs.state import StateLike, StateReader, flatten, restore

# Sparse matrices, whose readers do not check their indices.


class SparseState(NamedTuple):
    """A state with a sparse matrix."""

    counts: Any
    kappa: float = 0.5


MATRIX = sp.csr_array(np.array([[0.0, 1.0, 2.0], [0.0, 0.0, 0.0], [3.0, 0.0, 4.0], [0.0, 5.0, 0.0]]))
# data 1 2 3 4 5, indices 1 2 0 2 1, indptr 0 2 2 4 5
LIKE = StateLike(SparseState(sp.csr_array(MATRIX.shape)), SparseState(sp.csr_array(MATRIX.shape)))
INT = np.int32
FORGED_SPARSE: dict[str, dict[str, Any]] = {
    "an indptr beyond the data": {"2": np.array([0, 2, 2, 4, 10**9], INT)},
    "an indptr that ends early": {"2": np.array([0, 2, 2, 4, 4], INT)},
    "an indptr beyond the data in between": {"2": np.array([0, 2, 10**9, 4, 5], INT)},
    "a negative indptr": {"2": np.array([0, -(10**9), 2, 4, 5], INT)},
    "an indptr that falls": {"2": np.array([0, 4, 2, 4, 5], INT)},
    "an indptr whose differences overflow": {"2": np.array([0, 2**63 - 1, -(2**63), -1, 5], np.int64)},
    "an indptr that begins late": {"2": np.array([1, 2, 2, 4, 5], INT)},
    "an indptr too short": {"2": np.array([0, 2, 4, 5], INT)},
    "an indptr too long": {"2": np.array([0, 2, 2, 4, 5, 5], INT)},
    "an empty indptr": {"2": np.array([], INT)},
    "an indptr of fractions": {"2": np.array([0.0, 2, 2, 4, 5])},
    "an indptr in rows": {"2": np.array([[0, 2, 2, 4, 5]], INT)},
    "an index beyond the columns": {"1": np.array([1, 3, 0, 2, 1], INT)},
    "an index far beyond the columns": {"1": np.array([1, 10**9, 0, 2, 1], INT)},
    "a negative index": {"1": np.array([1, -1, 0, 2, 1], INT)},
    "too few indices": {"1": np.array([1, 2, 0, 2], INT)},
    "indices of fractions": {"1": np.array([1.0, 2, 0, 2, 1])},
    "indices without a sign": {"1": np.array([1, 2, 0, 2, 1], np.uint64)},
    "too few data": {"0": np.array([1.0, 2, 3, 4])},
    "data of objects' size": {"0": np.array([1, 2, 3, 4, 5], np.int64)},
    "data in rows": {"0": np.array([[1.0, 2, 3, 4, 5]])},
}
FORGED_SHAPES: list[Any] = [[4, 4], [3, 3], [2**40, 2**40], [4], [4, 3, 1], "43", None, [4.5, 3], [[4], 3], {"4": 3}]


def flat_state() -> tuple[Any, Arrays]:
    """A state with a sparse matrix as JSON and arrays."""
    arrays: Arrays = {}
    return flatten(SparseState(MATRIX), arrays), arrays


def restored(payload: Any, arrays: Arrays, like: StateLike = LIKE) -> Any:
    """The state that JSON and arrays stand for."""
    return restore(payload, like, StateReader(arrays, lambda size, added: pytest.fail("there is no buffer")))


def damage(payload: Any, arrays: Arrays, like: StateLike = LIKE) -> str:
    """The message with which a state is refused."""
    with pytest.raises(Damaged) as caught:
        restored(payload, arrays, like)
    check_message(caught.value)
    return str(caught.value)


def test_a_sparse_matrix_is_restored():
    state = restored(*flat_state())
    assert isinstance(state, SparseState) and state.kappa == 0.5 and sp.issparse(state.counts)
    np.testing.assert_array_equal(state.counts.toarray(), MATRIX.toarray())
    empty: Arrays = {}
    payload = flatten(LIKE.example, empty)
    assert restored(payload, empty).counts.nnz == 0


@pytest.mark.parametrize("name", FORGED_SPARSE)
def test_a_sparse_matrix_with_wrong_indices_is_damaged(name):
    payload, arrays = flat_state()
    assert set(arrays) == {"0", "1", "2"}
    assert damage(payload, arrays | FORGED_SPARSE[name]) == "its state.counts is no sparse matrix of shape (4, 3)"


@pytest.mark.parametrize("shape", FORGED_SHAPES, ids=str)
def test_a_sparse_matrix_of_another_shape_is_damaged(shape):
    payload, arrays = flat_state()
    payload["fields"]["counts"]["shape"] = shape
    assert damage(payload, arrays).startswith("its state")


@pytest.mark.parametrize("payload", [
    None, 5, "x", {}, {"csr": []}, {"csr": None, "shape": [4, 3]}, {"array": "0", "order": "C"},
    {"csr": [{"array": "9", "order": "C"}] * 3, "shape": [4, 3]}, {"csr": [{"array": "0", "order": "C"}] * 4, "shape": [4, 3]},
])  # fmt: skip
def test_what_is_no_sparse_matrix_is_damaged(payload):
    state, arrays = flat_state()
    state["fields"]["counts"] = payload
    assert damage(state, arrays).startswith("its state")


# Restoring against an example.


class Part(NamedTuple):
    """A part of a state."""

    x: Any = 0.0


class State(NamedTuple):
    """A state with a leaf of every kind."""

    number: float
    flag: bool
    word: str
    host: np.ndarray
    device: Any
    numbers: tuple[float, ...]
    pair: tuple[Any, Any]
    parts: Any
    late: Any


EXAMPLE = State(
    1.0,
    True,
    "optimal",
    np.zeros((2, 3)),
    jnp.zeros(2, jnp.float32),
    (),
    (0, Part()),
    AnyNumber(Part(np.zeros(1))),
    Part(),
)
STATE = State(
    float("-inf"), False, "infeasible", np.asfortranarray(np.arange(6.0).reshape(2, 3)), jnp.ones(2, jnp.float32), (1.5, 2.0),
    (7, Part(np.float64(0.1))), tuple(Part(np.full(1, float(i))) for i in range(3)), Part(3),
)  # fmt: skip


def test_a_state_is_restored_with_the_classes_of_its_example():
    arrays: Arrays = {}
    payload = json.loads(json.dumps(flatten(STATE, arrays), allow_nan=False))
    again = restored(payload, arrays, StateLike(EXAMPLE, EXAMPLE))
    assert type(again) is State and type(again.late) is Part and type(again.parts[2]) is Part
    assert (again.number, again.flag, again.word, again.numbers) == (float("-inf"), False, "infeasible", (1.5, 2.0))
    assert again.pair == (7, Part(0.1)) and again.late == Part(3)
    np.testing.assert_array_equal(again.host, STATE.host)
    assert again.host.flags.f_contiguous and isinstance(again.device, type(STATE.device))
    assert [part.x.tolist() for part in again.parts] == [[0.0], [1.0], [2.0]]
    assert "State" not in json.dumps(payload) and "Part" not in json.dumps(payload)


def test_a_part_may_be_empty_only_where_the_first_state_has_it_empty():
    arrays: Arrays = {}
    payload = flatten(STATE._replace(late=None), arrays)
    assert restored(payload, arrays, StateLike(EXAMPLE, EXAMPLE._replace(late=None))).late is None
    assert damage(payload, arrays, StateLike(EXAMPLE, EXAMPLE)) == "its state.late is empty, which this run's is not"
    filled = flatten(STATE, arrays := {})
    without = StateLike(EXAMPLE._replace(late=None), EXAMPLE._replace(late=None))
    assert damage(filled, arrays, without) == "its state.late is filled, which this run's is not"


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_json_says_it_is_a_state_or_damaged(data):
    arrays: Arrays = {}
    payload = json.loads(json.dumps(flatten(STATE, arrays)))
    forged = replaced(payload, data.draw(st.sampled_from(places(payload))), data.draw(JSON))
    try:
        assert type(restored(forged, arrays, StateLike(EXAMPLE, EXAMPLE))) is State
    except Damaged as error:
        check_message(error)
