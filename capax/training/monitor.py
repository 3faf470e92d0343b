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
RECENT = 5
"""Planned episodes after which a run that cannot keep its limit, learns nothing or does nothing is warned of."""
MOST_OF_RECENT = 3
"""Violations among these that are too many, unless the chosen rate lets so many happen by chance."""
BY_CHANCE = 0.001
"""Probability below which so many do not happen by chance."""
LEAST_EXPLAINED = 0.1
"""Share of the reward's variance that a model must predict in one of these episodes."""
LEAST_ACTIVITY = 0.02
"""Mean distance of the actions from doing nothing that counts as doing something; 1 is half of the range."""


class Monitor:
    """Looks at the rows of a run."""

    def __init__(self, config: RunConfig, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        """`rows` are those of the run so far: a run that continues is compared with what it was."""
        self._config, self._constrained = config, METHODS.find(config.method).constrained
        self._returns: deque[float] = deque(maxlen=2 * WINDOW)
        self._costs: deque[float] = deque(maxlen=WINDOW)
        self._random_returns: list[float] = []
        self._warned_of_fall = False
        self._violations: deque[bool] = deque(maxlen=RECENT)
        self._explained: deque[float | None] = deque(maxlen=RECENT)
        self._activity: deque[float | None] = deque(maxlen=RECENT)
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
            yield from self._cannot_keep(row)
            yield from self._learns_nothing(row)
            yield from self._does_nothing(row)
            yield from self._too_careful(row)

    def _cannot_keep(self, row: Mapping[str, Any]) -> Iterator[str]:
        """Most of the recent planned episodes violate the limit."""
        self._violations.append(bool(row.get("violation")))
        count, rate = sum(self._violations), self._config.violation_rate or 0.0
        if not self._constrained or count < MOST_OF_RECENT or binomial_tail(count, RECENT, rate) > BY_CHANCE:
            return
        advice = "raise the cost limit if it is less than any behaviour needs, begin with safer data (initial_data)"
        if self._config.kappa is not None:
            advice += ", look further ahead (--set horizon=60)"
        yield (
            f"{MOST_OF_RECENT} or more of the last {RECENT} planned episodes violate the limit of {self._config.limit:g}, so it "
            f"is not being kept: {advice}, or let the agent see what the cost depends on."
        )

    def _learns_nothing(self, row: Mapping[str, Any]) -> Iterator[str]:
        """The model predicts the rewards of new episodes hardly better than their mean does."""
        self._explained.append(row.get("reward_explained"))
        shares = [share for share in self._explained if share is not None]
        if len(shares) == RECENT and max(shares) < LEAST_EXPLAINED:
            yield (
                f"in each of the last {RECENT} episodes the model predicted less than {LEAST_EXPLAINED:.0%} of what varies in "
                "the reward, so the agent does not learn what to do: see whether observations show what the reward depends "
                "on, and whether rewards are mostly noise, or give the model longer fits (--set least_updates=2000)."
            )

    def _does_nothing(self, row: Mapping[str, Any]) -> Iterator[str]:
        """The actions of recent episodes are those of doing nothing, at a cost far below the limit."""
        self._activity.append(row.get("activity"))
        levels, config = [level for level in self._activity if level is not None], self._config
        cost = float(row[config.cost_name])
        if len(levels) == RECENT and max(levels) < LEAST_ACTIVITY and cost <= FAR_BELOW * max(0.0, config.limit):
            yield (
                f"in the last {RECENT} episodes the agent did almost nothing: it has stopped earning. Try a higher "
                "--violation-rate, a small fixed κ (--kappa 0.1), or a longer horizon (--set horizon=60)."
            )

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
            "(--kappa 0.1), a longer horizon (--set horizon=60), or see whether ending an episode should cost something."
        )


def binomial_tail(count: int, of: int, rate: float) -> float:
    """The probability of `count` or more among `of` that happen independently with a probability of `rate`."""
    return sum(math.comb(of, k) * rate**k * (1.0 - rate) ** (of - k) for k in range(count, of + 1))


def clearly_less(now: Array, before: Array) -> bool:
    """Whether a mean is lower than another one by CLEAR_FALL standard errors."""
    error = math.sqrt(now.var(ddof=1) / len(now) + before.var(ddof=1) / len(before))
    return bool(now.mean() < before.mean() - CLEAR_FALL * error)
