"""Draws the pictures of the pages from committed rows. `results/pictures.json` holds what each was drawn from."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from benchmarks.figures import stored
from benchmarks.figures.gridworld import DEFAULTS

IMAGES = stored.ROOT / "docs" / "images"
SOURCES = stored.RESULTS / "pictures.json"
WORLD = "gridworld/world-0-any-seed-0.json.xz"
CAPTION = "100 worlds of seed 0, slip any"
CHEETAHS = ("conformal-0", "conformal-1", "conformal-2", "adam-0", "adam-1", "adam-2")
CARS = ("worth-0.4-0", "worth-0.05-0", "adam-100-0")
RUNS = {
    "halfcheetah.png": tuple(f"halfcheetah/{name}" for name in CHEETAHS),
    "carracing.png": tuple(f"carracing/{name}" for name in CARS),
}
"""The runs that a picture shows."""


def draw_runs(names: Iterable[str]) -> bytes:
    """Return, cost and κ of committed runs."""
    from capax.reporting.training import draw_curves
    from capax.runs.run import Run

    with tempfile.TemporaryDirectory() as scratch:
        runs = []
        for name in names:
            folder = Path(scratch, Path(name).name)
            stored.unpack(stored.RESULTS / name, folder)
            runs.append(Run(folder))
        return draw_curves(runs)


def draw_gridworld() -> bytes:
    """Curves of the gridworld experiment."""
    from capax.reporting.gridworld import draw_curves

    return draw_curves(stored.read_rows(DEFAULTS), CAPTION)


def draw_world() -> bytes:
    """World 0 of the experiment."""
    from capax.reporting.gridworld import draw_world as draw

    return draw(stored.read_rows(WORLD)[0])


DRAWN: dict[str, Callable[[], bytes]] = {
    **{name: partial(draw_runs, runs) for name, runs in RUNS.items()},
    "figure.png": draw_gridworld,
    "world.png": draw_world,
}
"""What draws each picture."""


def source_files(name: str) -> list[str]:
    """The files below `results/` that a picture shows."""
    if name in RUNS:
        return [f"{run}/{part}" for run in RUNS[name] for part in (stored.CONFIG, stored.PACKED)]
    return [DEFAULTS if name == "figure.png" else WORLD]


def sources(name: str) -> dict[str, str]:
    """SHA-256 sums of what a picture shows, and of the picture itself."""
    paths = {**{file: stored.RESULTS / file for file in source_files(name)}, "picture": IMAGES / name}
    return {file: hashlib.sha256(path.read_bytes()).hexdigest() for file, path in paths.items() if path.exists()}


def outdated() -> list[str]:
    """Pictures that do not show what is committed."""
    saved = json.loads(SOURCES.read_text()) if SOURCES.exists() else {}
    return [name for name in DRAWN if saved.get(name) != sources(name)]


def draw(names: Iterable[str]) -> None:
    """Draw pictures, and note what they were drawn from."""
    for name in names:
        (IMAGES / name).write_bytes(DRAWN[name]())
    SOURCES.write_text(json.dumps({name: sources(name) for name in DRAWN}, indent=2) + "\n")
