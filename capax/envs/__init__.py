"""Gymnasium tasks that capax registers."""

import gymnasium as gym

gym.register(id="capax/Gridworld-v0", entry_point="capax.envs.gridworld:Gridworld", max_episode_steps=500)
