"""How many steps a second does PPO learn from on HalfCheetahVelocity, beside Stable-Baselines3's in one run? (on a CPU)

python benchmarks/beside_sb3.py [--steps 20000] [--turns 3]

Needs `pip install stable-baselines3`, which capax itself never does. Both have the paper's settings and are started anew in every
turn; compiling and importing are done before. capax plays the three episodes of a batch side by side; Stable-Baselines3 is
tried with one environment and with four, and its faster one counts.
"""

from __future__ import annotations

import argparse
import io
import statistics
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout

import gymnasium as gym
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

import capax

TASK = "capax/HalfCheetahVelocity-v0"


def ours(steps: int) -> float:
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        began = time.perf_counter()
        capax.train(TASK, method="ppo", steps=steps, out=folder)
        return steps / (time.perf_counter() - began)


def theirs(steps: int, environments: int) -> float:
    env = make_vec_env(lambda: gym.make(TASK), environments)
    sizes = dict(n_steps=2048 // environments, batch_size=64, n_epochs=10, learning_rate=3e-4)
    model = PPO("MlpPolicy", env, device="cpu", **sizes)
    began = time.perf_counter()
    model.learn(steps)
    return model.num_timesteps / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    ours(4000)
    theirs(2048, 1)
    ratios = []
    for _ in range(given.turns):
        one, alone, four = ours(given.steps), theirs(given.steps, 1), theirs(given.steps, 4)
        ratios.append(one / max(alone, four))
        said = f"capax {one:7.0f} steps/s   Stable-Baselines3 {alone:7.0f} (one environment), {four:7.0f} (four)"
        print(f"{said}   ratio {ratios[-1]:.2f}", flush=True)
    print(f"ratio in the median: {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
