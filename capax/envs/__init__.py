"""Gymnasium tasks that capax registers.

The cost limit and its convention are arguments of the environment, so that Gymnasium's spec holds them. Any environment
that is registered with `kwargs={"cost_limit": ..., "discounted": ...}` is a task (see `capax.envs.catalogue`).
"""

import gymnasium as gym

from capax.envs.suite import catalogue as suite

gym.register(id="capax/Gridworld-v0", entry_point="capax.envs.gridworld:Gridworld", max_episode_steps=500)
gym.register(
    id="capax/Integrator-v0",
    entry_point="capax.envs.integrator:Integrator",
    max_episode_steps=50,
    kwargs={"cost_limit": 25.0, "discounted": False},
)
gym.register(
    id="capax/PendulumSpeed-v0",
    entry_point="capax.envs.pendulum:PendulumSpeed",
    max_episode_steps=200,
    kwargs={"cost_limit": 800.0, "discounted": False},
)
gym.register(
    id="capax/Dot-v0",
    entry_point="capax.envs.dot:Dot",
    max_episode_steps=50,
    kwargs={"cost_limit": 0.0, "discounted": False, "violation_rate": 0.2},
)
gym.register(
    id="capax/CarRacingSkid-v0",
    entry_point="capax.envs.racing:CarRacingSkid",
    max_episode_steps=500,
    kwargs={
        "cost_limit": 0.0,
        "discounted": False,
        "action_repeat": 2,
        "violation_rate": 0.4,
        "random_actions": ((-1.0, 0.0, 0.0), (1.0, 1.0, 1.0)),  # the game's own range
    },
)

for _robot, _limit, _options in (
    ("HalfCheetah", 152.0, {}),
    ("Hopper", 82.748, {}),
    ("Walker2d", 81.886, {}),
    ("Swimmer", 24.516, {}),
    ("Ant", 103.115, {"include_cfrc_ext_in_observation": False}),
):
    gym.register(
        id=f"capax/{_robot}Velocity-v0",
        entry_point="capax.envs.velocity:Velocity",
        max_episode_steps=1000,
        kwargs={"robot": f"{_robot}-v5", "cost_limit": _limit, "discounted": True, **_options},
    )

suite.register()
