"""The settings of methods and rules as tables: name, default, range and meaning."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.table import Table

from capax.core.contracts import Kind
from capax.core.settings import SettingInfo, describe
from capax.kappa.conformal import DEFAULT_RATE
from capax.kappa.rules import RULES, make_rule, rule_settings, rules_of
from capax.runtime.terminal import CleanConsole, line
from capax.training.methods import METHODS, Method
from capax.training.presets import default_preset, preset_rule, preset_settings

OBSERVATIONS: dict[Kind, str] = {"vector": "vectors", "image": "images", "finite": "states of a finite world"}
"""Observations of each kind of task, in words."""
PLAIN_WIDTH = 132
"""Columns where the output is not a terminal."""


class SettingRow(NamedTuple):
    """A setting."""

    name: str
    paper: Any
    """Its value with the preset `paper`, which is the default of the settings."""
    published: Any
    fast: Any
    fast_undiscounted: Any
    """Its value with the preset `fast` where the limit is undiscounted."""
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
            presets = tuple(
                preset_settings(settings, entry.name, kind, preset, budget)
                for preset, budget in (("published", False), ("fast", False), ("fast", True))
            )
            names, kinds, _ = groups.setdefault((settings, *presets), ([], [], _rows(settings, *presets)))
            for item, items in ((entry.name, names), (OBSERVATIONS[kind], kinds)):
                if item not in items:
                    items.append(item)
    tables = [
        Group(f"{', '.join(names)} (observations are {' or '.join(kinds)})", rows)
        for names, kinds, rows in groups.values()
    ]
    return [*tables, *_rule_groups()] if any(entry.chooses_kappa for entry in chosen) else tables


def _rule_groups() -> list[Group]:
    """The parameters of each rule for κ; kinds of task where they are the same share a group."""
    groups = []
    for name in RULES:
        kinds_of: dict[Any, list[Kind]] = {}
        for kind in OBSERVATIONS:
            if name in rules_of(kind):
                kinds_of.setdefault(tuple(rule_settings(name, kind, DEFAULT_RATE).items()), []).append(kind)
        for parameters, kinds in kinds_of.items():
            where = f" (observations are {' or '.join(OBSERVATIONS[kind] for kind in kinds)})"
            rule = make_rule(name, kinds[0], DEFAULT_RATE)
            published = make_rule(name, kinds[0], DEFAULT_RATE, preset_rule("published", name))
            rows = [row for row in _rows(rule, published, rule, rule) if row.name in dict(parameters)]
            groups.append(Group(f"--kappa {name}{where if len(kinds_of) > 1 else ''}", rows))
    return groups


def summaries(method: str | None) -> list[str]:
    """A line for a method, or for each."""
    return [f"{entry.name}: {entry.summary}" for entry in _chosen(method)]


def _chosen(method: str | None) -> list[Method]:
    return [METHODS.find(method)] if method is not None else list(METHODS.values())


def _rows(settings: Any, *presets: Any) -> list[SettingRow]:
    """The settings with their defaults, and with their values in presets."""
    values = [{info.name: info.default for info in describe(preset)} for preset in presets]

    def row(info: SettingInfo) -> SettingRow:
        published, fast, budget = (each[info.name] for each in values)
        return SettingRow(info.name, info.default, published, fast, budget, info.wanted, info.meaning)

    return [row(info) for info in describe(settings)]


def as_json(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """The groups for programs."""
    return [{"title": group.title, "settings": [row._asdict() for row in group.rows]} for group in groups]


def _columns(group: Group) -> dict[str, list[str]]:
    """The columns of values, each with its head; a cell is empty where the column before it has the same value."""

    def changes(before: Sequence[Any], after: Sequence[Any]) -> list[str]:
        return [f"{new}" if new != old else "" for old, new in zip(before, after, strict=True)]

    heads = "paper", "published", "fast", "fast, undiscounted"
    values = {head: [row[place] for row in group.rows] for place, head in enumerate(heads, start=1)}
    columns, before = {}, values["paper"]
    for head in heads[1:]:
        if any(cells := changes(before, values[head])):
            columns[head], before = cells, values[head]
    return {"paper" if columns else "default": [f"{value}" for value in values["paper"]], **columns}


def print_groups(groups: Sequence[Group], heads: Sequence[str]) -> None:
    """Print the heads as lines, and the groups as tables."""
    console = CleanConsole(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    for head in heads:
        console.print(line(head))
    for group in groups:
        columns = _columns(group)
        table = Table("setting", *columns, "values", "meaning", title=line(group.title), title_justify="left", box=None)
        for number, row in enumerate(group.rows):
            values = [cells[number] for cells in columns.values()]
            table.add_row(*map(line, (row.name, *values, row.wanted, row.meaning)))
        console.print(table)
        console.print()
    if not groups:
        console.print("This method has no settings.")
        return
    console.print("An empty cell: the same as in the column before it.")
    console.print(f"The default here is the column {default_preset()}: paper where JAX finds a GPU, fast elsewhere.")
    console.print("Change one with --set NAME=VALUE, or settings={'NAME': VALUE} in Python.")
