"""Which worlds of the gridworld experiment are done? An experiment that was stopped goes on with the others.

While it runs, a line per finished world is appended to `worlds.jsonl`, whose first line holds the settings; the file goes
when the results are there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from capax.errors import InputError
from capax.paper.gridworld import Label, Settings, WorldResult
from capax.runs import folder

WORLDS = "worlds.jsonl"
FREE = ("jobs",)
"""What may change when an experiment goes on."""


def settings_of(settings: Settings) -> dict[str, Any]:
    """What the results depend on, as JSON has it."""
    return json.loads(json.dumps({name: v for name, v in asdict(settings).items() if name not in FREE}))


def finished(path: Path, settings: Settings) -> dict[int, WorldResult]:
    """The worlds that are done; the line of a world that was being written when the process ended is dropped."""
    try:
        head, *lines = path.read_text().split("\n")
        before = json.loads(head)
        if before != settings_of(settings):
            raise InputError(
                f"{path} was begun with other settings ({head}): give these again, or begin anew with --force."
            )
        whole = lines[:-1]
        done = {int(line["world"]): result_of(line) for line in map(json.loads, whole)}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is damaged ({type(error).__name__}): begin anew with --force.") from None
    folder.write(path, "\n".join([head, *whole, ""]))
    return done


def result_of(line: dict[str, Any]) -> WorldResult:
    policies = [(Label(str(method), kappa), table) for method, kappa, table in line["policies"]]
    return WorldResult([dict(row) for row in line["rows"]], policies)


def kept(
    path: Path, settings: Settings, results: Iterable[WorldResult], done: dict[int, WorldResult] | None
) -> Iterator[WorldResult]:
    """Pass results on, each of them safe on the disk."""
    if done is None:
        folder.write(path, json.dumps(settings_of(settings)) + "\n")
    for number, result in enumerate(results):
        if number not in (done or {}):
            policies = [(named.method, named.kappa, table) for named, table in result.policies]
            line = {"world": number, "rows": result.rows, "policies": policies}
            folder.append(path, json.dumps(line, allow_nan=False) + "\n")
        yield result
