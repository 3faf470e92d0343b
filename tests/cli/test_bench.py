"""`capax bench` counts what a plan computes, keeps to its time, and says why a figure is missing."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from itertools import count

import gymnasium as gym
import jax
import numpy as np
import pytest

from capax.agents.pets import PetsSettings
from capax.agents.planet import PlanetSettings
from capax.cli import bench, bench_work
from capax.cli.bench import NO_TIME, Machine, Row, Sizes, TimeBudget
from capax.cli.bench_work import Work
from capax.cli.main import main
from capax.core.errors import InputError
from capax.models.ensemble import EnsembleSettings
from capax.models.rssm import RSSMSettings
from capax.planning.ccem import CEM
from capax.runs import folder
from capax.runtime import cpu_devices
from capax.training.methods import settings_of

NET = EnsembleSettings(members=2, hidden=3, layers=2, particles=4, batch=8, least_updates=2, most_updates=4)
TINY = CEM(horizon=3, iterations=2, population=8, elites=2)
"""For counting."""
ONE = CEM(horizon=1, iterations=1, population=8, elites=2)
"""For running: it compiles in a second."""
STATES = PetsSettings(ensemble=NET, cem=TINY)
IMAGES = PlanetSettings(
    rssm=RSSMSettings(deter=4, stoch=2, hidden=3, depth=1, members=2, batch=2, chunk=4, updates=2), cem=TINY
)
SIZES = Sizes(
    preset="tiny",
    samples=20,
    frames=10,
    products={"float32": 32},
    states={"tiny": replace(STATES, cem=ONE)},
    images={"tiny": replace(IMAGES, cem=ONE)},
    growth_base=replace(STATES, cem=ONE),
    lanes=(2,),
    environments=("capax/Integrator-v0", "capax/Nowhere-v0"),
    plan_seconds=0.05,
    play_seconds=0.05,
)
MACHINE = Machine("a card", 4, "0.10", {"float32": 0.5, "bfloat16": 2.0})
ROWS = [
    Row("plan", "states, paper", 12.345, "ms", 1.5e6 / 0.012345, 0.4321, "397 GFLOP, 50 times"),
    Row("plan", "images, paper", None, "ms", note=NO_TIME),
    Row("steps", "capax/HalfCheetahVelocity-v0", 11273.9, "steps/s"),
    Row("growth", "8 lanes", 4.0, "×", note="8.00 ms against 2.00"),
]


# The arithmetic of a plan.


def test_flops_of_layers_by_hand():
    assert bench_work.dense(2, 3) == 12  # 6 weights, a product and a sum each
    assert bench_work.dense(2, 3, 4) == 12 + 24


def test_flops_of_a_plan_with_the_ensemble_by_hand():
    work = bench_work.states_work(STATES, obs_dim=2, action_dim=1)
    # 2 rounds of 8 candidates, 4 particles, 3 steps. A row passes 3 → 3 → 3 → 9: means and log-variances of two changes, the
    # reward and the cost, and the logit of the end. That is 9 + 9 + 27 = 45 weights.
    assert work == Work(2 * 8 * 4 * 3, {"float32": 192 * 90})


def test_asking_every_member_is_counted():
    once, all_of_them = (
        bench_work.states_work(replace(STATES, ensemble=replace(NET, exact=exact))) for exact in (False, True)
    )
    assert all_of_them.flops["float32"] == (1 + NET.members) * once.flops["float32"]
    assert all_of_them.evaluations == once.evaluations


def test_the_papers_plan_is_397_gflop():
    work = bench_work.states_work(settings_of("cap", "vector", "paper"))
    assert work.evaluations == 500 * 20 * 30 * 5
    assert sum(work.flops.values()) == 397_200_000_000  # 132,400 weights: 23·200 + 3·200² + 200·39


def test_the_plan_of_the_preset_fast_has_as_many_evaluations_as_the_docs_say():
    assert bench_work.states_work(settings_of("cap", "vector", "fast")).evaluations == 15_700


def test_flops_of_a_plan_with_images_by_hand():
    work = bench_work.images_work(IMAGES, action_dim=1)
    # h has 4, s has 2, hidden layers 3. Weights: 3·4 into the GRU, 2·4·12 in it, 4·3 + 3·4 in the prior; 6·3 + 3·3 + 3 in each
    # of two heads; (5·2 + 3·2 + 3·2) in each of two members.
    weights = 12 + 96 + 24 + 2 * 30 + 2 * 22
    assert work == Work(2 * 8 * 3, {"float32": 48 * 2 * weights})


def test_the_papers_plan_with_images():
    work = bench_work.images_work(settings_of("cap", "image", "paper"))
    assert work.evaluations == 1000 * 12 * 10
    assert sum(work.flops.values()) == 2 * 511_350 * 120_000


def test_members_of_the_image_model_stay_in_float32():
    half = replace(IMAGES, rssm=replace(IMAGES.rssm, products="bfloat16"))
    work = bench_work.images_work(half, action_dim=1)
    assert work.flops == {"float32": 48 * 2 * 44, "bfloat16": 48 * 2 * 192}


def test_the_floor_is_the_sum_over_the_types():
    assert Work(1, {"float32": 10**12, "bfloat16": 4 * 10**12}).floor(MACHINE.tflops) == pytest.approx(2.0 + 2.0)


def test_flops_are_those_that_the_compiler_counts(monkeypatch):
    """The compiler counts more than the products, but little more where layers are wide."""
    monkeypatch.setattr(cpu_devices, "mesh", lambda: None)  # the compiler counts for one device
    wide = EnsembleSettings(members=2, hidden=256, layers=3, particles=4)
    settings = PetsSettings(ensemble=wide, cem=CEM(horizon=1, iterations=1, population=64, elites=2))
    plan = bench_work.compiled_plan(settings, bench_work.STATES, bench_work.ACTIONS)[1].__wrapped__
    params = bench_work.random_params(bench_work.ensemble.init, bench_work.STATES, bench_work.ACTIONS, wide)
    scale = bench_work.ensemble.scaling(bench_work.transitions(10))
    inputs, warm = np.ones(bench_work.STATES + 4, np.float32), np.zeros((1, bench_work.ACTIONS), np.float32)
    lowered = plan.lower(jax.random.key(0), (params, scale), inputs, warm)
    counted = lowered.compile().cost_analysis()["flops"]
    assert bench_work.states_work(settings).flops["float32"] == pytest.approx(counted, rel=0.1)


# Time.


def test_nothing_is_measured_when_the_time_is_over():
    announced: list[str] = []
    _, rows = bench.measure(SIZES, announced.append, seconds=-1.0)
    assert announced == []
    assert [row.part for row in rows] == ["plan"] * 2 + ["steps"] * 2 + ["fit"] * 2 + ["growth"] * 4
    assert all(row.value is None and row.note == NO_TIME for row in rows)


def test_a_measurement_whose_compilation_takes_too_long_has_no_figure():
    budget = TimeBudget(0.2, lambda name: None)
    row = budget.measured(
        ROWS[1], 0.0, lambda blank: blank._replace(value=budget.median_seconds([lambda: slow(0.3)], 1.0)[0][0])
    )
    assert row == ROWS[1]


def test_less_time_is_reserved_for_what_was_compiled_before(monkeypatch):
    barrier, called = threading.Barrier(3), []

    def maker(name):
        return lambda: lambda: (barrier.wait(60.0), called.append(name))

    def broken():
        barrier.wait(60.0)
        raise RuntimeError("no")

    monkeypatch.setattr(bench, "core_count", lambda: 3)
    announced = []
    budget = TimeBudget(600.0, announced.append)
    assert budget.reserve(8.0) == 8.0
    budget.compile([maker("one"), maker("other"), lambda: broken])
    assert sorted(called) == ["one", "other"] and announced == ["compiling"]
    assert budget.reserve(9.0) == 9.0 / bench.COMPILED_SPEEDUP


def test_half_of_the_time_is_left_where_compiling_takes_too_long(monkeypatch):
    never, clock = threading.Event(), [0.0]
    monkeypatch.setattr(bench.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(threading.Thread, "join", lambda thread, seconds: clock.append(clock.pop() + seconds))
    budget = TimeBudget(10.0, lambda name: None)
    budget.compile([lambda: never.wait])
    assert budget.reserve(8.0) == 8.0 and clock == [5.0]
    blank = Row("part", "name", None, "s")
    assert budget.measured(blank, 4.9, lambda row: row._replace(value=1.0)).value == 1.0
    assert budget.measured(blank, 5.1, lambda row: pytest.fail("it began")).note == NO_TIME
    never.set()


def test_a_measurement_that_needs_more_than_the_time_left_does_not_begin():
    budget = TimeBudget(600.0, lambda name: None)
    assert budget.measured(ROWS[0], 60.0, lambda blank: blank) == ROWS[0]
    assert budget.measured(ROWS[0], 601.0, lambda blank: pytest.fail("it began")).note == NO_TIME


def test_a_plan_that_would_take_too_long_does_not_begin(monkeypatch):
    monkeypatch.setattr(bench, "states_plan", lambda settings: pytest.fail("it began"))
    rows = bench.plan_rows(SIZES, MACHINE._replace(tflops={"float32": 1e-12}), TimeBudget(1e9, lambda name: None))
    # 8 · 4 evaluations of 23·3 + 3·3 + 3·39 weights, 1 FLOP/s
    assert next(rows).note == "a plan would take about 12,480 s"


def slow(seconds: float) -> None:
    bench.time.sleep(seconds)


# Environments.


def test_an_environment_that_is_not_installed_is_a_row(monkeypatch):
    def missing(*names, **options):
        raise InputError("CarRacing-v3 needs Box2D and pygame: run pip install 'gymnasium[box2d]'.")

    monkeypatch.setattr(gym, "make", missing)
    rows = list(bench.step_rows(SIZES, MACHINE, TimeBudget(600.0, lambda name: None)))
    assert [row.value for row in rows] == [None, None]
    assert rows[0].note == "CarRacing-v3 needs Box2D and pygame: run pip install 'gymnasium[box2d]'."


def test_an_environment_is_reset_after_the_end_of_an_episode(monkeypatch):
    clock = count()
    monkeypatch.setattr(
        bench.time, "perf_counter", lambda: 0.001 * next(clock)
    )  # a step takes a thousandth of a second
    row = bench.step_row("capax/Integrator-v0", 0.2, Row("steps", "", None, "steps/s"))
    assert row.value is not None and 0.2 * row.value > 150  # an episode has 50


# The table.


def test_numbers_have_three_significant_digits():
    texts = [bench.three_digits(value) for value in (0.012345, 1.0, 43.219, 999.6, 121506.7, 0.0, None, float("nan"))]
    assert texts == ["0.0123", "1.00", "43.2", "1,000", "122,000", "0", "", ""]


def test_the_table():
    lines = bench.page(MACHINE, ROWS).splitlines()
    assert lines[0] == "a card, 4 cores, JAX 0.10; a square product reaches"
    assert lines[1] == "0.500 TFLOP/s in float32 and 2.00 TFLOP/s in bfloat16."
    assert [" ".join(line.split()) for line in lines[3:8]] == [
        "what figure evaluations/s of floor note",
        "plan states, paper 12.3 ms 122,000,000 43.2 % 397 GFLOP, 50 times",
        "images, paper no time left",
        "steps HalfCheetahVelocity-v0 11,300 steps/s",
        "growth 8 lanes 4.00 × 8.00 ms against 2.00",
    ]
    assert lines[-1].startswith("Where no time was left: start it again")


def test_a_page_without_gaps_does_not_ask_for_another_start():
    assert "start it again" not in bench.page(MACHINE, ROWS[:1])


def test_json_is_finite_or_null():
    rows = [ROWS[0], ROWS[1]._replace(value=float("inf"), share_of_floor=float("nan"))]
    table = json.loads(folder.to_json(bench.as_json(MACHINE, rows)))
    assert table["machine"] == {"device": "a card", "cores": 4, "jax": "0.10", "tflops": MACHINE.tflops}
    assert table["rows"][0]["value"] == 12.345 and table["rows"][0]["share_of_floor"] == 0.4321
    assert table["rows"][1]["value"] is None and table["rows"][1]["share_of_floor"] is None


# The command.


def test_everything_once_with_tiny_settings(monkeypatch, capsys):
    monkeypatch.setattr(bench, "sizes_for", lambda backend: SIZES)
    monkeypatch.setattr(bench.measure, "__defaults__", (600.0,))  # enough on a busy machine
    monkeypatch.setattr(
        bench, "images_fit", lambda settings, steps: lambda: None
    )  # it compiles for ten seconds: see below
    main(["bench", "--json"])
    out, err = capsys.readouterr()
    table = json.loads(out)
    assert err == ""
    assert table["machine"]["tflops"]["float32"] > 0.0 and table["machine"]["jax"] == jax.__version__
    assert [(row["part"], row["name"]) for row in table["rows"]] == [
        ("plan", "states, tiny"),
        ("plan", "images, tiny"),
        ("steps", "capax/Integrator-v0"),
        ("steps", "capax/Nowhere-v0"),
        ("fit", "states, tiny"),
        ("fit", "images, tiny"),
        ("growth", "candidates × 2"),
        ("growth", "horizon × 2"),
        ("growth", "members, particles × 2"),
        ("growth", "2 lanes"),
    ]
    *measured, nowhere = sorted(table["rows"], key=lambda row: row["name"] == "capax/Nowhere-v0")
    assert all(row["value"] > 0.0 for row in measured)
    assert nowhere["value"] is None and "Nowhere" in nowhere["note"]
    assert all(row["evaluations_per_second"] > 0.0 and row["share_of_floor"] > 0.0 for row in table["rows"][:2])


def test_rows_are_announced_on_stderr_and_the_table_is_printed(monkeypatch, capsys):
    def measure(sizes, announce):
        announce("plan: states, fast")
        return MACHINE, ROWS

    monkeypatch.setattr(bench, "measure", measure)
    main(["bench", "--device", "cpu"])
    out, err = capsys.readouterr()
    assert err == "plan: states, fast\n" and out == bench.page(MACHINE, ROWS) + "\n"
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.slow
def test_the_image_model_is_fitted():
    fit = bench_work.images_fit(replace(IMAGES, cem=ONE), 10)
    before, after = (
        jax.tree.leaves(net) for net in (bench_work.random_params(bench_work.rssm.init, 3, 3, IMAGES.rssm), fit())
    )
    assert all(np.isfinite(leaf).all() for leaf in after)
    assert not all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))
