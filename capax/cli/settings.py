"""The settings of methods and rules as tables: name, default, range and meaning."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.table import Table

from capax.core.settings import describe
from capax.kappa.rules import RULES
from capax.runtime.terminal import CleanConsole, line
from capax.training.methods import METHODS, Method
from capax.training.presets import default_preset, preset_settings

OBSERVATIONS = {"vector": "vectors", "image": "images", "finite": "states of a finite world"}
"""Observations of each kind of task, in words."""
PLAIN_WIDTH = 132
"""Columns where the output is not a terminal."""


class SettingRow(NamedTuple):
    """A setting."""

    name: str
    paper: Any
    """Its value with the preset `paper`, which is the default of the settings."""
    fast: Any
    wanted: str
    meaning: str


class Group(NamedTuple):
    """Settings that belong together."""

    title: str
    rows: list[SettingRow]


def groups_of(method: str | None) -> list[Group]:
    """The settings of a method, or of all; methods with the same settings share a group."""
    chosen = _chosen(method)
    groups: dict[Any, tuple[list[str], list[str], list[SettingRow]]] = {}
    for entry in chosen:
        for kind, settings in entry.settings.items():
            if settings is None:
                continue
            fast = preset_settings(settings, entry.name, kind, "fast")
            names, kinds, _ = groups.setdefault((settings, fast), ([], [], _rows(settings, fast)))
            for item, items in ((entry.name, names), (OBSERVATIONS[kind], kinds)):
                if item not in items:
                    items.append(item)
    tables = [
        Group(f"{', '.join(names)} (observations are {' or '.join(kinds)})", rows)
        for names, kinds, rows in groups.values()
    ]
    if any(entry.chooses_kappa for entry in chosen):
        tables += [
            Group(f"--kappa {name}", [row for row in _rows(rule("vector", 0.02), None) if row.name not in hidden])
            for name, rule in RULES.items()
            for hidden in [("rate",) if name == "conformal" else ()]
        ]
    return tables


def summaries(method: str | None) -> list[str]:
    """A line for a method, or for each."""
    return [f"{entry.name}: {entry.summary}" for entry in _chosen(method)]


def _chosen(method: str | None) -> list[Method]:
    return [METHODS.find(method)] if method is not None else list(METHODS.values())


def _rows(settings: Any, fast: Any) -> list[SettingRow]:
    other = {} if fast is None else {info.name: info.default for info in describe(fast)}
    return [
        SettingRow(info.name, info.default, other.get(info.name, info.default), info.wanted, info.meaning)
        for info in describe(settings)
    ]


def as_json(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """The groups for programs."""
    return [{"title": group.title, "settings": [row._asdict() for row in group.rows]} for group in groups]


def print_groups(groups: Sequence[Group], heads: Sequence[str]) -> None:
    """Print the heads as lines, and the groups as tables."""
    console = CleanConsole(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    for head in heads:
        console.print(line(head))
    for group in groups:
        table = Table(
            "setting", "paper", "fast", "values", "meaning", title=line(group.title), title_justify="left", box=None
        )
        for row in group.rows:
            fast = "" if row.fast == row.paper else f"{row.fast}"
            table.add_row(*map(line, (row.name, f"{row.paper}", fast, row.wanted, row.meaning)))
        console.print(table)
        console.print()
    if not groups:
        console.print("This method has no settings.")
        return
    console.print(f"The default here is the column {default_preset()}: paper where JAX finds a GPU, fast elsewhere.")
    console.print("Change one with --set NAME=VALUE, or settings={'NAME': VALUE} in Python.")
