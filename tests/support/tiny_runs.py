"""Tiny runs of `capax.train` in the environment that counts its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import capax
from capax.runs.run import Run
from support import toy_envs
from support.small_settings import TINY_VECTOR


def counting(steps: int | None = 4, **parts: Any) -> Callable[[], Any]:
    """A function that makes the counting toy, with a time limit of `steps` steps."""
    return toy_envs.limited(partial(toy_envs.counting, **parts), steps)


def train_tiny(out: Path, env: Any = None, **options: Any) -> Run:
    """A run of ten steps in episodes of four, of which six are random."""
    return capax.train(
        env or counting(), **{"steps": 10, "settings": TINY_VECTOR, "cost_limit": 65.0, "out": out, **options}
    )


def train_random(out: Path, **options: Any) -> Run:
    """A run of three random episodes; each pays 100 and violates the limit of 25."""
    return train_tiny(out, **{"steps": 12, "method": "random", "cost_limit": 25.0, **options})


def without_times(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows without what clocks measured."""
    return [{name: value for name, value in row.items() if name != "time"} for row in rows]
