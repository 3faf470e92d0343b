"""Warnings about a run that does not go well, with what to try."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy import ndarray as Array

from capax.runs.config import RunConfig
from capax.training.methods import METHODS

WINDOW = 10
"""Planned episodes that are compared with as many before them, and with the random start."""
CLEAR_FALL = 5.0
"""Standard errors by which the mean return must fall. The comparison is made after every episode: with 2, returns that only
scatter would seem to fall in most runs, with 5 in less than one of a hundred runs of 300 episodes."""
FAR_BELOW = 0.25
"""Share of the limit below which a cost counts as far below it."""


class Monitor:
    """Looks at the rows of a run."""

    def __init__(self, config: RunConfig, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        """`rows` are those of the run so far: a run that continues is compared with what it was."""
        self._config, self._constrained = config, METHODS.find(config.method).constrained
        self._returns: deque[float] = deque(maxlen=2 * WINDOW)
        self._costs: deque[float] = deque(maxlen=WINDOW)
        self._random_returns: list[float] = []
        self._warned_of_fall = False
        for row in rows:
            for _ in self.warnings(row):
                pass

    def warnings(self, row: Mapping[str, Any]) -> Iterator[str]:
        """Warnings that are due after an episode."""
        if row.get("feasible") in (0.0, False):
            yield self._nothing_feasible()
        if row.get("bad_fits"):
            yield "a fit gave a model that is not finite: the last good parameters are used."
        if row.get("plan_bad"):
            yield "a plan was not finite: the last good parameters, or the plan before it, were used."
        if row["phase"] == "random":
            self._random_returns.append(float(row["return"]))
        else:
            yield from self._too_careful(row)

    def _nothing_feasible(self) -> str:
        """Advice for a model that saw no way to keep the limit. It is shown once, so it names no episode."""
        if self._config.cost_limit is None or not self._constrained:
            return "in a whole episode no plan was finite: the model has diverged, so lower learning_rate."
        return (
            f"in a whole episode no plan was within the limit of {self._config.limit:g}, so the least costly was chosen; if "
            "that continues, raise the cost limit or the violation rate, choose a smaller κ (--kappa), or begin with better "
            "data (initial_data)."
        )

    def _too_careful(self, row: Mapping[str, Any]) -> Iterator[str]:
        """A cost far below the limit while the return falls, from what it was or below that of random actions: the limit is
        not what holds the agent back. It is shown once."""
        config = self._config
        if self._warned_of_fall or not self._constrained:
            return
        self._returns.append(float(row["return"]))
        self._costs.append(float(row[config.cost_name]))
        if not 0.0 < config.limit < math.inf or len(self._costs) < WINDOW or config.kind == "finite":
            return
        share = float(np.mean(self._costs)) / config.limit
        returns = np.array(self._returns)
        now, before = returns[-WINDOW:], returns[:-WINDOW]
        for earlier, name in ((before, ""), (np.array(self._random_returns), " in the random start")):
            if share < FAR_BELOW and len(earlier) >= WINDOW and clearly_less(now, earlier):
                self._warned_of_fall = True
                yield (
                    f"the cost of the last {WINDOW} episodes is {share:.0%} of the limit, and their return has fallen from "
                    f"{earlier.mean():.3g}{name} to {now.mean():.3g}: {self._advice()}"
                )
                return

    def _advice(self) -> str:
        if self._config.kappa is None:  # without κ, nothing makes an agent careful
            return (
                "the agent ends its episodes to save cost, or it no longer learns. See whether ending an episode should cost "
                "something."
            )
        return (
            "the agent is too careful, or it ends its episodes to save cost. Try a higher --violation-rate, a small fixed κ "
            "(--kappa 0.1), a longer horizon (--set horizon=40), or see whether ending an episode should cost something."
        )


def clearly_less(now: Array, before: Array) -> bool:
    """Whether a mean is lower than another one by CLEAR_FALL standard errors."""
    error = math.sqrt(now.var(ddof=1) / len(now) + before.var(ddof=1) / len(before))
    return bool(now.mean() < before.mean() - CLEAR_FALL * error)
