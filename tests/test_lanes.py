"""Do runs that share a device do what each would do alone?"""

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

import capax
from capax import lanes, mirror, several
from capax.cli import main
from capax.errors import InputError
from capax.runs.run import Run


def counted():
    """A shared function that knows how often it was traced, and a compiled one to compare with."""
    traced = []

    @partial(jax.jit, static_argnames="power")
    def function(key, tree, x, power):
        traced.append(x.shape)
        return {"sum": tree["a"].sum() + x**power, "noise": jr.normal(key, (2,))}, tree["flag"]

    return lanes.shared(function), function, traced


def arguments(lane, flag=True):
    return jr.key(lane), {"a": np.arange(3.0) + lane, "flag": flag}, np.float32(lane)


def same(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_alone_it_is_the_function_itself():
    shared, function, _ = counted()
    same(shared(*arguments(3), power=2), function(*arguments(3), power=2))


def test_calls_of_all_lanes_are_made_as_one():
    shared, function, _ = counted()
    made = []
    real = lanes.made
    work = [partial(lambda lane: [shared(*arguments(lane), power=p) for p in (1, 2, 3)], lane) for lane in range(4)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes, "made", lambda calls, count: made.append(len(calls)) or real(calls, count))
        results = lanes.side_by_side(work, list("abcd"))
    assert made == [4, 4, 4]
    for lane, answers in enumerate(results):
        for power, answer in zip((1, 2, 3), answers, strict=True):
            same(answer, function(*arguments(lane), power=power))


def test_a_lane_that_is_ahead_waits_for_the_others_and_one_that_is_done_for_nobody():
    order = []
    plan, fit = (lanes.shared(jax.jit(f)) for f in (lambda x: x + 1.0, lambda x: 2.0 * x))

    def run(lane, steps):
        for _ in range(2):
            for t in range(steps):
                assert float(plan(np.float32(t))) == t + 1.0
                order.append((lane, "plan"))
            assert float(fit(np.float32(lane))) == 2.0 * lane
            order.append((lane, "fit"))

    lanes.side_by_side([partial(run, 0, 2), partial(run, 1, 5), partial(run, 2, 5)], list("abc"))
    first = [entry for entry in order if entry[1] == "fit"][:3]
    assert {lane for lane, _ in first} == {0, 1, 2}  # all fit once before anyone fits twice
    assert order.index((0, "fit")) > [i for i, entry in enumerate(order) if entry == (1, "plan")][4]
    assert len(order) == 3 * 2 + 2 * (2 + 5 + 5)


def test_parameters_that_stay_are_put_together_once(monkeypatch):
    stacked, real = [], lanes._in_one_piece
    monkeypatch.setattr(lanes, "_in_one_piece", lambda column: stacked.append(len(column)) or real(column))
    shared = lanes.shared(jax.jit(lambda params, x: params["w"].sum() + x))

    def run(lane):
        answers = []
        for fit in range(3):
            params = {"w": jnp.full(2000, fit + 10.0 * lane)}
            answers += [float(shared(params, np.float32(t))) for t in range(4)]
        return answers

    results = lanes.side_by_side([partial(run, lane) for lane in range(3)], list("abc"))
    for lane, answers in enumerate(results):
        assert answers == [2000 * (fit + 10.0 * lane) + t for fit in range(3) for t in range(4)]
    assert stacked == [3, 3, 3] and not lanes._kept  # once a fit; nothing is kept afterwards


def test_only_one_number_of_lanes_is_compiled():
    shared, _, traced = counted()
    work = [partial(lambda n: [shared(*arguments(n), power=2) for _ in range(n + 1)], n) for n in range(3)]
    results = lanes.side_by_side(work, list("abc"))  # 3, then 2, then 1 of them
    assert [len(answers) for answers in results] == [1, 2, 3] and len(traced) == 1


def test_calls_that_cannot_be_stacked_are_made_apart():
    double = lanes.shared(jax.jit(lambda x: 2 * x))
    sizes = [2, 3, 2]
    results = lanes.side_by_side([partial(double, jnp.ones(n)) for n in sizes], list("abc"))
    assert [len(answer) for answer in results] == sizes


def test_an_error_of_one_lane_leaves_the_others_alone():
    double = lanes.shared(jax.jit(lambda x: 2 * x))
    ended = []

    def fine(lane):
        for _ in range(3):
            double(np.float32(lane))
        ended.append(lane)

    def broken():
        double(np.float32(0))
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken") as caught:
        lanes.side_by_side([partial(fine, 0), broken, partial(fine, 2)], ["seed 0", "seed 1", "seed 2"])
    assert sorted(ended) == [0, 2] and caught.value.__notes__ == ["in the lane seed 1"]


def test_a_call_that_fails_fails_in_every_lane_that_made_it():
    def refuse(x):
        raise TypeError("no")

    shared = lanes.shared(jax.jit(refuse))
    with pytest.raises(TypeError, match="no"):
        lanes.side_by_side([partial(shared, np.float32(lane)) for lane in range(2)], list("ab"))


def test_lanes_of_other_shapes_are_not_passed_over_for_ever():
    fit = lanes.shared(jax.jit(lambda x: 2.0 * x))
    plan = lanes.shared(jax.jit(lambda x: x + 1.0))
    order = []

    def run(lane, size):
        for episode in range(4):
            for _ in range(3):
                plan(np.float32(lane))
            fit(np.ones(size, np.float32))
            order.append((lane, episode))

    lanes.side_by_side([partial(run, 0, 2), partial(run, 1, 3), partial(run, 2, 3)], list("abc"))
    assert order.index((0, 0)) < order.index((1, 1)) and order.index((0, 1)) < order.index((2, 3))


def test_what_makes_a_compiled_function_is_called_once_for_all_lanes():
    calls = []

    @lanes.once
    def making(size):
        calls.append(size)
        time.sleep(0.05)
        return lanes.shared(jax.jit(lambda x: size * x))

    results = lanes.side_by_side([lambda: float(making(3)(np.float32(2.0)))] * 4, list("abcd"))
    assert results == [6.0] * 4 and calls == [3]


def test_lanes_end_when_the_main_thread_is_interrupted(monkeypatch):
    double = lanes.shared(jax.jit(lambda x: 2 * x))
    steps = {0: 0, 1: 0}

    def busy():
        while True:
            double(np.float32(1.0))
            steps[0] += 1

    def random():
        while True:
            lanes.check()
            steps[1] += 1
            time.sleep(0.001)

    def interrupted(thread, timeout):
        if timeout < 1.0:
            monkeypatch.undo()
            raise KeyboardInterrupt
        raise AssertionError

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lanes.side_by_side([random, busy], ["random", "busy"])
    before = dict(steps)
    time.sleep(0.2)
    assert steps == before


def test_a_lane_knows_its_name_and_others_are_none():
    assert lanes.side_by_side([lanes.label, lanes.label], ["seed 0", "seed 1"]) == ["seed 0", "seed 1"]
    assert lanes.label() is None and threading.active_count() < 50


# Training.

SMALL = dict(
    hidden=8, layers=1, members=2, particles=4, population=12, elites=3, iterations=2, horizon=4, batch=16,
    least_updates=5, most_updates=10, start_steps=20, fit_every=10,
)  # fmt: skip
IMAGES = dict(
    deter=6, stoch=3, hidden=6, depth=1, members=2, batch=2, chunk=4, updates=2, horizon=3, iterations=2, population=8,
    elites=2, start_steps=40,
)  # fmt: skip
RUN = dict(steps=100, episode_steps=20, settings=SMALL)


def rows(run, *names):
    """What was logged, without times."""
    kept = [{k: v for k, v in row.items() if k != "time"} for row in run.episodes]
    return [[row[name] for name in names] for row in kept] if names else kept


def test_on_a_cpu_every_lane_is_the_run_alone_to_the_last_bit(tmp_path):
    made = capax.train("capax/Integrator-v0", out=tmp_path / "lanes", seed=3, lanes=2, **RUN)
    assert [run.folder.name for run in made] == ["seed-3", "seed-4"]
    for run, seed in zip(made, (3, 4), strict=True):
        alone = capax.train("capax/Integrator-v0", out=tmp_path / f"alone-{seed}", seed=seed, **RUN)
        assert rows(run) == rows(alone) and run.config["seed"] == seed


@pytest.fixture
def gpu(monkeypatch):
    """Lanes side by side, as on a GPU; frames are kept twice, as there."""
    monkeypatch.setattr(several.jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(mirror, "room", lambda row: 10**5)


GRADIENT = dict(batch=40, minibatch=16, epochs=2, hidden=8)


@pytest.mark.parametrize(("task", "options"), [
    ("capax/Integrator-v0", {**RUN, "settings": {**SMALL, "products": "float32"}}),
    ("capax/Dot-v0", dict(steps=100, settings={**IMAGES, "products": "float32"})),
    ("capax/Integrator-v0", {**RUN, "settings": GRADIENT, "method": "ppo-lag"}),
    pytest.param(
        "capax/Dot-v0", dict(steps=60, episode_steps=10, settings=GRADIENT | dict(batch=20, epochs=1), method="focops"),
        marks=pytest.mark.slow,
    ),
], ids=["states", "images", "ppo-lag", "focops from images"])  # fmt: skip
def test_side_by_side_each_has_the_rows_of_the_run_alone(task, options, tmp_path, gpu, capsys):
    # what was never planned is the same; what was, up to rounding, which a few short episodes do not blow up
    made = capax.train(task, out=tmp_path / "lanes", lanes=3, **options)
    said = capsys.readouterr().err.splitlines()
    assert {line.partition(":")[0] for line in said} == {"seed-0", "seed-1", "seed-2"}
    for seed, run in enumerate(made):
        alone = capax.train(task, out=tmp_path / f"alone-{seed}", seed=seed, **options)
        assert rows(run, "episode", "steps", "phase") == rows(alone, "episode", "steps", "phase")
        np.testing.assert_allclose(rows(run, "return", "cost"), rows(alone, "return", "cost"), rtol=2e-3, atol=2e-3)


def test_lanes_of_several_kappa(tmp_path):
    short = ["--steps", "60", "--episode-steps", "20", "--set", *(f"{name}={value}" for name, value in SMALL.items())]
    main(["train", "capax/Integrator-v0", "--out", str(tmp_path / "k"), "--lanes", "kappa=0,2.5", *short])
    runs = [Run(tmp_path / "k" / name) for name in ("kappa-0", "kappa-2.5")]
    assert [run.episodes[-1]["kappa"] for run in runs] == [0.0, 2.5]


@pytest.mark.parametrize(
    ("given", "said"),
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
def test_lanes_that_are_none(given, said, tmp_path):
    with pytest.raises(InputError, match=said):
        capax.train("capax/Integrator-v0", out=tmp_path / "x", lanes=given, **RUN)
    assert not (tmp_path / "x").exists()


def test_a_folder_that_is_taken_is_found_before_anything_is_trained(tmp_path):
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
