"""The rows of the paper's tables, and the run that makes each of them here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from capax.paper.gridworld import PAPER_RESULTS

PRESET = "published"
"""The preset of the rows: the settings and conventions of the authors' code."""
HALFCHEETAH, CARRACING, GRIDWORLD = "capax/HalfCheetahVelocity-v0", "capax/CarRacingSkid-v0", "gridworld"
CHEETAH_STEPS, RACING_STEPS, LONG_STEPS = 100_000, 200_000, 1_000_000


class PaperRow(NamedTuple):
    """A row of a table: what is run, and the paper's numbers."""

    name: str
    """What `capax paper NAME` calls it."""
    task: str
    """The task's id, or GRIDWORLD."""
    method: str
    kappa: str | float | None
    """The rule for κ, or its value; None for methods without κ."""
    steps: int
    """Steps after which the row is read off."""
    run_steps: int
    """Steps of the run, which can be longer."""
    earned: float
    """Mean return of the last ten episodes: undiscounted on HalfCheetah, discounted on Car-Racing, normalised on gridworlds."""
    paid: float
    """Mean cost of the last ten episodes, in the convention of the limit."""
    violations: float | None
    """Violating episodes, or policies, from the first step on. The random ones are among them."""
    agent: str
    """The agent whose tag the row has."""


Numbers = tuple[float, float, float | None]
"""Return, cost and violations."""
MODELS: dict[str, tuple[Numbers, Numbers]] = {
    "cap-adam": ((1456.3, 144.3, 1.7), (21.7, 0.4, 93.3)),
    "cap-kappa-10": ((-36.5, 5.4, 0.0), (1.0, 0.4, 52.0)),
    "cap-kappa-1": ((1092.9, 111.5, 0.0), (6.2, 0.4, 30.3)),
    "cap-kappa-0.1": ((1774.4, 179.9, 70.0), (35.4, 2.3, 149.0)),
    "cap-kappa-0": ((1588.0, 198.1, 80.0), (26.9, 9.3, 184.0)),
    "cem": ((2330.7, 344.0, 78.7), (40.3, 202.1, 194.3)),
    "random": ((-29.3, 52.7, None), (3.9, 159.3, None)),
}
"""The paper's numbers on HalfCheetah and on Car-Racing: methods with a model, and random actions."""
MODEL_FREE: dict[str, tuple[tuple[Numbers, Numbers], tuple[Numbers, Numbers]]] = {
    "ppo": (((670.2, 97.6, 0.0), (2791.3, 296.9, 378.0)), ((48.8, 224.8, 196.0), (32.7, 52.0, 975.0))),
    "ppo-lag": (((670.2, 97.6, 0.0), (1436.8, 150.7, 108.0)), ((-3.2, 0.3, 101.3), (-3.2, 0.0, 101.3))),
    "focops": (((456.0, 84.6, 0.0), (1591.4, 160.2, 202.8)), ((16.2, 3.9, 172.0), (23.4, 0.8, 581.0))),
}
"""The same for methods without a model, after as many steps as CAP has and after a million."""


def gridworld_rows() -> Iterator[PaperRow]:
    """Rows of the gridworld's table."""
    steps = 500 * 31
    for (method, kappa), numbers in PAPER_RESULTS.items():
        name = kappa if isinstance(kappa, str) else f"kappa-{kappa:g}"
        earned, paid, violations = numbers[0], numbers[2], numbers[4]
        yield PaperRow(
            f"gridworld-{name}", GRIDWORLD, method, kappa, steps, steps, earned, paid, violations, "gridworld"
        )


def deep_rows(place: str, task: str, steps: int, kind: str, column: int) -> Iterator[PaperRow]:
    """Rows of one of the two other tasks; `column` says which of the two numbers in the tables above are its own."""
    for name, by_task in MODELS.items():
        method, _, rule = name.partition("-")
        kappa = None if not rule else rule if rule == "adam" else float(rule.removeprefix("kappa-"))
        agent = "random" if method == "random" else f"planning-{kind}"
        yield PaperRow(f"{place}-{name}", task, method, kappa, steps, steps, *by_task[column], agent)
    for method, by_place in MODEL_FREE.items():
        for at, when, numbers in zip((steps, LONG_STEPS), (f"{steps // 1000}k", "1m"), by_place[column], strict=True):
            yield PaperRow(f"{place}-{method}-{when}", task, method, None, at, LONG_STEPS, *numbers, "policy-gradient")


ROWS = {
    row.name: row
    for row in (
        *gridworld_rows(),
        *deep_rows("halfcheetah", HALFCHEETAH, CHEETAH_STEPS, "states", 0),
        *deep_rows("carracing", CARRACING, RACING_STEPS, "images", 1),
    )
}
"""Every row, by its name."""
