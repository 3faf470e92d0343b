"""What is in a run folder, and what can be read from it?"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from capax.errors import InputError

CONFIG, EPISODES, INTERRUPTED = "config.json", "episodes.jsonl", "interrupted.jsonl"


@dataclass(frozen=True)
class Run:
    """A folder that `capax.train` filled."""

    folder: Path

    @property
    def config(self) -> dict[str, Any]:
        """What the run was started with."""
        path = self.folder / CONFIG
        try:
            config = json.loads(path.read_text())
        except FileNotFoundError:
            raise InputError(f"{self.folder} holds no {CONFIG}: name a folder that capax train has written.") from None
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror}).") from None
        except (ValueError, RecursionError):
            raise InputError(f"{path} is not JSON: it was damaged, so restore it or train anew.") from None
        if not isinstance(config, dict) or "task" not in config or "method" not in config:
            raise InputError(f"{path} is not of capax train: name a folder that it has written.")
        return config

    @property
    def task(self) -> str:
        """The environment's id. A module that it names is imported from anywhere but the run folder: nothing in there may
        execute."""
        task = self.config["task"]
        module = str(task).rpartition(":")[0].partition(".")[0]
        spec = PathFinder.find_spec(module) if module else None
        homes = [spec.origin, *(spec.submodule_search_locations or ())] if spec is not None else []
        inside = self.folder.resolve()
        if not isinstance(task, str) or any(inside in Path(home).resolve().parents for home in homes if home):
            raise InputError(f"{self.folder} names a module of its own as its task ({task}): run folders hold no code.")
        return task

    @property
    def episodes(self) -> list[dict[str, Any]]:
        """A row per episode, oldest first."""
        return self._rows(EPISODES)

    @property
    def interrupted(self) -> list[dict[str, Any]]:
        """A row per episode that was stopped and played again: what it earned and paid happened all the same."""
        return self._rows(INTERRUPTED)

    def _rows(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name
        if not path.exists():
            return []
        try:
            whole, _, _ = path.read_bytes().rpartition(b"\n")  # a last line without an end was not written to its end
            rows = [json.loads(line) for line in whole.splitlines() if line]
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror}).") from None
        except (ValueError, RecursionError):
            raise InputError(f"{path} has a line that is not JSON: it was damaged.") from None
        if not all(isinstance(row, dict) for row in rows):
            raise InputError(f"{path} has a line that is no row of a run: it was damaged.")
        return rows

    def __str__(self) -> str:
        try:
            return self._summary()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return f"{self.folder}: a run whose files say little ({error!r})"

    def _summary(self) -> str:
        config, rows = self.config, self.episodes
        head = f"{config['task']}, {config['method']}, seed {config['seed']}"
        if not rows:
            return f"{self.folder}: {head}, no episode yet"
        last = rows[-10:]
        cost = "discounted_cost" if config["discounted"] else "cost"
        mean = {name: sum(row[name] for row in last) / len(last) for name in ("return", cost)}
        stopped = self.interrupted
        also = f"; {len(stopped)} more interrupted, with {_count(stopped)}" if stopped else ""
        limit = "no limit" if config["cost_limit"] is None else f"limit {config['cost_limit']:g}"
        return (
            f"{self.folder}: {head}, {len(rows)} episodes, {rows[-1]['steps']} steps; last {len(last)}: "
            f"return {mean['return']:.4g}, {cost.replace('_', ' ')} {mean[cost]:.4g} ({limit}); "
            f"{_count(rows)}{also}"
        )

    def __repr__(self) -> str:
        return f"<Run {self}>"


def _count(rows: list[dict[str, Any]]) -> str:
    violations = sum(bool(row["violation"]) for row in rows)
    return f"{violations} violation{'s' * (violations != 1)}"
