"""Runs in lanes that share a device do what each does alone."""

from __future__ import annotations

import threading
import time
from functools import partial

import gymnasium as gym
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from support.scripts import PATIENCE_S
from support.small_settings import GRADIENT, IMAGE, VECTOR
from support.tiny_runs import without_times

import capax
from capax.cli.main import main
from capax.core.errors import InputError
from capax.data import device_cache
from capax.runs.run import Run
from capax.runtime import lanes
from capax.training import lane_runs


def traced_function():
    """A batched function, the compiled function that it wraps, and a list of its traces."""
    traces = []

    @partial(jax.jit, static_argnames="power")
    def function(key, tree, x, power):
        traces.append(x.shape)
        return {"sum": tree["a"].sum() + x**power, "noise": jr.normal(key, (2,))}, tree["flag"]

    return lanes.batched(function), function, traces


def arguments(lane, flag=True):
    return jr.key(lane), {"a": np.arange(3.0) + lane, "flag": flag}, np.float32(lane)


def assert_close(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_outside_of_lanes_a_batched_function_is_the_function_itself():
    shared, function, _ = traced_function()
    assert_close(shared(*arguments(3), power=2), function(*arguments(3), power=2))


def test_calls_of_all_lanes_are_batched():
    shared, function, _ = traced_function()
    batch_sizes, real = [], lanes.answer_calls
    work = [partial(lambda lane: [shared(*arguments(lane), power=p) for p in (1, 2, 3)], lane) for lane in range(4)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes, "answer_calls", lambda calls, count: batch_sizes.append(len(calls)) or real(calls, count))
        results = lanes.run_lanes(work, list("abcd"))
    assert batch_sizes == [4, 4, 4]
    for lane, answers in enumerate(results):
        for power, answer in zip((1, 2, 3), answers, strict=True):
            assert_close(answer, function(*arguments(lane), power=power))


def test_a_lane_that_is_ahead_waits_for_the_others_but_not_for_lanes_that_have_ended():
    order = []
    plan, fit = (lanes.batched(jax.jit(f)) for f in (lambda x: x + 1.0, lambda x: 2.0 * x))

    def run(lane, steps):
        for _ in range(2):
            for t in range(steps):
                assert float(plan(np.float32(t))) == t + 1.0
                order.append((lane, "plan"))
            assert float(fit(np.float32(lane))) == 2.0 * lane
            order.append((lane, "fit"))

    lanes.run_lanes([partial(run, 0, 2), partial(run, 1, 5), partial(run, 2, 5)], list("abc"))
    first = [entry for entry in order if entry[1] == "fit"][:3]
    assert {lane for lane, _ in first} == {0, 1, 2}  # all fit once before anyone fits twice
    assert order.index((0, "fit")) > [i for i, entry in enumerate(order) if entry == (1, "plan")][4]
    assert len(order) == 3 * 2 + 2 * (2 + 5 + 5)


def test_parameters_that_stay_the_same_are_stacked_once(monkeypatch):
    stacked, real = [], lanes._stack_trees
    monkeypatch.setattr(lanes, "_stack_trees", lambda column: stacked.append(len(column)) or real(column))
    shared = lanes.batched(jax.jit(lambda params, x: params["w"].sum() + x))

    def run(lane):
        answers = []
        for fit in range(3):
            params = {"w": jnp.full(2000, fit + 10.0 * lane)}
            answers += [float(shared(params, np.float32(t))) for t in range(4)]
        return answers

    results = lanes.run_lanes([partial(run, lane) for lane in range(3)], list("abc"))
    for lane, answers in enumerate(results):
        assert answers == [2000 * (fit + 10.0 * lane) + t for fit in range(3) for t in range(4)]
    assert stacked == [3, 3, 3] and not lanes._stacked_arguments  # once per fit; the cache is empty afterwards


def test_only_one_number_of_lanes_is_compiled():
    shared, _, traces = traced_function()
    work = [partial(lambda n: [shared(*arguments(n), power=2) for _ in range(n + 1)], n) for n in range(3)]
    results = lanes.run_lanes(work, list("abc"))  # 3, then 2, then 1 of them
    assert [len(answers) for answers in results] == [1, 2, 3] and len(traces) == 1


def test_calls_with_different_shapes_are_made_separately():
    double = lanes.batched(jax.jit(lambda x: 2 * x))
    sizes = [2, 3, 2]
    results = lanes.run_lanes([partial(double, jnp.ones(n)) for n in sizes], list("abc"))
    assert [len(answer) for answer in results] == sizes


def test_an_error_of_one_lane_leaves_the_others_alone():
    double = lanes.batched(jax.jit(lambda x: 2 * x))
    ended = []

    def fine(lane):
        for _ in range(3):
            double(np.float32(lane))
        ended.append(lane)

    def broken():
        double(np.float32(0))
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken") as caught:
        lanes.run_lanes([partial(fine, 0), broken, partial(fine, 2)], ["seed 0", "seed 1", "seed 2"])
    assert sorted(ended) == [0, 2] and caught.value.__notes__ == ["in the lane seed 1"]


def test_a_batch_that_fails_fails_in_each_of_its_lanes():
    def refuse(x):
        raise TypeError("no")

    shared = lanes.batched(jax.jit(refuse))
    with pytest.raises(TypeError, match="no"):
        lanes.run_lanes([partial(shared, np.float32(lane)) for lane in range(2)], list("ab"))


def test_lanes_with_other_shapes_take_turns():
    fit = lanes.batched(jax.jit(lambda x: 2.0 * x))
    plan = lanes.batched(jax.jit(lambda x: x + 1.0))
    order = []

    def run(lane, size):
        for episode in range(4):
            for _ in range(3):
                plan(np.float32(lane))
            fit(np.ones(size, np.float32))
            order.append((lane, episode))

    lanes.run_lanes([partial(run, 0, 2), partial(run, 1, 3), partial(run, 2, 3)], list("abc"))
    assert order.index((0, 0)) < order.index((1, 1)) and order.index((0, 1)) < order.index((2, 3))


def test_a_compiled_function_is_built_once_for_all_lanes():
    calls = []

    @lanes.built_once
    def build(size):
        calls.append(size)
        time.sleep(0.05)
        return lanes.batched(jax.jit(lambda x: size * x))

    results = lanes.run_lanes([lambda: float(build(3)(np.float32(2.0)))] * 4, list("abcd"))
    assert results == [6.0] * 4 and calls == [3]


def test_lanes_end_when_the_main_thread_is_interrupted(monkeypatch):
    double = lanes.batched(jax.jit(lambda x: 2 * x))

    def busy():
        while True:
            double(np.float32(1.0))

    def random():
        while True:
            lanes.stop_if_requested()
            time.sleep(0.001)

    def interrupted(thread, timeout):
        if timeout < 1.0:
            joins.undo()
            raise KeyboardInterrupt
        raise AssertionError

    monkeypatch.setattr(lanes, "STOP_TIMEOUT_S", PATIENCE_S)
    joins = pytest.MonkeyPatch()
    joins.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lanes.run_lanes([random, busy], ["random", "busy"])
    assert not {"random", "busy"} & {thread.name for thread in threading.enumerate()}


def test_a_lane_has_its_label_and_other_threads_have_none():
    assert lanes.run_lanes([lanes.lane_label, lanes.lane_label], ["seed 0", "seed 1"]) == ["seed 0", "seed 1"]
    assert lanes.lane_label() is None
    assert not {"seed 0", "seed 1"} & {thread.name for thread in threading.enumerate()}


# Training.

RUN = dict(steps=100, episode_steps=20, settings=VECTOR)


def columns(run, *names):
    """The values of some columns of a run."""
    return [[row[name] for name in names] for row in run.episodes]


def test_on_a_cpu_every_lane_is_the_run_alone_to_the_last_bit(tmp_path):
    runs = capax.train("capax/Integrator-v0", out=tmp_path / "lanes", seed=3, lanes=2, **RUN)
    assert [run.folder.name for run in runs] == ["seed-3", "seed-4"]
    for run, seed in zip(runs, (3, 4), strict=True):
        alone = capax.train("capax/Integrator-v0", out=tmp_path / f"alone-{seed}", seed=seed, **RUN)
        assert without_times(run.episodes) == without_times(alone.episodes) and run.config.seed == seed


@pytest.fixture
def gpu(monkeypatch):
    """Lanes side by side and a device cache, as on a GPU."""
    monkeypatch.setattr(lane_runs.jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(device_cache, "max_rows", lambda row_bytes: 10**5)


@pytest.mark.parametrize(("task", "options"), [
    ("capax/Integrator-v0", {**RUN, "settings": {**VECTOR, "products": "float32"}}),
    ("capax/Dot-v0", dict(steps=100, settings={**IMAGE, "start_steps": 40, "products": "float32"})),
    ("capax/Integrator-v0", {**RUN, "settings": {**GRADIENT, "batch": 40, "minibatch": 16}, "method": "ppo-lag"}),
    pytest.param(
        "capax/Dot-v0", dict(steps=60, episode_steps=10, settings=GRADIENT | dict(minibatch=16, epochs=1), method="focops"),
        marks=pytest.mark.slow,
    ),
], ids=["states", "images", "ppo-lag", "focops from images"])  # fmt: skip
def test_side_by_side_each_lane_has_the_rows_of_the_run_alone(task, options, tmp_path, gpu, capsys):
    # steps without a plan are the same; planned ones up to rounding, which grows little in a few short episodes
    runs = capax.train(task, out=tmp_path / "lanes", lanes=3, **options)
    lines = capsys.readouterr().err.splitlines()
    assert {line.partition(":")[0] for line in lines} == {"seed-0", "seed-1", "seed-2"}
    for seed, run in enumerate(runs):
        alone = capax.train(task, out=tmp_path / f"alone-{seed}", seed=seed, **options)
        assert columns(run, "episode", "steps", "phase") == columns(alone, "episode", "steps", "phase")
        sums = columns(run, "return", "cost"), columns(alone, "return", "cost")
        np.testing.assert_allclose(*sums, rtol=2e-3, atol=2e-3)


def test_lanes_of_several_kappa(tmp_path):
    short = ["--steps", "60", "--episode-steps", "20", "--set", *(f"{name}={value}" for name, value in VECTOR.items())]
    main(["train", "capax/Integrator-v0", "--out", str(tmp_path / "k"), "--lanes", "kappa=0,2.5", *short])
    runs = [Run(tmp_path / "k" / name) for name in ("kappa-0", "kappa-2.5")]
    assert [run.episodes[-1]["kappa"] for run in runs] == [0.0, 2.5]


@pytest.mark.parametrize(
    ("lane_options", "message"),
    [
        (0, "lanes is 0"),
        ([], "lanes has none"),
        ([{"seed": 1}, {"seed": 1}], "lanes has two of seed-1"),
        ([{"steps": 1}], "a lane sets 'steps': give one or more of seed, kappa"),
        ([{}], "a lane sets nothing"),
        ([3], "a lane sets 3"),
        ([{"kappa": 1.0}, {"kappa": "bogus"}], "bogus"),
        ([{"violation_rate": 2.0}], "violation rate is 2.0"),
    ],
)
def test_bad_lanes_are_refused(lane_options, message, tmp_path):
    with pytest.raises(InputError, match=message):
        capax.train("capax/Integrator-v0", out=tmp_path / "x", lanes=lane_options, **RUN)
    assert not (tmp_path / "x").exists()


def test_a_folder_that_holds_a_run_is_refused_before_any_training(tmp_path):
    capax.train("capax/Integrator-v0", out=tmp_path / "x" / "seed-1", **RUN)
    with pytest.raises(InputError, match="seed-1 holds a run already"):
        capax.train("capax/Integrator-v0", out=tmp_path / "x", lanes=2, **RUN)
    assert not (tmp_path / "x" / "seed-0").exists()


def test_lanes_do_not_share_an_environment(tmp_path, gpu):
    env = gym.make("capax/Integrator-v0")
    with pytest.raises(InputError, match="gives the same environment twice"):
        capax.train(lambda: env, out=tmp_path, lanes=2, cost_limit=1.0, **RUN)


def test_the_command_wants_a_value_between_commas(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["train", "capax/Integrator-v0", "--lanes", "kappa=0.1,,1", "--out", str(tmp_path / "x")])
    assert "--lanes is kappa=0.1,,1: give a value between all commas" in capsys.readouterr().err


def test_the_command_explains_what_lanes_are(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["train", "capax/Integrator-v0", "--lanes", "many", "--out", str(tmp_path / "x")])
    assert "--lanes is many: give a number, or values as in kappa=0.1,1,10." in capsys.readouterr().err
