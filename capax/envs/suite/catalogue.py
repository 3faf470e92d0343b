"""List of the suite's tasks: each with its limit, what is hard about it, and whether capax was developed on it."""

from __future__ import annotations

from typing import NamedTuple

import gymnasium as gym

PREFIX = "capax-suite/"


class SuiteTask(NamedTuple):
    """A task of the suite."""

    entry: str
    """Module and class, below `capax.envs.suite`."""
    limit: float
    """Cost that an episode may have: undiscounted, summed over the episode."""
    steps: int
    """Steps of an episode."""
    traits: str
    """What is hard about it."""
    held_out: bool = False
    """The task took no part in the development of the method."""
    feasible: bool = True
    """Some controller keeps the limit. Where none can, a run must warn."""
    termination_cost: float | None = None
    """0 where a termination is the goal: it then costs nothing."""

    @property
    def id(self) -> str:
        """The Gymnasium id."""
        return f"{PREFIX}{self.name}-v0"

    @property
    def name(self) -> str:
        """The name of its class."""
        return self.entry.partition(":")[2]


SUITE = (
    SuiteTask("tipping_vehicle:TippingVehicle", 5.0, 120, "unstable, tipping over ends it; cost of states, 0 or 1"),
    SuiteTask("energy_arm:EnergyArm", 3.0, 80, "cost of actions, best spent early; a goal to reach and hold"),
    SuiteTask("car_following:CarFollowing", 0.0, 100, "cost 0 or 1 with the limit 0; noise in the dynamics"),
    SuiteTask("point_hazards:PointHazards", 5.0, 100, "hazards on the way to goals; cost of states, 0 or 1"),
    SuiteTask("double_integrator:DoubleIntegrator", 8.0, 100, "cost of actions, |u|; a goal to reach and hold"),
    SuiteTask("docking:Docking", 7.0, 100, "the goal ends the episode; cost of actions", termination_cost=0.0),
    SuiteTask("coupled_tanks:CoupledTanks", 1.0, 120, "rare cost of states; noise in the dynamics"),
    SuiteTask("storage:Storage", 6.0, 96, "cost of actions, best spent late"),
    SuiteTask("balancing_cart:BalancingCart", 5.0, 150, "unstable, a fall ends it; cost 0 or 1", held_out=True),
    SuiteTask("batch_oven:BatchOven", 4.0, 120, "cost of states, six steps late", held_out=True),
    SuiteTask("milling_tool:MillingTool", 10.0, 120, "rare and large cost: 10 at once, once", held_out=True),
    SuiteTask("gusty_ferry:GustyFerry", 20.0, 120, "noise in the dynamics and in the cost of actions", held_out=True),
    SuiteTask("radiation_exit:RadiationExit", 7.0, 120, "costs from the first step, until it leaves", held_out=True),
    SuiteTask("muscle_arm:MuscleArm", 12.0, 100, "6 actions for 2 joints, 5 observed numbers of noise", held_out=True),
    SuiteTask("pressure_reactor:PressureReactor", 0.03, 100, "scales from 1e-4 to 1e5; cost of 1e-3", held_out=True),
    SuiteTask("lane_keeping:LaneKeeping", 0.0, 120, "cost 0 or 1 with the limit 0, along the whole way", held_out=True),
    SuiteTask("storm_basin:StormBasin", 1.0, 100, "no controller keeps the limit", held_out=True, feasible=False),
)


def register() -> None:
    """Register every task with Gymnasium."""
    for task in SUITE:
        gym.register(
            id=task.id,
            entry_point=f"capax.envs.suite.{task.entry}",
            max_episode_steps=task.steps,
            kwargs={"cost_limit": task.limit, "discounted": False},
        )
