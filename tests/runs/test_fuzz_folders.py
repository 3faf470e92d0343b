"""Whatever stands in the JSON files of a foreign run folder, every reader of it uses it or refuses it in a sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.forged_checkpoints import HUGE, JSON, check_message, places, replaced

import capax
from capax.core.errors import Damaged, InputError
from capax.reporting.comparison import compare
from capax.reporting.runs import report, summaries
from capax.runs.run import Run
from capax.runs.state import StateLike, StateReader, flatten, restore
from capax.runtime.switches import PRECISION
from capax.training.train import resume

ODD = [None, True, 0, -1, 2.5, 10**400, -HUGE, 2**63, 1e308, "", "x", "a\x1b[2J\nb", [], [[]], [HUGE], {}, {"x": {}}]
"""Values of every kind, small enough in number to be tried in every place."""
json_values = st.sampled_from(ODD) | JSON | st.sampled_from([[2**61, 0], [float("nan")], "9" * 5000, "é" * 400])
few = settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def random_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two random episodes, which is quick to open."""
    out = tmp_path_factory.mktemp("random") / "run"
    capax.train("capax/Integrator-v0", method="random", steps=100, out=out)
    return out


@pytest.fixture(scope="module", params=["random_run", "tabular", "trained"])
def foreign(request: pytest.FixtureRequest) -> Path:
    """Runs of several agents."""
    return request.getfixturevalue(request.param)


def copy_of(run: Path, factory: pytest.TempPathFactory) -> Path:
    """A copy that can be changed."""
    return shutil.copytree(run, factory.mktemp("copy") / "run")


def used_or_refused(call: Callable[[], Any]) -> None:
    """Any error but a sentence of capax's passes, and fails the test."""
    try:
        call()
    except InputError as error:
        check_message(error)


def read_all(folder: Path) -> None:
    """All readers that take no step."""
    assert str(Run(folder)).isprintable() and Run(folder)._repr_html_()
    used_or_refused(lambda: capax.load(folder))
    used_or_refused(lambda: summaries([Run(folder)]))
    used_or_refused(lambda: compare([Run(folder)]))


def dumped(value: Any) -> str:
    """JSON as Python writes it: NaN and numbers beyond floats included."""
    return json.dumps(value)


# Configurations.


@few
@given(data=st.data())
def test_any_part_of_a_config(foreign, tmp_path_factory, data):
    config, folder = json.loads((foreign / "config.json").read_text()), copy_of(foreign, tmp_path_factory)
    for _ in range(data.draw(st.integers(1, 2))):
        config = replaced(config, data.draw(st.sampled_from(places(config))), data.draw(json_values))
    (folder / "config.json").write_text(dumped(config))
    read_all(folder)


def test_every_field_of_a_config_with_every_odd_value(random_run, tmp_path_factory):
    config, folder = json.loads((random_run / "config.json").read_text()), copy_of(random_run, tmp_path_factory)
    for name in config:
        for value in (*ODD, ...):
            table = (
                {key: part for key, part in config.items() if key != name} if value is ... else config | {name: value}
            )
            (folder / "config.json").write_text(dumped(table))
            with suppress(InputError):
                assert Run(folder).config.as_dict()
                read_all(folder)


@pytest.mark.parametrize("change", [
    *({"rule": {name: value}} for name in ("x", "gain", "rate", "kappa") for value in (None, 10**400, "x", {})),
    *({"switches": {PRECISION: value}} for value in ODD),
    *({"kind": kind, "states": count, "actions": count} for kind in ("vector", "image", "finite") for count in (None, 4)),
    *({name: None, "method": "calibrated"} for name in ("iterations", "restarts", "episode_steps")),
], ids=lambda change: str(change)[:40])  # fmt: skip
@pytest.mark.parametrize("method", ["trained", "tabular"])
def test_parts_of_a_config_that_do_not_belong_together(method, change, request, tmp_path_factory):
    folder = copy_of(request.getfixturevalue(method), tmp_path_factory)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(dumped(config | change))
    used_or_refused(lambda: capax.load(folder))
    used_or_refused(lambda: resume(folder))


