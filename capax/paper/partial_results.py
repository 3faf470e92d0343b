"""Partial results of the gridworld experiment, so that a stopped experiment can be resumed.

The first line of `worlds.jsonl` holds the settings. A line is appended for each finished world. The file is deleted when
the final results are written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from capax.core.errors import InputError
from capax.paper.gridworld import Label, Settings, WorldResult
from capax.runs.folder import Folder

PARTIAL_FILE = "worlds.jsonl"
CHANGEABLE_SETTINGS = ("jobs",)
"""Settings that may differ when an experiment is resumed."""


def settings_payload(settings: Settings) -> dict[str, Any]:
    """The settings that the results depend on, as values of JSON."""
    payload = {name: value for name, value in asdict(settings).items() if name not in CHANGEABLE_SETTINGS}
    return json.loads(json.dumps(payload))


def begins_with_settings(folder: Folder) -> bool:
    """Whether the folder has a file of partial results that begins with settings, so that it is not somebody else's."""
    try:
        head = json.loads(folder.read(PARTIAL_FILE).partition(b"\n")[0])
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(head, dict) and {*head} == {*settings_payload(Settings())}


def load_finished_worlds(folder: Folder, settings: Settings) -> dict[int, WorldResult]:
    """Read the finished worlds, by number. An incomplete last line is removed from the file."""
    path = folder.path / PARTIAL_FILE
    try:
        head, *lines = folder.read(PARTIAL_FILE).decode().split("\n")
        if json.loads(head) != settings_payload(settings):
            raise InputError(
                f"{path} was started with other settings ({head}): use those settings, or start over with --force."
            )
        complete_lines = lines[:-1]
        finished = {int(line["world"]): world_result(line) for line in map(json.loads, complete_lines)}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is damaged ({type(error).__name__}): start over with --force.") from None
    folder.write(PARTIAL_FILE, "\n".join([head, *complete_lines, ""]))
    return finished


def world_result(line: dict[str, Any]) -> WorldResult:
    """The results that a line of the file holds."""
    policies = [(Label(str(method), kappa), policy) for method, kappa, policy in line["policies"]]
    return WorldResult([dict(row) for row in line["rows"]], policies)


def save_finished_worlds(
    folder: Folder, settings: Settings, results: Iterable[WorldResult], finished: dict[int, WorldResult] | None
) -> Iterator[WorldResult]:
    """Write each new result to the file, then yield it. `finished` is None for a new experiment."""
    if finished is None:
        folder.write(PARTIAL_FILE, json.dumps(settings_payload(settings)) + "\n")
    for number, result in enumerate(results):
        if number not in (finished or {}):
            policies = [(label.method, label.kappa, policy) for label, policy in result.policies]
            line = {"world": number, "rows": result.rows, "policies": policies}
            folder.append(PARTIAL_FILE, json.dumps(line, allow_nan=False) + "\n")
        yield result
