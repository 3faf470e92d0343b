"""How fast does this machine plan, fit and step? What `capax bench` measures, and its table.

The arithmetic floor of a plan is what its matrix products would take at the rate that one large square product reaches on the
same machine. Parameters and data are made up: only their sizes matter here.
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
from rich.console import Console
from rich.table import Table
from rich.text import Text

import capax.envs as _envs  # noqa: F401  registers the environments
from capax import compiled, memory
from capax.agents.pets import PetsSettings
from capax.agents.planet import PlanetSettings
from capax.checks import said
from capax.cores import available
from capax.errors import InputError
from capax.presets import IMAGE_PRESETS, PRESETS
from capax.workload import (
    Work,
    images_fit,
    images_plan,
    images_work,
    states_fit,
    states_plan,
    states_work,
)

SECONDS = 95.0
"""After which nothing is begun: the start before it and what is then under way have the rest of two minutes."""
LONGEST = 30.0
"""Seconds of a plan that is not waited for."""
COMPILING, FITTING = 8.0, {"states": 15.0, "images": 35.0}
"""Seconds that compiling a plan, and compiling and making a fit twice, are taken to need."""
COMPILED = 3.0
"""How much less that is where it was compiled before."""
NO_TIME = "no time left"


@dataclass(frozen=True)
class Sizes:
    """What is measured."""

    preset: str
    """That fits are measured with."""
    samples: int
    """Transitions that the ensemble is fitted to."""
    frames: int
    """Steps that the image model is fitted to."""
    products: Mapping[str, int]
    """Rows of the square product in each type."""
    states: Mapping[str, PetsSettings]
    """By preset. The first is the quickest: what it reaches foretells the others."""
    images: Mapping[str, PlanetSettings]
    grown: PetsSettings
    """What growth is measured from."""
    lanes: tuple[int, ...] = (2, 4, 8)
    environments: tuple[str, ...] = ("capax/HalfCheetahVelocity-v0", "capax/CarRacingSkid-v0")
    repeating: float = 1.0
    """Seconds for which a plan is repeated."""
    playing: float = 2.0
    """Seconds for which an environment is played."""


def sizes_for(backend: str) -> Sizes:
    """What fits the machine: fits and growth at the paper's sizes on a GPU, at those of the preset `fast` on a CPU."""
    fast, paper = PRESETS["fast"], PRESETS["paper"]
    presets = {"fast": fast, "paper": paper}, {name: IMAGE_PRESETS[name] for name in ("fast", "paper")}
    if backend == "cpu":  # growth with rounds that are all alike, so that only one of them is compiled
        alike = replace(fast, cem=replace(fast.cem, shrink=1.0, keep=0.0, execute="mean"))
        return Sizes("fast", 10_000, 1_000, {"float32": 2048}, *presets, alike)
    return Sizes("paper", 100_000, 5_000, {"float32": 8192, "bfloat16": 8192}, *presets, paper)


class Machine(NamedTuple):
    """Where it was measured."""

    device: str
    cores: int
    jax: str
    tflops: Mapping[str, float]
    """TFLOP/s of the square product in each type."""


class Row(NamedTuple):
    """One figure, or why there is none."""

    part: str
    name: str
    value: float | None
    unit: str
    evaluations_per_second: float | None = None
    """Of the model, in a plan."""
    share_of_floor: float | None = None
    """The arithmetic floor over the time that was measured."""
    note: str = ""


