"""Compares how many steps a second PPO learns from on HalfCheetahVelocity with Stable-Baselines3 (on a CPU).

python benchmarks/compare_sb3.py [--steps 20000] [--turns 3]

Needs `pip install stable-baselines3`, which capax itself does not use. Both have the paper's settings, and both start
afresh in every turn. Compiling and importing are done before. capax plays the three episodes of a batch side by side.
Stable-Baselines3 is tried with one environment and with four; the faster of the two counts.
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


def capax_rate(steps: int) -> float:
    """Steps a second of a run of capax, its files included."""
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        start = time.perf_counter()
        capax.train(TASK, method="ppo", steps=steps, out=folder)
        return steps / (time.perf_counter() - start)


def sb3_rate(steps: int, environments: int) -> float:
    """Steps a second of Stable-Baselines3."""
    env = make_vec_env(lambda: gym.make(TASK), environments)
    sizes = dict(n_steps=2048 // environments, batch_size=64, n_epochs=10, learning_rate=3e-4)
    model = PPO("MlpPolicy", env, device="cpu", **sizes)
    start = time.perf_counter()
    model.learn(steps)
    return model.num_timesteps / (time.perf_counter() - start)


def main() -> None:
    from record import save

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    capax_rate(4000)
    sb3_rate(2048, 1)
    ratios, rows = [], []
    for _ in range(options.turns):
        own, one, four = capax_rate(options.steps), sb3_rate(options.steps, 1), sb3_rate(options.steps, 4)
        ratios.append(own / max(one, four))
        rates = f"capax {own:7.0f} steps/s   Stable-Baselines3 {one:7.0f} (one environment), {four:7.0f} (four)"
        print(f"{rates}   ratio {ratios[-1]:.2f}", flush=True)
        steps = {"capax, steps/s": own, "Stable-Baselines3, one environment": one, "four environments": four}
        rows.append({"turn": len(ratios), **steps, "ratio": ratios[-1]})
    print(f"median ratio: {statistics.median(ratios):.2f}")
    save("compare-sb3", rows)


if __name__ == "__main__":
    main()
