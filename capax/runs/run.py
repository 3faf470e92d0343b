"""`Run`: reads a run folder and summarises it. It writes nothing."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capax.core.checks import short_repr
from capax.core.errors import InputError
from capax.runs.config import RunConfig
from capax.runs.folder import read_plain
from capax.runtime.terminal import printable

CONFIG, EPISODES, INTERRUPTED = "config.json", "episodes.jsonl", "interrupted.jsonl"
RECENT = 10
"""Last episodes that a summary averages."""


@dataclass(frozen=True, repr=False)
class Run:
    """A folder that `capax.train` has written."""

    folder: Path

    @property
    def exists(self) -> bool:
        """Whether the folder holds something under the name of the configuration, or a link."""
        try:
            (self.folder / CONFIG).lstat()
        except OSError:
            return False
        return True

    @property
    def config(self) -> RunConfig:
        """Everything that decides the run."""
        path = self.folder / CONFIG
        try:
            text = read_plain(path)
        except (FileNotFoundError, NotADirectoryError):
            raise InputError(f"{self.folder} holds no {CONFIG}: name a folder that capax train has written.") from None
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror}).") from None
        return RunConfig.from_json(text, str(path))

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
        try:
            complete, _, _ = read_plain(path).rpartition(b"\n")  # a last line without an end was not written to its end
            rows = [json.loads(line) for line in complete.splitlines() if line]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except InputError:
            raise
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror}).") from None
        except (ValueError, RecursionError):
            raise InputError(f"{path} has a line that is not JSON: it was damaged.") from None
        if not all(isinstance(row, dict) for row in rows):
            raise InputError(f"{path} has a line that is no row of a run: it was damaged.")
        return rows

    def __str__(self) -> str:
        try:
            return printable(self._summary())
        except InputError as error:  # the folder is gone, damaged, or of another version
            return str(error)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            return printable(f"{self.folder}: a run that cannot be summarised ({short_repr(error)})")

    def _summary(self) -> str:
        config, rows = self.config, self.episodes
        head = f"{config.task}, {config.method}, seed {config.seed}"
        if not rows:
            return f"{self.folder}: {head}, no episode yet"
        last, cost = rows[-RECENT:], config.cost_name
        mean = {name: sum(row[name] for row in last) / len(last) for name in (*config.return_names, cost)}
        stopped = self.interrupted
        also = f"; {len(stopped)} more interrupted, with {violations_in_words(stopped)}" if stopped else ""
        limit = "no limit" if config.cost_limit is None else f"limit {config.cost_limit:g}"
        return (
            f"{self.folder}: {head}, {len(rows)} episodes, {rows[-1]['steps']} steps; last {len(last)}: "
            f"{_in_words(mean, config.return_names)}, {_in_words(mean, (cost,))} ({limit}); "
            f"{violations_in_words(rows)}{also}{_bound_in_words(rows)}"
        )

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        try:
            config, rows = self.config, self.episodes
            cells = {
                "folder": self.folder,
                "task": config.task,
                "method": config.method if config.kappa is None else f"{config.method}, κ {config.kappa}",
                "seed": config.seed,
                "limit": "none" if config.cost_limit is None else f"{config.cost_limit:g}",
                "episodes": len(rows),
                "steps": rows[-1]["steps"] if rows else 0,
                "violations": violations_in_words(rows),
            }
            if rows:
                last, cost = rows[-RECENT:], config.cost_name
                for name in (*config.return_names, cost):
                    value = sum(row[name] for row in last) / len(last)
                    cells[f"{name.replace('_', ' ')}, mean of the last {len(last)}"] = f"{value:.4g}"
        except InputError as error:
            cells = {"folder": self.folder, "state": error}
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            cells = {"folder": self.folder, "state": "cannot be read"}
        lines = (
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>" for name, value in cells.items()
        )
        return f"<table>{''.join(lines)}</table>"


def _in_words(means: Mapping[str, float], names: Sequence[str]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {means[name]:.4g}" for name in names)


def _bound_in_words(rows: Sequence[dict[str, Any]]) -> str:
    """What the rule for κ guarantees for the planned episodes that were played; empty if it says nothing."""
    planned = [row for row in rows if row.get("phase") != "random"]
    bound = planned[-1].get("violation_bound") if planned else None
    return "" if bound is None else f"; at most {bound:.0%} of the planned ones by the rule's count"


def violations_in_words(rows: Sequence[dict[str, Any]]) -> str:
    """The violations of planned and of random episodes, which are two different numbers."""
    planned, random = (
        sum(bool(row["violation"]) for row in rows if (row.get("phase") == "random") == is_random)
        for is_random in (False, True)
    )
    text = f"{planned} violation{'s' * (planned != 1)}"
    return (
        text
        if not any(row.get("phase") == "random" for row in rows)
        else f"{text} in planned episodes, {random} in random ones"
    )
