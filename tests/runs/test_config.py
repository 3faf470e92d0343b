"""`RunConfig`: what a run is decided by. It checks itself, is frozen, and survives `config.json` unchanged."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from support.fuzz_strategies import Refused, anything, cases, refusal
from support.tiny_runs import counting, train_random

import capax
from capax.cli.main import main
from capax.core.errors import InputError
from capax.runs.config import FORMAT, FREE, MAX_COUNT, RunConfig
from capax.runs.run import Run

COMMON: dict[str, Any] = dict(
    method="cap", steps=100, seed=0, gamma=0.99, discounted=False, violation_rate=0.02, capacity=100, action_low=(-1.0, -2.0),
    action_high=(1.0, 2.0), action_shape=(2,),
)  # fmt: skip
CONFIGS: dict[str, RunConfig] = {
    "vector": RunConfig(
        task="capax/Integrator-v0", kind="vector", obs_dim=3, cost_limit=25.0, kappa="conformal", rule={"gain": 0.2},
        preset="fast", settings={"cem": {"population": 64}, "layers": 3, "execute": "best"}, episode_steps=50, repeat=2,
        env_kwargs={"wind": True, "name": "κ", "scale": [1, 2.5]}, own_cost=True, own_kappa=True, initial_policy=True,
        initial_data="data.npz", version="1.2", commit="abc", device="a card", made_by="function", action_dtype="float64",
        **COMMON,
    ),
    "image": RunConfig(
        task="capax/Dot-v0", kind="image", image=(64, 64, 3), kappa=0.3, initial_data=True, random_low=(0.0, -1.0),
        random_high=(1.0, 1.0), **COMMON,
    ),
    "finite": RunConfig(
        task="capax/Gridworld-v0", kind="finite", method="cap", steps=100, seed=2**31 - 1, gamma=0.95, discounted=True,
        episode_steps=50, states=100, actions=4, iterations=3, restarts=5,
    ),
}  # fmt: skip
VECTOR = CONFIGS["vector"]
BEYOND = [MAX_COUNT + 1, 10**400, -1, 1.5, "3", None, True, math.nan, math.inf, [1]]
"""No whole number in any range."""
NO_TEXT = ["", 3, None, b"x", ["x"], True]
NO_FLAG = [0, 1, None, "true", [True]]
NO_TABLE = [None, 3, "x", [("a", 1)], {1: 2}, {"a": math.nan}, {"a": object()}, {"a": {1, 2}}]
NO_NUMBERS = [3, "12", {"a": 1}, [1.0, "2"], [math.nan], [math.inf], [True], [[1.0]], [10**400]]
WRONG: dict[str, list[Any]] = {
    "task": NO_TEXT,
    "kind": ["box", "", None, 3, "Vector"],
    "method": NO_TEXT,
    "steps": [0, *BEYOND],
    "seed": [2**31, *BEYOND],
    "gamma": [0.0, 1.0, -0.5, 1.5, math.nan, math.inf, "0.9", None, True, [0.9], 10**400],
    "discounted": NO_FLAG,
    "cost_limit": [-1.0, math.nan, "25", True, [25.0]],
    "violation_rate": [-0.1, 1.1, math.nan, "0.1", True],
    "kappa": [-0.1, math.nan, math.inf, "", True, [0.1], {}],
    "rule": NO_TABLE,
    "preset": ["", 3, ["fast"]],
    "settings": NO_TABLE,
    "episode_steps": [0, *(value for value in BEYOND if value is not None)],
    "capacity": [0, *(value for value in BEYOND if value is not None)],
    "repeat": [0, 2**31, *BEYOND],
    "obs_dim": [2**31, *BEYOND],
    "image": [3, "64", [64, 64, "3"], [64.0, 64.0, 3.0], [64, 64, -3], [64, 64, 2**31]],
    "action_low": NO_NUMBERS,
    "action_high": NO_NUMBERS,
    "random_low": NO_NUMBERS,
    "random_high": NO_NUMBERS,
    "action_shape": [*NO_NUMBERS, [1.0], [-2], [2**31]],
    "action_dtype": ["int32", "", None, 3],
    "states": [0, 2**31, 1.5, "3", True],
    "actions": [0, 2**31, 1.5, "3", True],
    "iterations": [0, 2**31, 1.5, "3", True],
    "restarts": [0, 2**31, 1.5, "3", True],
    "made_by": ["Id", "", None, 3],
    "env_kwargs": NO_TABLE,
    "own_cost": NO_FLAG,
    "cost_function": ["", 3, ["x"]],
    "allow_negative_costs": NO_FLAG,
    "own_kappa": NO_FLAG,
    "initial_policy": NO_FLAG,
    "initial_data": [3, None, ["x"], {}],
    "version": NO_TEXT,
    "commit": ["", 3, ["x"]],
    "device": NO_TEXT,
    "switches": NO_TABLE,
}
"""For each field, values of a wrong type or beyond its range."""
OLD = {"task": "capax/Integrator-v0", "method": "cap", "kind": "box", "version": "0.1.0", "steps": 100, "seed": 0}
"""A `config.json` of before formats had numbers."""


def refused(call: Callable[[], Any]) -> str:
    """The sentence with which a call is refused."""
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert message.endswith(".") and "\n" not in message and len(message) < 400
    return message


# The file.


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_config_survives_its_file(kind):
    config = CONFIGS[kind]
    again = RunConfig.from_json(config.to_json(), "config.json")
    assert again == config and again.to_json() == config.to_json()
    assert RunConfig.from_json(config.to_json().encode(), "config.json") == config
    for field in fields(RunConfig):
        assert type(getattr(again, field.name)) is type(getattr(config, field.name)), field.name


def test_the_file_is_json_with_every_field_and_the_format():
    table = json.loads(VECTOR.to_json())
    assert table == VECTOR.as_dict() and table["format"] == FORMAT
    assert set(table) == {"format", *(field.name for field in fields(RunConfig))}
    assert table["action_low"] == [-1.0, -2.0] and table["settings"]["cem"] == {"population": 64}
    assert VECTOR.to_json().endswith("}\n")


def test_the_dictionary_is_a_copy():
    table = VECTOR.as_dict()
    table["settings"]["cem"]["population"] = 5
    assert VECTOR.settings["cem"]["population"] == 64


def test_a_run_has_the_config_that_it_was_written_with(tmp_path):
    run = train_random(tmp_path / "run")
    config = Run(run.folder).config
    assert isinstance(config, RunConfig) and config == run.config
    assert (run.folder / "config.json").read_text() == config.to_json()
    assert (config.made_by, config.kind, config.obs_dim, config.episode_steps) == ("function", "vector", 2, 4)


# Frozen.


@pytest.mark.parametrize("name", [field.name for field in fields(RunConfig)])
def test_no_field_can_be_set(name):
    with pytest.raises(FrozenInstanceError):
        setattr(VECTOR, name, getattr(VECTOR, name))


def test_other_steps_and_a_length_make_another_config():
    longer = VECTOR.with_steps(200)
    assert longer.steps == 200 and VECTOR.steps == 100 and replace(longer, steps=100) == VECTOR
    open_end = replace(VECTOR, episode_steps=None)
    measured = open_end.with_length(50, 70)
    assert (measured.episode_steps, measured.capacity) == (50, 70) and open_end.episode_steps is None
    assert refused(lambda: VECTOR.with_steps(0)) == "steps is 0: give a whole number >= 1."


# What a field takes.


def test_every_field_has_wrong_values_here():
    assert set(WRONG) == {field.name for field in fields(RunConfig)}


@pytest.mark.parametrize("name", WRONG)
def test_a_field_refuses_values_of_a_wrong_type_or_range_and_names_itself(name):
    for value in WRONG[name]:
        message = refused(lambda value=value: replace(VECTOR, **{name: value}))
        assert message.startswith(f"{name} is ") and ": " in message, message


@pytest.mark.parametrize("name", WRONG)
@cases(40)
@given(value=anything)
def test_whatever_a_field_gets_it_is_a_config_or_one_sentence(name, value):
    config = refusal(lambda: replace(VECTOR, **{name: value}))
    if isinstance(config, Refused):
        return
    assert RunConfig.from_json(config.to_json(), "config.json") == config


@pytest.mark.parametrize(("changes", "names"), [
    ({"action_high": (1.0,)}, ["action_low", "action_high", "action_shape"]),
    ({"action_shape": (3,)}, ["action_low", "action_high", "action_shape"]),
    ({"obs_dim": 0}, ["obs_dim", "image"]),
    ({"image": (64, 64, 3)}, ["obs_dim", "image"]),
    ({"kind": "image"}, ["obs_dim", "image"]),
    ({"kind": "image", "obs_dim": 0, "image": (32, 32, 3)}, ["image"]),
    ({"action_low": (), "action_high": (), "action_shape": (0,)}, ["action_low"]),
    ({"random_low": (0.0, 0.0)}, ["random_low", "random_high"]),
    ({"random_low": (0.0,), "random_high": (1.0,)}, ["random_low", "random_high"]),
    ({"capacity": None}, ["capacity"]),
    ({"violation_rate": None}, ["violation_rate"]),
])  # fmt: skip
def test_fields_that_contradict_each_other_are_refused(changes, names):
    message = refused(lambda: replace(VECTOR, **changes))
    assert all(name in message for name in names)


def test_values_become_plain_ones():
    config = replace(
        VECTOR, steps=np.int64(7), seed=3.0, gamma=np.float32(0.5), discounted=np.bool_(True), kappa=1,
        action_low=[-1.0, -2.0], cost_limit=np.float64(3.0), settings={"a": (1, 2)},
    )  # fmt: skip
    assert (config.steps, config.seed, config.gamma, config.discounted, config.kappa) == (7, 3, 0.5, True, 1.0)
    assert [type(getattr(config, name)) for name in ("steps", "seed", "gamma", "discounted", "kappa", "cost_limit")] == [
        int, int, float, bool, float, float
    ]  # fmt: skip
    assert config.action_low == (-1.0, -2.0) and config.settings == {"a": [1, 2]}


# What follows from it.


def test_limits_and_conventions():
    assert VECTOR.limit == 25.0 and replace(VECTOR, cost_limit=None).limit == math.inf
    assert (VECTOR.cost_name, replace(VECTOR, discounted=True).cost_name) == ("cost", "discounted_cost")
    spec = VECTOR.spec()
    assert (spec.limit, spec.gamma, spec.discounted, spec.episode_steps, spec.repeat) == (25.0, 0.99, False, 50, 2)
    assert VECTOR.spec(constrained=False).limit == math.inf
    assert CONFIGS["finite"].spec().episode_steps is None


def test_the_action_box_is_that_of_the_environment():
    box = VECTOR.action_box
    np.testing.assert_array_equal(box.to_env(np.array([1.0, -1.0])), [1.0, -2.0])
    assert box.size == 2 and box.to_env(np.zeros(2)).dtype == np.float64


def test_a_setting_is_found_in_the_parts_of_the_method():
    assert (VECTOR.setting("layers", 9), VECTOR.setting("population", 9), VECTOR.setting("chunk", 9)) == (3, 64, 9)


def test_what_only_python_can_hand_over():
    plain = replace(VECTOR, made_by="id", own_cost=False, own_kappa=False)
    assert plain.own_objects == ()
    assert replace(plain, made_by="function").own_objects == ("env",)
    assert replace(plain, own_cost=True, own_kappa=True).own_objects == ("cost", "kappa")
    assert replace(plain, own_cost=True, cost_function="my_costs:speed").own_objects == ()


def test_a_cost_function_without_a_name_may_be_that_of_a_name():
    named, other = (replace(VECTOR, own_cost=True, cost_function=f"my_costs:{name}") for name in ("speed", "heat"))
    assert named.differences(other) == ["cost_function"]
    for one, two in ((named, replace(named, cost_function=None)), (replace(named, cost_function=None), named)):
        assert one.differences(two) == []


def test_differences_are_those_that_must_not_be():
    assert VECTOR.differences(VECTOR) == []
    free = replace(VECTOR, steps=7, version="9", commit=None, device="another card", switches={"jax": "9"})
    assert set(FREE) == {"steps", "version", "commit", "device", "switches"} and VECTOR.differences(free) == []
    assert VECTOR.differences(replace(free, seed=1, gamma=0.5)) == ["gamma", "seed"]


# Files that this version did not write.


@pytest.mark.parametrize(("table", "version"), [
    (OLD, "0.1.0"), ({**OLD, "format": 1}, "0.1.0"), ({**OLD, "format": 99, "version": "9.9"}, "9.9"),
    ({**OLD, "format": "2"}, "0.1.0"), ({**OLD, "format": None, "version": None}, "None"), ({**OLD, "format": True}, "0.1.0"),
    ({**OLD, "version": "9\n" * 40}, "9 9 9 9 9 9 9 9 9 9…"),
])  # fmt: skip
def test_a_config_of_another_version_says_so(table, version):
    assert refused(lambda: RunConfig.from_json(json.dumps(table), "run/config.json")) == (
        f"run/config.json was written by capax {version} in another format, which this version cannot read: use that one, or "
        "retrain."
    )


@pytest.mark.parametrize("call", [
    capax.resume, capax.evaluate, capax.load, lambda run: main(["resume", str(run)]), lambda run: main(["evaluate", str(run)]),
    lambda run: main(["report", str(run)]), lambda run: capax.train(counting(), out=run, cost_limit=25.0, resume=True),
    lambda run: capax.report(run, run / "x.png"),
], ids=["resume", "evaluate", "load", "capax resume", "capax evaluate", "capax report", "train", "report"])  # fmt: skip
def test_a_run_of_an_old_version_is_refused_in_one_sentence(tmp_path, capsys, call):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(json.dumps(OLD))
    (run / "episodes.jsonl").write_text('{"episode": 0}\n')
    sentence = (
        f"{run / 'config.json'} was written by capax 0.1.0 in another format, which this version cannot read: use that one, "
        "or retrain."
    )
    with pytest.raises((InputError, SystemExit)) as caught:
        call(run)
    if caught.type is SystemExit:
        out, err = capsys.readouterr()
        assert caught.value.code == 2 and (out, err) == ("", f"capax: {sentence}\n")
    else:
        assert str(caught.value) == sentence
    assert {path.name for path in run.iterdir()} <= {"config.json", "episodes.jsonl", ".lock"}
    assert (run / "config.json").read_text() == json.dumps(OLD)


@pytest.mark.parametrize("text", ["", "{", "\udcff", "[" * 100_000, '{"task": "x", "method": NaN'])
def test_a_text_that_is_no_json_is_refused(text):
    message = refused(lambda: RunConfig.from_json(text.encode(errors="surrogateescape"), "config.json"))
    assert message == "config.json is not JSON: it was damaged, so restore it or retrain."


@pytest.mark.parametrize("text", ["[]", "5", "null", '"x"', "{}", '{"method": "cap"}', '{"task": "x"}'])
def test_json_of_something_else_is_refused(text):
    message = refused(lambda: RunConfig.from_json(text, "config.json"))
    assert message == "config.json is not of capax train: name a folder that it has written."


@pytest.mark.parametrize("name", [field.name for field in fields(RunConfig)])
def test_a_missing_name_is_refused(name):
    table = VECTOR.as_dict()
    del table[name]
    message = refused(lambda: RunConfig.from_json(json.dumps(table), "config.json"))
    assert message.startswith("config.json is not ")
    if name not in ("task", "method"):
        assert message == f"config.json is not this version's (its names differ in {name}): restore it or retrain."


def test_unknown_names_are_refused():
    table = VECTOR.as_dict() | {"colour": "red", "flavour": 1}
    message = refused(lambda: RunConfig.from_json(json.dumps(table), "config.json"))
    assert message == "config.json is not this version's (its names differ in colour, flavour): restore it or retrain."


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_in_a_file_is_refused(name):
    for value in WRONG[name]:
        try:
            text = json.dumps(VECTOR.as_dict() | {name: value})
        except TypeError:
            continue  # JSON cannot hold it
        if value == {1: 2}:
            continue  # JSON turns the number into a name
        message = refused(lambda text=text: RunConfig.from_json(text, "config.json"))
        assert message.startswith("config.json is not "), message
        assert f"({name} is " in message or name in ("task", "method")


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "config.json").mkdir()
    assert "cannot be read (Is a directory)" in refused(lambda: Run(tmp_path).config)
    assert refused(lambda: Run(Path("nowhere")).config).startswith("nowhere holds no config.json: ")
