"""`capax bench`: measures how fast this machine plans, fits and steps, and prints a table.

The arithmetic floor of a plan is the time that its matrix products would take at the rate that one large square product
reaches on the same machine. Parameters and data are random numbers: only their sizes matter here.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import jax.random as jr
from rich.table import Table
from rich.text import Text

import capax.envs as _envs  # noqa: F401  registers the environments
from capax import runtime
from capax.agents.pets import PetsSettings
from capax.agents.planet import PlanetSettings
from capax.cli.bench_work import (
    Work,
    images_fit,
    images_plan,
    images_work,
    states_fit,
    states_plan,
    states_work,
)
from capax.core.checks import error_text
from capax.core.errors import InputError
from capax.core.version import commit
from capax.runtime.cpu_devices import core_count
from capax.runtime.terminal import CleanConsole, line
from capax.training.methods import settings_of

TIME_LIMIT_S = 95.0
"""Seconds after which no measurement begins. Start-up and the last measurement have the rest of two minutes."""
MAX_PLAN_S = 30.0
"""A plan that would take more seconds is not measured."""
PLAN_COMPILE_S, FIT_S = 8.0, {"states": 15.0, "images": 35.0}
"""Seconds to reserve for compiling a plan, and for compiling a fit and making it twice."""
COMPILED_SPEEDUP = 3.0
"""The reserve is divided by this where everything was compiled before."""
NO_TIME = "no time left"
"""The note of a row that was not measured."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of the measurements."""

    preset: str
    """Preset of the fits."""
    samples: int
    """Transitions that the ensemble is fitted to."""
    frames: int
    """Steps that the image model is fitted to."""
    products: Mapping[str, int]
    """Rows of the square product in each type."""
    states: Mapping[str, PetsSettings]
    """By preset, the quickest first: the rate that it reaches predicts the time of the others."""
    images: Mapping[str, PlanetSettings]
    growth_base: PetsSettings
    """Settings that growth is measured from."""
    lanes: tuple[int, ...] = (2, 4, 8)
    environments: tuple[str, ...] = ("capax/HalfCheetahVelocity-v0", "capax/CarRacingSkid-v0")
    plan_seconds: float = 1.0
    """Seconds for which a plan is repeated."""
    play_seconds: float = 2.0
    """Seconds for which an environment is played."""


def sizes_for(backend: str) -> Sizes:
    """Sizes that suit the machine: fits and growth at the paper's sizes on a GPU, at those of the preset `fast` on a CPU."""
    fast, paper = (settings_of("cap", "vector", name) for name in ("fast", "paper"))
    presets = {"fast": fast, "paper": paper}, {name: settings_of("cap", "image", name) for name in ("fast", "paper")}
    if backend == "cpu":  # growth with equal rounds, so that only one of them is compiled
        equal_rounds = replace(fast, cem=replace(fast.cem, shrink=1.0, keep=0.0, execute="mean"))
        return Sizes("fast", 10_000, 1_000, {"float32": 2048}, *presets, equal_rounds)
    return Sizes("paper", 100_000, 5_000, {"float32": 8192, "bfloat16": 8192}, *presets, paper)


class Machine(NamedTuple):
    """The machine that was measured."""

    device: str
    cores: int
    jax: str
    tflops: Mapping[str, float]
    """TFLOP/s of the square product in each type."""


class Row(NamedTuple):
    """One figure, or the reason why there is none."""

    part: str
    name: str
    value: float | None
    unit: str
    evaluations_per_second: float | None = None
    """Evaluations of the model, in a plan."""
    share_of_floor: float | None = None
    """The arithmetic floor over the measured time."""
    note: str = ""


