"""A checkpoint with a right checksum and a wrong content is refused, and no class that it names is used."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.random as jr
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.forged_checkpoints import (
    HUGE,
    JSON,
    Arrays,
    Change,
    Content,
    check_message,
    content_of,
    forge,
    newest_checkpoint,
    places,
    refusal_of,
    replaced,
    write_signed,
)
from support.tiny_runs import without_times

import capax
from capax.core.errors import Damaged, InputError
from capax.runs import archive
from capax.runs.checkpoint import read
from capax.runs.run import Run
from capax.runs.state import StateLike, state_like
from capax.training.build import build


def fields(content: Content) -> dict[str, Any]:
    """The fields of the agent's state."""
    return content["state"]["fields"]


def episode(content: Content) -> dict[str, Any]:
    """The fields of the episode that waits for the next fit."""
    return content["fresh"][0]["fields"]


def column(content: Content, arrays: Arrays, name: str, change: Callable[[Any], Any]) -> None:
    """Change an array of the waiting episode."""
    number = episode(content)[name]["array"]
    arrays[number] = change(arrays[number])


def model(content: Content, arrays: Arrays, change: Callable[[Any], Any]) -> None:
    """Change the first array of the model."""
    number = fields(content)["model"]["fields"]["weights"]["items"][0]["array"]
    arrays[number] = change(arrays[number])


def every(arrays: Arrays, change: Callable[[Any], Any]) -> None:
    """Change all arrays."""
    arrays.update({name: change(array) for name, array in arrays.items()})


def nested(depth: int, key: str | None = None) -> Any:
    """Lists within lists, or with a key dictionaries within dictionaries."""
    value: Any = 0
    for _ in range(depth):
        value = [value] if key is None else {key: value}
    return value


# An ensemble's run.

