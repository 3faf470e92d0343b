"""Runs that differ in nothing but their seed, and names that say in what such groups differ from each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from capax.core.checks import one_line
from capax.core.errors import InputError
from capax.runs.config import RunConfig
from capax.runs.run import Run

ACCIDENTAL = ("seed", "version", "commit", "device", "switches", "capacity")
"""Fields of a configuration that make no other experiment of a run. The capacity follows from the steps."""
NAMED = ("task", "method", "kappa", "preset")
"""Fields that are not named as NAME=VALUE."""
MAX_NAMED = 4
"""Differences that a name lists; more of them would be no name."""


class Group(NamedTuple):
    """Runs of one experiment with different seeds."""

    task: str
    label: str
    runs: tuple[Run, ...]


def flat(config: RunConfig) -> dict[str, Any]:
    """What decides an experiment: every field and setting by its name, but those that are accidental."""
    result: dict[str, Any] = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, part in value.items():
                add(str(key), part)
        else:
            result[name] = list(value) if isinstance(value, tuple) else value

    for part in fields(config):
        if part.name not in ACCIDENTAL:
            add(part.name, getattr(config, part.name))
    return result


def grouped(runs: Sequence[Run]) -> list[Group]:
    """The groups of runs, task by task, each with a name that no other group of its task has."""
    found: list[tuple[dict[str, Any], list[Run]]] = []
    for run in runs:
        values = flat(run.config)
        same = next((members for other, members in found if other == values), None)
        if same is None:
            found.append((values, [run]))
            continue
        if twin := next((other for other in same if other.config.seed == run.config.seed), None):
            raise InputError(
                f"{twin.folder} and {run.folder} are the same experiment with the same seed, {run.config.seed}: name one of them."
            )
        same.append(run)
    order = list(dict.fromkeys(values["task"] for values, _ in found))
    found.sort(key=lambda item: order.index(item[0]["task"]))
    return [
        Group(
            values["task"], label(values, [other for other, _ in found if other["task"] == values["task"]]), tuple(own)
        )
        for values, own in found
    ]


def label(values: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> str:
    """The name of a group among those of its task: method, rule for κ, preset if there are several, and what else differs."""
    parts = [str(values["method"])]
    if values["kappa"] is not None:
        parts.append(f"κ {values['kappa']}")
    if len({group["preset"] for group in groups}) > 1:
        parts.append(f"preset {values['preset']}")
    alike = [group for group in groups if all(group[name] == values[name] for name in NAMED)]
    names = [name for name in values if name not in NAMED and any(group.get(name) != values[name] for group in alike)]
    parts += [f"{name}={values[name]}" for name in names[:MAX_NAMED]]
    if len(names) > MAX_NAMED:
        parts.append(f"and {len(names) - MAX_NAMED} more")
    return one_line(", ".join(parts), 160)