class Clock:
    """What can still be measured in the time that is left?"""

    def __init__(self, seconds: float, tell: Callable[[str], None]) -> None:
        self._end, self._tell = time.perf_counter() + seconds, tell
        self._compiled = False

    def compile(self, makes: Sequence[Callable[[], Callable[[], Any]]]) -> None:
        """All of it, as many at once as there are cores, in half of the time at most; what fails will do so again when it
        is measured."""
        self._tell("compiling")
        left, until = [*makes], time.perf_counter() + (self._end - time.perf_counter()) / 2.0

        def compile_some() -> None:
            while left and time.perf_counter() < until:
                with suppress(Exception):
                    timed(left.pop()())

        threads = [threading.Thread(target=compile_some, daemon=True) for _ in range(min(available(), len(makes)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, until - time.perf_counter()))
        self._compiled = not left and not any(thread.is_alive() for thread in threads)

    def seconds(self, compiling: float) -> float:
        """What something is taken to need that takes so long if it has to be compiled."""
        return compiling / COMPILED if self._compiled else compiling

    def row(self, blank: Row, seconds: float, measure: Callable[[Row], Row]) -> Row:
        """What is measured in about so many seconds, or a row that says why it is not."""
        if time.perf_counter() + seconds > self._end:
            return blank._replace(note=NO_TIME)
        self._tell(f"{blank.part}: {blank.name}")
        try:
            return measure(blank)
        except TimeoutError:
            return blank._replace(note=NO_TIME)
        except (InputError, ImportError, gym.error.Error) as error:
            return blank._replace(note=str(error))
        except jax.errors.JaxRuntimeError as error:  # such as too little memory
            return blank._replace(note=f"JAX failed with {said(error)}.")

    def medians(self, calls: Sequence[Callable[[], Any]], seconds: float, most: int = 50) -> tuple[list[float], int]:
        """Median seconds of calls made in turn, and how often they were made, after a first time that compiles."""
        for call in calls:
            timed(call)
        if time.perf_counter() > self._end:
            raise TimeoutError
        began, rounds = time.perf_counter(), [[*map(timed, calls)]]
        while len(rounds) < most and time.perf_counter() - began < seconds:
            rounds.append([*map(timed, calls)])
        return [statistics.median(times) for times in zip(*rounds, strict=True)], len(rounds)


def timed(call: Callable[[], Any]) -> float:
    """Seconds of a call."""
    began = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - began


def look(products: Mapping[str, int]) -> Machine:
    """The machine, with the best rate of some products."""
    multiply, tflops = jax.jit(jnp.matmul), {}
    for kind, rows in products.items():
        x = jr.normal(jr.key(0), (rows, rows), kind)
        times = [timed(partial(multiply, x, x)) for _ in range(6)]
        tflops[kind] = 2 * rows**3 / min(times[1:]) / 1e12
    return Machine(jax.devices()[0].device_kind, available(), jax.__version__, tflops)


def plans(sizes: Sizes, machine: Machine, clock: Clock) -> Iterator[Row]:
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
        measure = partial(latency, partial(make, presets[preset]), work, machine, clock, sizes.repeating)
        refused = blank._replace(note=f"a plan would take about {expected:,.0f} s")
        row = refused if expected > LONGEST else clock.row(blank, clock.seconds(COMPILING) + 2.0 * expected, measure)
        shares[kind] = row.share_of_floor or shares[kind]
        yield row


def latency(make: Any, work: Work, machine: Machine, clock: Clock, seconds: float, blank: Row) -> Row:
    (took,), times = clock.medians([make()], seconds)
    note = f"{figure(sum(work.flops.values()) / 1e9)} GFLOP, {'once' if times == 1 else f'{times} times'}"
    share = work.floor(machine.tflops) / took
    return Row("plan", blank.name, 1e3 * took, "ms", work.evaluations / took, share, note)


def fits(sizes: Sizes, machine: Machine, clock: Clock) -> Iterator[Row]:
    """Time of a fit: all that an agent does to learn from what it has."""
    steps = sizes.images[sizes.preset].rssm.updates
    notes = {"states": f"{sizes.samples:,} samples", "images": f"{steps:,} gradient steps"}
    for (kind, make), note in zip(fits_of(sizes).items(), notes.values(), strict=True):
        blank = Row("fit", f"{kind}, {sizes.preset}", None, "s", note=note)
        yield clock.row(blank, clock.seconds(FITTING[kind]), partial(fitted, make, clock))


def fits_of(sizes: Sizes) -> dict[str, Callable[[], Callable[[], Any]]]:
    """What makes them."""
    states, images = sizes.states[sizes.preset], sizes.images[sizes.preset]
    return {
        "states": partial(states_fit, states, sizes.samples),
        "images": partial(images_fit, images, sizes.frames),
    }


def fitted(make: Any, clock: Clock, blank: Row) -> Row:
    return blank._replace(value=clock.medians([make()], 0.0)[0][0])


def steps(sizes: Sizes, machine: Machine, clock: Clock) -> Iterator[Row]:
    """Steps of each environment with random actions, its resets included."""
    for name in sizes.environments:
        blank = Row("steps", name, None, "steps/s")
        yield clock.row(blank, sizes.playing, partial(played, name, sizes.playing))


def played(name: str, seconds: float, blank: Row) -> Row:
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
    took = time.perf_counter() - began
    env.close()
    repeat = gym.spec(name).kwargs.get("action_repeat", 1)
    return blank._replace(value=count / took, note=f"{repeat} frames each" if repeat > 1 else "")


def doubled(settings: PetsSettings) -> dict[str, PetsSettings]:
    """With twice as many of something; members share out the particles, so these are doubled with them."""
    net, cem = settings.ensemble, settings.cem
    larger = replace(net, members=2 * net.members, particles=2 * net.particles)
    return {
        "candidates": replace(settings, cem=replace(cem, population=2 * cem.population)),
        "horizon": replace(settings, cem=replace(cem, horizon=2 * cem.horizon)),
        "members, particles": replace(settings, ensemble=larger),
    }


def larger(sizes: Sizes) -> dict[str, tuple[PetsSettings, int]]:
    """Settings and lanes of plans that are compared with one."""
    more = {f"{name} × 2": (settings, 1) for name, settings in doubled(sizes.grown).items()}
    return more | {f"{count} lanes": (sizes.grown, count) for count in sizes.lanes}


def growth(sizes: Sizes, machine: Machine, clock: Clock) -> Iterator[Row]:
    """Latency of a larger plan, or of several in one call, over that of one."""
    for name, changed in larger(sizes).items():
        measure = partial(ratio, sizes.grown, *changed, machine, clock, sizes.repeating)
        yield clock.row(Row("growth", name, None, "×"), clock.seconds(COMPILING) + sizes.repeating, measure)


def ratio(
    settings: PetsSettings, more: PetsSettings, lanes: int, machine: Machine, clock: Clock, seconds: float, blank: Row
) -> Row:
    (one, large), _ = clock.medians([states_plan(settings), states_plan(more, lanes)], seconds)
    work, note = states_work(more), f"{figure(1e3 * large)} ms against {figure(1e3 * one)}"
    share = lanes * work.floor(machine.tflops) / large
    return blank._replace(
        value=large / one, evaluations_per_second=lanes * work.evaluations / large, share_of_floor=share, note=note
    )


def measure(sizes: Sizes, tell: Callable[[str], None], seconds: float = SECONDS) -> tuple[Machine, list[Row]]:
    """All of it, the most important first; `tell` hears of each row that is begun."""
    compiled.remember()
    memory.keep()
    clock = Clock(seconds, tell)
    machine = look(sizes.products)
    if jax.default_backend() != "cpu":  # which would have no core left for a second one
        plain = [partial(states_plan, each) for each in sizes.states.values()]
        plain += [partial(images_plan, each) for each in sizes.images.values()]
        clock.compile(
            [*plain, *fits_of(sizes).values(), *(partial(states_plan, *each) for each in larger(sizes).values())]
        )
    return machine, [row for part in (plans, steps, fits, growth) for row in part(sizes, machine, clock)]


def as_json(machine: Machine, rows: Iterable[Row]) -> dict[str, Any]:
    """As JSON has it; what is not finite is null."""
    told = [
        {name: None if isinstance(x, float) and not math.isfinite(x) else x for name, x in row._asdict().items()}
        for row in rows
    ]
    return {"machine": machine._asdict(), "rows": told}


def figure(value: float | None, unit: str = "") -> str:
    """Three digits that count, with the unit; nothing where there is no figure."""
    if value is None or not math.isfinite(value):
        return ""
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{round(value, digits):,.{max(0, digits)}f}{unit}"


def page(machine: Machine, rows: Iterable[Row], width: int = 100) -> str:
    """The table as text, with a line on the machine above it and what is to be known below."""
    table = Table("", "what", box=None, padding=(0, 2, 0, 0))
    for heading in ("figure", "evaluations/s", "of floor"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("note")
    last, late = "", False
    for row in rows:
        part, name = "" if row.part == last else row.part, row.name.removeprefix("capax/")
        share = figure(row.share_of_floor and 100.0 * row.share_of_floor, " %")
        shown = figure(row.value, f" {row.unit}"), figure(row.evaluations_per_second), share
        table.add_row(*map(Text, (part, name, *shown, row.note)))
        last, late = row.part, late or row.note == NO_TIME
    rates = " and ".join(f"{figure(rate)} TFLOP/s in {kind}" for kind, rate in machine.tflops.items())
    cores = f"{machine.cores} core{'s' * (machine.cores != 1)}"
    out = Console(width=width, color_system=None)
    with out.capture() as captured:
        out.print(Text(f"{machine.device}, {cores}, JAX {machine.jax}; a square product reaches\n{rates}.\n"), table)
        out.print(Text("\nof floor: what a plan's matrix products take at that rate, over what the plan takes."))
        if late:
            out.print(Text("Where no time was left: start it again, since what was compiled is kept."))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