FORGED: dict[str, Change] = {
    # classes: a file that names one is not obeyed
    "a class of elsewhere": lambda c, a: c.update(state={"class": "os.system", "fields": {"command": "true"}}),
    "a class in the place of a state": lambda c, a: c.update(state={"class": "../../PetsState"}),
    "another agent's state": lambda c, a: c.update(state={"class": "Kappa", "fields": {"kappa": 1.0}}),
    "a rule of another kind": lambda c, a: fields(c).update(rule={"class": "Kappa", "fields": {"kappa": 1.0}}),
    # the state as a whole
    "no state": lambda c, a: c.pop("state"),
    "a null state": lambda c, a: c.update(state=None),
    "a state that is a number": lambda c, a: c.update(state=5),
    "a state that is a text": lambda c, a: c.update(state="fields"),
    "a state that is a list": lambda c, a: c.update(state=[c["state"]]),
    "a state that is an array": lambda c, a: c.update(state={"array": "0", "order": "C"}),
    "a field too many": lambda c, a: fields(c).update(more=1),
    "a field of a long name": lambda c, a: fields(c).update({"x\n" * 9999: 1}),
    "a field too few": lambda c, a: fields(c).pop("rule"),
    "fields in a list": lambda c, a: c["state"].update(fields=[*fields(c)]),
    "a null field": lambda c, a: fields(c).update(rule=None),
    "a null model": lambda c, a: fields(c)["model"]["fields"].update(weights=None),
    "an empty thing": lambda c, a: fields(c).update(origin={}),
    # numbers and words
    "a text for a number": lambda c, a: fields(c).update(waiting="x"),
    "a text that holds a name": lambda c, a: fields(c).update(waiting="float"),
    "a list for a number": lambda c, a: fields(c).update(waiting=["float"]),
    "a text for a float": lambda c, a: fields(c)["rule"]["fields"].update(kappa={"float": "much"}),
    "a list for a float": lambda c, a: fields(c)["rule"]["fields"].update(kappa={"float": [1.0]}),
    "an array for a number": lambda c, a: fields(c)["rule"]["fields"].update(kappa={"array": "0", "order": "C"}),
    "a huge number": lambda c, a: fields(c).update(waiting=HUGE),
    "a huge negative number": lambda c, a: fields(c)["failures"]["fields"].update(fits=-HUGE),
    "a huge κ": lambda c, a: fields(c)["rule"]["fields"].update(kappa=HUGE),
    "a huge number in a list": lambda c, a: fields(c)["rule"]["fields"].update(errors={"items": [1.0, 2**63]}),
    "a text in the rule": lambda c, a: fields(c)["rule"]["fields"].update(errors={"items": ["x"]}),
    "a text for a list": lambda c, a: fields(c)["rule"]["fields"].update(errors={"items": "123"}),
    # nesting
    "lists in lists": lambda c, a: fields(c).update(failures=nested(200)),
    "fields in fields": lambda c, a: fields(c).update(failures=nested(200, "fields")),
    "items in items": lambda c, a: fields(c)["rule"]["fields"].update(errors=nested(200, "items")),
    # arrays
    "an array that is not there": lambda c, a: fields(c).update(origin={"array": "999", "order": "C"}),
    "an array by a path": lambda c, a: fields(c).update(origin={"array": "../0", "order": "C"}),
    "an array by a list": lambda c, a: fields(c).update(origin={"array": ["0"], "order": "C"}),
    "an array without order": lambda c, a: fields(c).update(origin={"array": "0"}),
    "arrays of other shapes": lambda c, a: every(a, lambda x: np.zeros((3, 3, 3), np.float32)),
    "arrays of other types": lambda c, a: every(a, lambda x: x.astype(np.float64)),
    "one array longer": lambda c, a: model(c, a, lambda x: np.concatenate([x, x])),
    "one array flat": lambda c, a: model(c, a, lambda x: x.reshape(-1)),
    "one array transposed": lambda c, a: model(c, a, lambda x: x.T),
    "one array of numbers of 16 bits": lambda c, a: model(c, a, lambda x: x.astype(np.float16)),
    "one array of whole numbers": lambda c, a: model(c, a, lambda x: x.astype(np.int32)),
    "one array of flags": lambda c, a: model(c, a, lambda x: x.astype(bool)),
    "one empty array": lambda c, a: model(c, a, lambda x: x[:0]),
    "a number for an array": lambda c, a: fields(c).update(origin=1.0),
    "a sparse matrix for an array": lambda c, a: fields(c).update(origin={"csr": [0, 0, 0], "shape": [2, 2]}),
    "a list of arrays too few": lambda c, a: fields(c)["model"]["fields"]["weights"]["items"].pop(),
    "a list of arrays too many": lambda c, a: fields(c)["model"]["fields"]["weights"]["items"].append(
        {"array": "0", "order": "C"}
    ),
    # episodes that were not learned from
    "episodes that are none": lambda c, a: c.update(fresh={"list": [1, 2]}),
    "fresh is no list": lambda c, a: c.update(fresh=7),
    "fresh is null": lambda c, a: c.update(fresh=None),
    "a null episode": lambda c, a: c.update(fresh=[None]),
    "an episode with a field too few": lambda c, a: episode(c).pop("truncated"),
    "an episode with a field of a long name": lambda c, a: episode(c).update({"x\n" * 9999: 1}),
    "an episode whose rewards are fewer": lambda c, a: column(c, a, "reward", lambda x: x[:-1]),
    "an episode whose observations are more": lambda c, a: column(c, a, "obs", lambda x: np.concatenate([x, x])),
    "an episode whose extras are fewer": lambda c, a: episode(c)["extras"]["dict"].update(
        plan_cost={"array": "0", "order": "C"}
    ),
    "an episode whose frames are fewer": lambda c, a: episode(c).update(frames={"array": "0", "order": "C"}),
    "an episode without steps": lambda c, a: every(a, lambda x: x[:0] if len(x.shape) and len(x) == 50 else x),
    "an episode of other observations": lambda c, a: column(c, a, "obs", lambda x: np.zeros((50, 7))),
    "an episode of other observations after it": lambda c, a: column(c, a, "next_obs", lambda x: np.zeros((50, 2))),
    "an episode of other actions": lambda c, a: column(c, a, "action", lambda x: np.zeros((50, 3), np.float32)),
    "an episode whose costs are rows": lambda c, a: column(c, a, "cost", lambda x: np.zeros((50, 2))),
    "an episode whose cost is one number": lambda c, a: column(c, a, "cost", lambda x: x.sum()),
    "an episode that paid a text": lambda c, a: episode(c).update(paid="x"),
    "an episode that paid too many digits": lambda c, a: episode(c).update(paid=HUGE),
    "an episode with a number for a flag": lambda c, a: episode(c).update(random=1),
    "an episode whose extras are a list": lambda c, a: episode(c).update(extras=[]),
    # counts, rows and settings
    "a log longer than it is": lambda c, a: c.update(log=10**15),
    "a negative log": lambda c, a: c.update(log=-1),
    "a log of a fraction": lambda c, a: c.update(log=1.5),
    "a log in the middle of a record": lambda c, a: c.update(log=c["log"] - 1),
    "more transitions than the log has": lambda c, a: fields(c)["buffer"]["buffer"].update(size=10**9),
    "fewer transitions than none": lambda c, a: fields(c)["buffer"]["buffer"].update(size=-1),
    "transitions that are a text": lambda c, a: fields(c)["buffer"]["buffer"].update(size="5"),
    "a buffer that is a number": lambda c, a: fields(c).update(buffer=5),
    "a number that is none": lambda c, a: c.update(number="3"),
    "a huge count of steps": lambda c, a: c.update(steps=HUGE),
    "a row that is none": lambda c, a: c.update(row=[1]),
    "a row of numbers that are none": lambda c, a: c["row"].update(cost=float("nan")),
    "settings that are none": lambda c, a: c.update(settings=3),
    "settings that are null": lambda c, a: c.update(settings=None),
    "no version": lambda c, a: c.pop("version"),
    "a version that is a number": lambda c, a: c.update(version=9),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_checkpoint_is_refused(run, name):
    forge(run, FORGED[name])
    assert "is damaged" in refusal_of(run)


@pytest.mark.parametrize("name", ["a null state", "a huge κ", "an episode whose rewards are fewer"])
def test_the_checkpoint_before_a_forged_one_is_used(run, trained, tmp_path, name):
    whole = capax.resume(shutil.copytree(trained, tmp_path / "whole"))
    forge(run, FORGED[name])
    assert without_times(capax.resume(run).episodes) == without_times(whole.episodes)
    assert [path.name for path in (run / "checkpoints").glob("*.damaged")] == ["episode-000003.safetensors.damaged"]


def test_a_class_in_a_file_is_not_read(run, trained, tmp_path):
    def name_classes(content: Content, arrays: Arrays) -> None:
        content["state"]["class"] = "os.system"
        fields(content)["rule"]["class"] = "../../PetsState"

    whole = capax.resume(shutil.copytree(trained, tmp_path / "whole"))
    forge(run, name_classes)
    assert without_times(capax.resume(run).episodes) == without_times(whole.episodes)


def test_settings_of_another_run_are_refused_by_name(run):
    forge(run, lambda c, a: c["settings"].update({"seed": 7, "x\n" * 9999: 1}))
    message = refusal_of(run)
    assert "belongs to other settings (seed, x x x" in message and message.endswith(
        "than config.json: restore that file."
    )


@pytest.mark.parametrize("text", ["", "{", "nonsense", "[" * 100_000, '{"state":' * 50_000, "1" * 5000])
def test_a_text_that_is_no_json_is_refused(run, text):
    _, arrays = content_of(newest_checkpoint(run))
    write_signed(newest_checkpoint(run), text, arrays)
    assert "is damaged" in refusal_of(run)


@pytest.mark.parametrize("content", [None, [], 5, {}, {"format": 1}, {"format": "2"}])
def test_another_content_is_of_another_format(run, content):
    _, arrays = content_of(newest_checkpoint(run))
    write_signed(newest_checkpoint(run), content, arrays)
    assert "in another format, which this one cannot read" in refusal_of(run)


@pytest.mark.parametrize(("version", "shown"), [("9.9", "9.9"), (None, "None"), ("9\n" * 99, "9 9 9 9 9 9 9 9 9 9…")])
def test_a_checkpoint_of_another_format_says_so(run, version, shown):
    forge(run, lambda c, a: c.update(format=99, version=version))
    assert refusal_of(run).endswith(f"was written by capax {shown} in another format, which this one cannot read.")


@pytest.mark.parametrize("depth", [50, 400, *range(800, 1000, 20)])
def test_a_nested_row_is_used_or_refused(run, depth):
    content, arrays = content_of(newest_checkpoint(run))
    content["row"]["more"] = "nested"
    text = json.dumps(content).replace('"nested"', "[" * depth + "]" * depth)
    write_signed(newest_checkpoint(run), text, arrays)
    rows = (run / "episodes.jsonl").read_text().splitlines(keepends=True)
    (run / "episodes.jsonl").write_text("".join(rows[:2]))  # so that the row of the checkpoint takes its place
    try:
        assert len(capax.resume(run).episodes) == 5
    except InputError as error:
        check_message(error)


def test_a_log_with_rows_of_absurd_width_takes_no_memory(run):
    wide = {name: np.zeros((0, 2**40) if name == "obs" else (0,), np.float32) for name in
            ("obs", "action", "reward", "cost", "next_obs", "terminated")}  # fmt: skip
    with (run / "checkpoints" / "buffer.log").open("wb") as file:
        length = archive.write(file, wide, '{"added": 0}')
    forge(run, lambda c, a: c.update(log=length))
    assert "do not fit into it" in refusal_of(run)


def test_a_log_with_rows_of_another_width_is_refused(run):
    rows = {name: np.zeros((100, 3) if name in ("obs", "next_obs") else (100, 1) if name == "action" else (100,), np.float32)
            for name in ("obs", "action", "reward", "cost", "next_obs", "terminated")}  # fmt: skip
    with (run / "checkpoints" / "buffer.log").open("wb") as file:
        length = archive.write(file, rows, '{"added": 100}')
    forge(run, lambda c, a: c.update(log=length))
    assert "has rows of" in refusal_of(run)


# Other agents.


def test_a_state_where_an_agent_has_none_is_refused(tmp_path):
    run = capax.train("capax/Integrator-v0", steps=100, method="random", out=tmp_path / "run")
    assert content_of(newest_checkpoint(run.folder))[0]["state"] is None
    for state in (0, {}, {"fields": {}}, [], "x"):
        forge(run.folder, lambda c, a, state=state: c.update(state=state))
        assert "is damaged" in refusal_of(run.folder, lambda folder: capax.resume(folder, steps=150))
        assert not list((run.folder / "checkpoints").glob("*.damaged"))  # it is whole: perhaps the agent is another one


FORGED_TABULAR: dict[str, Change] = {
    "a null state": lambda c, a: c.update(state=None),
    "a null policy": lambda c, a: fields(c).update(policy=None),
    "a status that is no word": lambda c, a: fields(c)["plan"]["fields"].update(status="two words\n"),
    "a status that is long": lambda c, a: fields(c)["plan"]["fields"].update(status="x" * 65),
    "a status that is a number": lambda c, a: fields(c)["plan"]["fields"].update(status=1),
    "a text for the count of actions": lambda c, a: fields(c)["model"]["fields"].update(actions="4"),
    "a huge count of actions": lambda c, a: fields(c)["model"]["fields"].update(actions=HUGE),
    "counts of another shape": lambda c, a: a.update({"0": a["0"][:, :3]}),
    "counts of whole numbers": lambda c, a: a.update({"0": a["0"].astype(np.int64)}),
    "sparse counts": lambda c, a: fields(c)["model"]["fields"].update(counts={"csr": [0, 0, 0], "shape": [256, 64]}),
    "a state beyond the world": lambda c, a: column(c, a, "obs", lambda x: x + 10**6),
    "a state below the world": lambda c, a: column(c, a, "next_obs", lambda x: x - 10**6),
    "an action beyond the world": lambda c, a: column(c, a, "action", lambda x: x + 4),
    "a state that is a fraction": lambda c, a: column(c, a, "obs", lambda x: x + 0.5),
    "states in rows": lambda c, a: column(c, a, "obs", lambda x: np.stack([x, x], 1)),
    "arrays of different lengths": lambda c, a: column(c, a, "next_obs", lambda x: x[1:]),
}


@pytest.mark.parametrize("name", FORGED_TABULAR)
def test_a_forged_checkpoint_of_a_finite_world_is_refused(tabular_run, name):
    forge(tabular_run, FORGED_TABULAR[name])
    assert "is damaged" in refusal_of(tabular_run)


# Anything else, at any place.


class Whole(NamedTuple):
    """A checkpoint that is whole, and what its state looks like."""

    run: Path
    content: Content
    arrays: Arrays
    like: StateLike


@pytest.fixture(scope="module", params=["trained", "tabular"])
def whole(request) -> Whole:
    """The newest checkpoint of a run."""
    run = request.getfixturevalue(request.param)
    content, arrays = content_of(newest_checkpoint(run))
    return Whole(run, content, arrays, state_like(agent_of(run), jr.key(0)))


def agent_of(run: Path) -> Any:
    """The agent of a run."""
    config = Run(run).config
    world = None
    if config.kind == "finite":
        from capax.envs.open_task import open_task

        world = open_task(config.task).world
    return build(config, world).agent


def check_forged(whole: Any, folder: Path, forged: Any) -> None:
    """Check that a signed checkpoint with this content is read as a state, or refused in a sentence."""
    log = whole.run / "checkpoints" / "buffer.log"
    if log.exists():
        shutil.copy(log, folder)
    path = folder / "episode-000003.safetensors"
    write_signed(path, forged, whole.arrays)
    try:
        saved, *_ = read(path, Run(whole.run).config, whole.like)
    except (InputError, Damaged) as error:
        check_message(error)
        return
    assert type(saved.progress.state) is type(whole.like.example)
    numbers = [leaf for leaf in jax.tree.leaves(saved.progress) if isinstance(leaf, int)]
    assert all(abs(number) < 2**63 for number in numbers)  # arrays can hold them


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_a_signed_checkpoint_says_it_is_a_state_or_refused(whole, tmp_path_factory, data):
    forged = replaced(whole.content, data.draw(st.sampled_from(places(whole.content))), data.draw(JSON))
    check_forged(whole, tmp_path_factory.mktemp("forged"), forged)


def test_a_huge_number_in_any_place_is_refused_or_ignored(whole, tmp_path):
    everywhere = places(whole.content)
    for place in everywhere[:: max(1, len(everywhere) // 120)]:
        check_forged(whole, tmp_path, replaced(whole.content, place, HUGE))


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_arrays_a_signed_checkpoint_has_it_is_a_state_or_refused(whole, tmp_path_factory, data):
    name = data.draw(st.sampled_from(sorted(whole.arrays)))
    shape = data.draw(st.lists(st.integers(0, 5), max_size=3).map(tuple))
    array = np.ones(shape, data.draw(st.sampled_from(["f4", "f8", "f2", "i4", "i8", "u1", "u8", "?"])))
    path = tmp_path_factory.mktemp("forged") / "episode-000003.safetensors"
    write_signed(path, whole.content, {**whole.arrays, name: array})
    try:
        saved, *_ = read(path, Run(whole.run).config, whole.like, log=False)
    except (InputError, Damaged) as error:
        check_message(error)
        return
    assert type(saved.progress.state) is type(whole.like.example)
