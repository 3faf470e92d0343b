"""Trains an agent in your own environment under a limit on its cost, evaluates it, and drives with it.

python examples/own_env.py [FOLDER]
"""

import sys

import gymnasium as gym
import numpy as np

import capax


class Cart(gym.Env):
    """Drive far on a hilly road in 100 steps. The cost is the noise, which grows with the square of the speed."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,))  # speed, slope, and the change of the slope
    action_space = gym.spaces.Box(-1.0, 2.0, (1,))  # brake with 1, push with 2

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.speed = self.np_random.uniform(0.0, 6.0), 0.0
        return self.observation(), {}

    def observation(self):
        return np.array([self.speed, np.sin(self.place), np.cos(self.place)])

    def step(self, action):
        self.speed += 0.2 * (action[0] - 0.2 * np.sin(self.place) - 0.5 * self.speed)
        self.place += 0.1 * self.speed
        return self.observation(), self.speed, False, False, {"cost": self.speed**2}


if __name__ == "__main__":
    out = sys.argv[1] if len(sys.argv) > 1 else "runs/cart"
    run = capax.train(Cart, cost_limit=100.0, episode_steps=100, steps=1500, out=out, force=True)
    print(run)
    result = capax.evaluate(run, env=Cart, episodes=3)
    print(f"return {result.mean_return:.0f}, cost {result.mean_cost:.0f} of 100, {result.violations} violations")
    cart, policy = Cart(), capax.load(run)
    obs, _ = cart.reset(seed=1)
    policy.reset()
    for _ in range(10):
        action = policy(obs)
        obs, *_ = cart.step(action)
        print(f"push {action[0]:5.2f}  speed {obs[0]:5.2f}  slope {obs[1]:5.2f}")