TEXTS = {
    "a key twice": lambda text: text.replace('"seed"', '"steps": 5, "seed"', 1),
    "another format twice": lambda text: text.replace('"format"', '"format": 1, "format"', 1),
    "a number of many digits": lambda text: text.replace('"seed": 0', '"seed": ' + "9" * 5000, 1),
    "a number beyond floats": lambda text: text.replace('"seed": 0', '"seed": 1e999', 1),
    "half of it": lambda text: text[: len(text) // 2],
    "another encoding": lambda text: text.encode("utf-16").decode("latin-1"),
    "a null byte": lambda text: text.replace("{", "{\0", 1),
    "deep lists": lambda text: text.replace('"seed": 0', '"seed": ' + "[" * 50_000 + "]" * 50_000, 1),
    "deep settings": lambda text: text.replace('"seed": 0', '"settings": ' + '{"a":' * 900 + "1" + "}" * 900, 1),
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts_of_a_config_that_are_odd_as_a_whole(random_run, tmp_path_factory, name):
    folder = copy_of(random_run, tmp_path_factory)
    path = folder / "config.json"
    path.write_text(TEXTS[name](path.read_text()))
    assert (
        name in ("a key twice", "another format twice") or path.read_text() != (random_run / "config.json").read_text()
    )
    read_all(folder)
    used_or_refused(lambda: resume(folder))


# Rows.


def changed_rows(rows: list[dict[str, Any]], data: st.DataObject) -> list[Any]:
    """Rows of which one or two parts are something else, or missing."""
    value: Any = rows
    for _ in range(data.draw(st.integers(1, 2))):
        place = data.draw(st.sampled_from([place for place in places(value) if place]))
        if len(place) == 2 and data.draw(st.booleans()):
            value = [{k: v for k, v in row.items() if (i, k) != place} if type(row) is dict else row
                     for i, row in enumerate(value)]  # fmt: skip
        else:
            value = replaced(value, place, data.draw(json_values))
    return value


@few
@given(data=st.data(), name=st.sampled_from(["episodes.jsonl", "interrupted.jsonl"]))
def test_any_part_of_rows(foreign, tmp_path_factory, data, name):
    folder = copy_of(foreign, tmp_path_factory)
    rows = [json.loads(line) for line in (foreign / "episodes.jsonl").read_text().splitlines()]
    path = folder / name
    path.write_text("".join(dumped(row) + "\n" for row in changed_rows(rows, data)))
    read_all(folder)
    if data.draw(st.integers(0, 9)) == 0:
        used_or_refused(lambda: report(folder, folder / "x.png"))


def hostile_rows(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A row with each of its fields changed to something of each kind, or missing."""
    for name in row:
        yield {key: value for key, value in row.items() if key != name}
        for value in (None, HUGE, "x", [], {"x": 1}, float("nan")):
            yield row | {name: value}


def test_every_field_of_a_row(random_run, tmp_path_factory):
    folder = copy_of(random_run, tmp_path_factory)
    path = folder / "episodes.jsonl"
    first, last = map(json.loads, path.read_text().splitlines())
    for number, row in enumerate(hostile_rows(last)):
        path.write_text(dumped(first) + "\n" + dumped(row) + "\n")
        assert str(Run(folder)).isprintable()
        used_or_refused(lambda: summaries([Run(folder)]))
        used_or_refused(lambda: compare([Run(folder)]))
        if number % 9 == 0 and row != last:
            with pytest.raises(InputError) as refused:  # the checkpoint holds the row as it was
                resume(folder, steps=100)
            check_message(refused.value)


def test_a_picture_of_rows_with_odd_numbers_is_refused(random_run, tmp_path_factory):
    folder = copy_of(random_run, tmp_path_factory)
    row = json.loads((random_run / "episodes.jsonl").read_text().splitlines()[0])
    config = Run(random_run).config
    for name in (*config.return_names, config.cost_name, "steps", "kappa"):
        (folder / "episodes.jsonl").write_text(dumped(row | {name: HUGE}) + "\n")
        with pytest.raises(InputError, match="has a row that capax did not write"):
            report(folder, folder / "x.png")


@few
@given(
    lines=st.lists(JSON.map(dumped) | st.text(max_size=20), max_size=4),
    name=st.sampled_from(["running", "interrupted"]),
)
def test_any_lines_of_a_journal(random_run, tmp_path_factory, lines, name):
    folder = copy_of(random_run, tmp_path_factory)
    (folder / f"{name}.jsonl").write_text("".join(line + "\n" for line in lines))
    used_or_refused(lambda: resume(folder, steps=100))
    assert str(Run(folder)).isprintable()


# Sparse matrices of a checkpoint.

MATRIX = sp.csr_array(np.array([[0.0, 1.0, 2.0], [0.0, 0.0, 0.0], [3.0, 0.0, 4.0]]))
LIKE = StateLike((sp.csr_array((3, 3)),), (sp.csr_array((3, 3)),))
indices = st.integers(-2, 5) | st.sampled_from([10**9, -(10**9), 2**62, -(2**62)])
dtypes = st.sampled_from(["i8", "i8", "i4", "u8", "f8"])
ARRAYS = {"1": MATRIX.indices.tolist(), "2": MATRIX.indptr.tolist()}


@st.composite
def index_arrays(draw: Any, name: str) -> np.ndarray:
    """The indices or the `indptr` of the matrix with another entry, or something else."""
    numbers = draw(st.just(ARRAYS[name]) | st.just(ARRAYS[name]) | st.lists(indices, max_size=6))
    if numbers:
        place = draw(st.integers(0, len(numbers) - 1))
        numbers = [*numbers[:place], draw(indices), *numbers[place + 1 :]]
    return np.array(numbers, np.int64).astype(draw(dtypes))


@settings(few, max_examples=300)
@given(
    st.sampled_from("12").flatmap(lambda name: st.fixed_dictionaries({name: index_arrays(name)})),
    st.just([3, 3]) | st.sampled_from([[2**61, 0], [0, 2**61], [4, 3], [3, 10**400], None, "33", [3.0, 3.0]]),
)
def test_any_sparse_matrix_of_a_checkpoint(forged, shape):
    arrays: dict[str, Any] = {}
    payload = flatten((MATRIX,), arrays)
    payload["items"][0]["shape"] = shape
    try:
        (matrix,) = restore(payload, LIKE, StateReader(arrays | forged, lambda size, added: None))
    except Damaged as error:
        check_message(error)
        return
    matrix.check_format(full_check=True)
    assert np.isfinite((matrix @ np.ones(3)).sum()) and matrix.toarray().shape == (3, 3)
