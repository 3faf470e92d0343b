"""Settings of CAP for continuous control: the ensemble's, the planner's, and its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from capax.core.checks import check_size
from capax.core.errors import InputError
from capax.core.settings import Above, Between, OneOf, Whole, settle
from capax.models.ensemble_settings import EnsembleSettings
from capax.planning.ccem import CEM


@dataclass(frozen=True)
class PetsSettings:
    """Settings of the agent."""

    ensemble: EnsembleSettings = field(default_factory=EnsembleSettings)
    cem: CEM = field(default_factory=CEM)
    start_steps: Annotated[int, Whole(2)] = 1000
    """Random steps before the first fit (paper, hyper-parameter table)."""
    buffer: Annotated[int, Whole(2)] = 1_000_000
    """Transitions that are kept (paper, hyper-parameter table)."""
    fit_every: Annotated[int, Whole(2)] = 1000
    """New steps between two fits (paper: 1000, an episode); one episode if that has fewer."""
    gamma: Annotated[float, Above(0.0, 0.999999)] = 0.99
    """Discount of a step, in discounted sums."""
    termination_cost: Annotated[float, Between(-1.0, 1e30)] = -1.0
    """Cost of each step that is missing after an imagined termination. Below 0: what the lived steps of the same plan cost,
    so that ending an episode saves nothing. 0: a termination is a goal."""

    undiscounted_limit: Annotated[str, OneOf("budget", "pace")] = "budget"
    """What an undiscounted limit is to a plan: a budget for the rest of the episode; or (pace: published code) a limit on the
    plan's mean cost, scaled to an episode, with candidates of one scale."""
    binary_costs: Annotated[str, OneOf("probability", "flag")] = "probability"
    """How a cost of 0 or 1 counts in a plan: σ(logit) + κu, or as 1 once logit + κu > 0 (flag: published code)."""

    def __post_init__(self) -> None:
        if not isinstance(self.ensemble, EnsembleSettings) or not isinstance(self.cem, CEM):
            raise InputError("ensemble and cem are settings of their own: give EnsembleSettings(...) and CEM(...).")
        settle(self)
        sizes = {**vars(self.ensemble), **vars(self.cem), **vars(self)}
        for name in ("batch", "start_steps", "fit_every"):
            if sizes[name] > self.buffer:
                raise InputError(f"buffer is {self.buffer}, less than {name}, {sizes[name]}: give at least that many.")
        if self.binary_costs == "flag" and self.undiscounted_limit == "budget":
            raise InputError(
                "binary_costs is flag, which no budget can be kept with: give undiscounted_limit=pace too."
            )
        check_size(sizes, "population", "particles", "horizon")
        check_size(sizes, "population", "particles", "hidden", *["members"] * self.ensemble.exact)
