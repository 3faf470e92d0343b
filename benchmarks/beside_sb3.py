"""How many steps a second does PPO learn from on HalfCheetahVelocity, beside Stable-Baselines3's in one run? (on a CPU)

python benchmarks/beside_sb3.py [--steps 20000] [--turns 3]

Needs `pip install stable-baselines3`, which capax itself never does. Both have the paper's settings and one environment, and are
started anew in every turn; compiling and importing are done before.
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

import capax

TASK = "capax/HalfCheetahVelocity-v0"


def ours(steps: int) -> float:
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        began = time.perf_counter()
        capax.train(TASK, method="ppo", steps=steps, out=folder)
        return steps / (time.perf_counter() - began)


def theirs(steps: int) -> float:
    model = PPO("MlpPolicy", gym.make(TASK), n_steps=2048, batch_size=64, n_epochs=10, learning_rate=3e-4, device="cpu")
    began = time.perf_counter()
    model.learn(steps)
    return model.num_timesteps / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    ours(4000)
    theirs(2048)
    ratios = []
    for _ in range(given.turns):
        one, other = ours(given.steps), theirs(given.steps)
        ratios.append(one / other)
        print(
            f"capax {one:7.0f} steps/s   Stable-Baselines3 {other:7.0f} steps/s   ratio {one / other:.2f}", flush=True
        )
    print(f"ratio in the median: {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
