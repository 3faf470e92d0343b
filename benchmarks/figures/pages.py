"""The pages, and the files that are made from the committed results; `render` knows every figure."""

from __future__ import annotations

from pathlib import Path

from benchmarks.figures import (
    corrections,
    gridworld,
    guarantees,
    marks,
    paper_rows,
    pictures,
    run_tables,
    speed,
    stored,
    suite,
    values,
)
from benchmarks.figures.registry import render
from benchmarks.figures.stored import ROOT

PROVIDERS = (corrections, gridworld, guarantees, paper_rows, run_tables, speed, suite, values)
"""Modules whose import registers their figures."""


def pages() -> list[Path]:
    """Every page that may quote a figure."""
    found = [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *sorted((ROOT / "results").glob("*.md"))]
    return found + sorted((ROOT / "docs").rglob("*.md"))


def made_files() -> dict[Path, str]:
    """The text of every page and file that is made, as it should be."""
    texts = {path: marks.fill(path.read_text(), render) for path in pages()}
    return {**texts, paper_rows.STATE: paper_rows.text(), stored.RESULTS / stored.DIGESTS: stored.digests()}


def outdated() -> list[str]:
    """Pages, files and pictures that do not show what is committed."""
    files = [path for path, text in made_files().items() if not path.exists() or path.read_text() != text]
    return [path.relative_to(ROOT).as_posix() for path in files] + pictures.outdated()


def write(all_pictures: bool = False) -> list[str]:
    """Bring everything up to date; returns what has changed."""
    drawn = list(pictures.DRAWN) if all_pictures else pictures.outdated()
    if drawn:
        pictures.draw(drawn)
    changed = {path: text for path, text in made_files().items() if not path.exists() or path.read_text() != text}
    for path, text in changed.items():
        path.write_text(text)
    return drawn + [path.relative_to(ROOT).as_posix() for path in changed]