class TimeBudget:
    """Decides what can still be measured in the time that is left, and measures it."""

    def __init__(self, seconds: float, announce: Callable[[str], None]) -> None:
        """`announce` gets the name of each measurement that begins."""
        self._end, self._announce = time.perf_counter() + seconds, announce
        self._compiled = False

    def compile(self, makers: Sequence[Callable[[], Callable[[], Any]]]) -> None:
        """Make and call all of them once, as many at a time as there are cores, in half of the time at most.

        One that fails here fails again when it is measured.
        """
        self._announce("compiling")
        left, until = [*makers], time.perf_counter() + (self._end - time.perf_counter()) / 2.0

        def compile_some() -> None:
            while left and time.perf_counter() < until:
                with suppress(Exception):
                    call_seconds(left.pop()())

        threads = [threading.Thread(target=compile_some, daemon=True) for _ in range(min(core_count(), len(makers)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, until - time.perf_counter()))
        self._compiled = not left and not any(thread.is_alive() for thread in threads)

    def reserve(self, seconds: float) -> float:
        """Seconds to reserve for something that takes `seconds` if it has to be compiled."""
        return seconds / COMPILED_SPEEDUP if self._compiled else seconds

    def measured(self, blank: Row, seconds: float, measure: Callable[[Row], Row]) -> Row:
        """`measure(blank)`, which takes about `seconds`, or the blank row with the reason why there is no figure."""
        if time.perf_counter() + seconds > self._end:
            return blank._replace(note=NO_TIME)
        self._announce(f"{blank.part}: {blank.name}")
        try:
            return measure(blank)
        except TimeoutError:
            return blank._replace(note=NO_TIME)
        except (InputError, ImportError, gym.error.Error) as error:
            return blank._replace(note=str(error))
        except jax.errors.JaxRuntimeError as error:  # such as too little memory
            return blank._replace(note=f"JAX failed with {error_text(error)}.")

    def median_seconds(
        self, calls: Sequence[Callable[[], Any]], seconds: float, max_rounds: int = 50
    ) -> tuple[list[float], int]:
        """Median seconds of calls made in turn, and the number of rounds, after a first round that compiles."""
        for call in calls:
            call_seconds(call)
        if time.perf_counter() > self._end:
            raise TimeoutError
        began, rounds = time.perf_counter(), [[*map(call_seconds, calls)]]
        while len(rounds) < max_rounds and time.perf_counter() - began < seconds:
            rounds.append([*map(call_seconds, calls)])
        return [statistics.median(times) for times in zip(*rounds, strict=True)], len(rounds)


def call_seconds(call: Callable[[], Any]) -> float:
    """Seconds of a call."""
    began = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - began


def inspect_machine(products: Mapping[str, int]) -> Machine:
    """The machine, with the best rate of square products."""
    multiply, tflops = jax.jit(jnp.matmul), {}
    for kind, rows in products.items():
        x = jr.normal(jr.key(0), (rows, rows), kind)
        times = [call_seconds(partial(multiply, x, x)) for _ in range(6)]
        tflops[kind] = 2 * rows**3 / min(times[1:]) / 1e12
    return Machine(jax.devices()[0].device_kind, core_count(), jax.__version__, tflops)


def plan_rows(sizes: Sizes, machine: Machine, budget: TimeBudget) -> Iterator[Row]:
    """Latency of a plan, the quickest preset first."""
    kinds: dict[str, tuple[Any, Any, Any]] = {
        "states": (sizes.states, states_work, states_plan),
        "images": (sizes.images, images_work, images_plan),
    }
    shares = dict.fromkeys(kinds, 1.0)
    for preset, kind in product(sizes.states, kinds):
        presets, work_of, make = kinds[kind]
        blank, work = Row("plan", f"{kind}, {preset}", None, "ms"), work_of(presets[preset])
        expected = work.floor(machine.tflops) / shares[kind]
        measure = partial(plan_row, partial(make, presets[preset]), work, machine, budget, sizes.plan_seconds)
        if expected > MAX_PLAN_S:
            row = blank._replace(note=f"a plan would take about {expected:,.0f} s")
        else:
            row = budget.measured(blank, budget.reserve(PLAN_COMPILE_S) + 2.0 * expected, measure)
        shares[kind] = row.share_of_floor or shares[kind]
        yield row


def plan_row(make: Any, work: Work, machine: Machine, budget: TimeBudget, seconds: float, blank: Row) -> Row:
    """Latency of the plan that `make` returns."""
    (latency,), rounds = budget.median_seconds([make()], seconds)
    note = f"{three_digits(sum(work.flops.values()) / 1e9)} GFLOP, {'once' if rounds == 1 else f'{rounds} times'}"
    share = work.floor(machine.tflops) / latency
    return Row("plan", blank.name, 1e3 * latency, "ms", work.evaluations / latency, share, note)


def fit_rows(sizes: Sizes, machine: Machine, budget: TimeBudget) -> Iterator[Row]:
    """Time of a fit: all that an agent does to learn from its data."""
    steps = sizes.images[sizes.preset].rssm.updates
    notes = {"states": f"{sizes.samples:,} samples", "images": f"{steps:,} gradient steps"}
    for (kind, make), note in zip(fit_makers(sizes).items(), notes.values(), strict=True):
        blank = Row("fit", f"{kind}, {sizes.preset}", None, "s", note=note)
        yield budget.measured(blank, budget.reserve(FIT_S[kind]), partial(fit_row, make, budget))


def fit_makers(sizes: Sizes) -> dict[str, Callable[[], Callable[[], Any]]]:
    """Functions that return a fit, by the kind of observations."""
    states, images = sizes.states[sizes.preset], sizes.images[sizes.preset]
    return {
        "states": partial(states_fit, states, sizes.samples),
        "images": partial(images_fit, images, sizes.frames),
    }


def fit_row(make: Any, budget: TimeBudget, blank: Row) -> Row:
    """Time of the fit that `make` returns."""
    return blank._replace(value=budget.median_seconds([make()], 0.0)[0][0])


def step_rows(sizes: Sizes, machine: Machine, budget: TimeBudget) -> Iterator[Row]:
    """Steps per second of each environment with random actions, its resets included."""
    for name in sizes.environments:
        blank = Row("steps", name, None, "steps/s")
        yield budget.measured(blank, sizes.play_seconds, partial(step_row, name, sizes.play_seconds))


def step_row(name: str, seconds: float, blank: Row) -> Row:
    """Steps per second of an environment that is played for `seconds`."""
    env = gym.make(name, disable_env_checker=True)
    env.action_space.seed(0)
    env.reset(seed=0)
    actions = [env.action_space.sample() for _ in range(1000)]
    began, count, over = time.perf_counter(), 0, False
    while count == 0 or time.perf_counter() - began < seconds:
        if over:
            env.reset()
        _, _, terminated, truncated, _ = env.step(actions[count % len(actions)])
        count, over = count + 1, terminated or truncated
    duration = time.perf_counter() - began
    env.close()
    repeat = gym.spec(name).kwargs.get("action_repeat", 1)
    return blank._replace(value=count / duration, note=f"{repeat} frames each" if repeat > 1 else "")


def doubled_settings(settings: PetsSettings) -> dict[str, PetsSettings]:
    """Settings with one size doubled. Members divide the particles among them, so both are doubled at once."""
    net, cem = settings.ensemble, settings.cem
    more_members = replace(net, members=2 * net.members, particles=2 * net.particles)
    return {
        "candidates": replace(settings, cem=replace(cem, population=2 * cem.population)),
        "horizon": replace(settings, cem=replace(cem, horizon=2 * cem.horizon)),
        "members, particles": replace(settings, ensemble=more_members),
    }


def larger_plans(sizes: Sizes) -> dict[str, tuple[PetsSettings, int]]:
    """Settings and lanes of the plans that are compared with one plan."""
    doubled = {f"{name} × 2": (settings, 1) for name, settings in doubled_settings(sizes.growth_base).items()}
    return doubled | {f"{count} lanes": (sizes.growth_base, count) for count in sizes.lanes}


def growth_rows(sizes: Sizes, machine: Machine, budget: TimeBudget) -> Iterator[Row]:
    """Latency of a larger plan, or of several plans in one call, over the latency of one plan."""
    for name, larger in larger_plans(sizes).items():
        measure = partial(growth_row, sizes.growth_base, *larger, machine, budget, sizes.plan_seconds)
        blank = Row("growth", name, None, "×")
        yield budget.measured(blank, budget.reserve(PLAN_COMPILE_S) + sizes.plan_seconds, measure)


def growth_row(
    base: PetsSettings,
    larger: PetsSettings,
    lanes: int,
    machine: Machine,
    budget: TimeBudget,
    seconds: float,
    blank: Row,
) -> Row:
    """Latency of `lanes` plans with the settings `larger` over that of one plan with `base`."""
    (base_seconds, larger_seconds), _ = budget.median_seconds([states_plan(base), states_plan(larger, lanes)], seconds)
    work = states_work(larger)
    return blank._replace(
        value=larger_seconds / base_seconds,
        evaluations_per_second=lanes * work.evaluations / larger_seconds,
        share_of_floor=lanes * work.floor(machine.tflops) / larger_seconds,
        note=f"{three_digits(1e3 * larger_seconds)} ms against {three_digits(1e3 * base_seconds)}",
    )


def measure(sizes: Sizes, announce: Callable[[str], None], seconds: float = TIME_LIMIT_S) -> tuple[Machine, list[Row]]:
    """Measure everything, the most important first. `announce` gets the name of each row that begins."""
    runtime.configure()
    budget = TimeBudget(seconds, announce)
    machine = inspect_machine(sizes.products)
    if jax.default_backend() != "cpu":  # a CPU would have no core left for a second compilation
        makers: list[Callable[[], Callable[[], Any]]] = [
            partial(states_plan, settings) for settings in sizes.states.values()
        ]
        makers += [partial(images_plan, settings) for settings in sizes.images.values()]
        makers += fit_makers(sizes).values()
        makers += [partial(states_plan, *larger) for larger in larger_plans(sizes).values()]
        budget.compile(makers)
    parts = (plan_rows, step_rows, fit_rows, growth_rows)
    return machine, [row for part in parts for row in part(sizes, machine, budget)]


def as_json(machine: Machine, rows: Iterable[Row]) -> dict[str, Any]:
    """The machine and the rows for JSON; numbers that are not finite become null."""
    tables = [
        {name: None if isinstance(x, float) and not math.isfinite(x) else x for name, x in row._asdict().items()}
        for row in rows
    ]
    return {"command": "capax bench", "commit": commit(), "machine": machine._asdict(), "rows": tables}


def three_digits(value: float | None, unit: str = "") -> str:
    """A number with three significant digits and its unit; an empty text where there is no number."""
    if value is None or not math.isfinite(value):
        return ""
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{round(value, digits):,.{max(0, digits)}f}{unit}"


def page(machine: Machine, rows: Iterable[Row], width: int = 100) -> str:
    """The table as text, with a line about the machine above it and explanations below it."""
    table = Table("", "what", box=None, padding=(0, 2, 0, 0))
    for heading in ("figure", "evaluations/s", "of floor"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("note")
    previous, incomplete = "", False
    for row in rows:
        part, name = "" if row.part == previous else row.part, row.name.removeprefix("capax/")
        share = three_digits(row.share_of_floor and 100.0 * row.share_of_floor, " %")
        figures = three_digits(row.value, f" {row.unit}"), three_digits(row.evaluations_per_second), share
        table.add_row(*map(line, (part, name, *figures, row.note)))
        previous, incomplete = row.part, incomplete or row.note == NO_TIME
    rates = " and ".join(f"{three_digits(rate)} TFLOP/s in {kind}" for kind, rate in machine.tflops.items())
    cores = f"{machine.cores} core{'s' * (machine.cores != 1)}"
    out = CleanConsole(width=width, color_system=None)
    with out.capture() as captured:
        out.print(Text(f"{machine.device}, {cores}, JAX {machine.jax}; a square product reaches\n{rates}.\n"), table)
        out.print(Text("\nof floor: time of a plan's matrix products at that rate, divided by the time of the plan."))
        if incomplete:
            out.print(Text("Where no time was left: start it again. Compiled programs are kept, so it will be faster."))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
