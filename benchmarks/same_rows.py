"""Compares the rows of two versions of capax, to the bit, in short runs of every agent, rule and kind of task. The
runs whose names begin with `published` stand for the paper's rows: they have their tasks, methods and preset.

    python benchmarks/same_rows.py write rows-before.json      # in one checkout
    python benchmarks/same_rows.py compare rows-before.json    # in the other, on the same machine

Seeds are fixed. On one CPU, two versions that compute the same numbers write the same rows. `time` is omitted. Keys that
only one version writes are listed as notes.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

import capax
from capax.paper.rows import CARRACING, HALFCHEETAH, PRESET

PAPER_TASKS = {"vector": HALFCHEETAH, "image": CARRACING}
"""The tasks of the paper's rows, which are made with `PRESET`."""
SMALL: dict[str, Any] = dict(
    members=2, hidden=16, layers=2, particles=4, batch=32, least_updates=20, most_updates=20, horizon=5, iterations=2,
    population=20, elites=4, start_steps=40, fit_every=20,
)  # fmt: skip
IMAGES: dict[str, Any] = dict(
    deter=16, stoch=8, hidden=16, depth=4, members=3, batch=4, chunk=6, updates=4, horizon=5, iterations=2, population=20,
    elites=4, start_steps=60,
)  # fmt: skip
GRADIENT: dict[str, Any] = dict(hidden=16, batch=100, minibatch=20, epochs=3)
PUBLISHED = {name: value for name, value in SMALL.items() if name not in ("least_updates", "most_updates")}
"""Small sizes with which a fit is as long as the preset `published` has it."""


class Tipping(gym.Env[Any, Any]):
    """An unstable point that ends its episode when it tips, with a cost of 0 or 1."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Box(-2.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.x = self.np_random.normal(0.0, 0.1, 2)
        return self.x.copy(), {}

    def step(self, action: Any) -> Any:
        push = float(action[0])
        self.x = self.x + 0.1 * np.array([self.x[1], 2.0 * self.x[0] + push])
        lean = abs(self.x[0])
        return self.x.copy(), 1.0 + 0.1 * push, bool(lean > 1.0), False, {"cost": float(lean > 0.3)}


def tipping() -> Any:
    """The unstable point with episodes of at most 30 steps."""
    return TimeLimit(Tipping(), 30)


def squared_action(obs: Any, action: Any, next_obs: Any, info: Any) -> float:
    """A cost function."""
    return float(np.square(action).sum())


def logged_data() -> dict[str, Any]:
    """Logged transitions."""
    rng = np.random.default_rng(5)
    obs = rng.normal(size=(80, 1))
    action = rng.uniform(-1.0, 1.0, (80, 1))
    next_obs = obs + 0.1 * action
    return dict(obs=obs, action=action, reward=next_obs[:, 0], cost=next_obs[:, 0] ** 2, next_obs=next_obs)


def cases() -> dict[str, Callable[[Path], Any]]:
    """The runs, by name. Each is a function of its folder."""

    def whole(env: Any, steps: int, settings: Any, **options: Any) -> Callable[[Path], Any]:
        options = {"preset": "fast", **options}
        return lambda out: capax.train(env, steps=steps, out=out, seed=3, settings=settings, **options)

    def resumed(env: Any, steps: int, settings: Any, **options: Any) -> Callable[[Path], Any]:
        def train_twice(out: Path) -> Any:
            capax.train(env, steps=steps // 2, out=out, seed=3, preset="fast", settings=settings, **options)
            again = {"env": env} if not isinstance(env, str) else {}
            return capax.resume(out, steps=steps, **again)

        return train_twice

    point, dot = "capax/Integrator-v0", "capax/Dot-v0"
    finite = ("cap", "pi"), ("cap", 0.1), ("ccem", None), ("cem", None), ("random", None), ("calibrated", None)
    cases: dict[str, Callable[[Path], Any]] = {}
    for rule in ("conformal", "adam", "pi", 0.1):
        cases[f"vector cap {rule}"] = whole(point, 250, SMALL, kappa=rule)
        cases[f"binary cap {rule}"] = whole(tipping, 200, SMALL, kappa=rule, cost_limit=3.0)
        cases[f"image cap {rule}"] = whole(dot, 250, IMAGES, kappa=rule)
    for method in ("ccem", "cem", "random"):
        cases[f"vector {method}"] = whole(point, 200, SMALL, method=method)
        cases[f"image {method}"] = whole(dot, 200, IMAGES, method=method)
    for method in ("ppo", "ppo-lag", "focops"):
        cases[f"vector {method}"] = whole(point, 500, GRADIENT, method=method)
        cases[f"binary {method}"] = whole(tipping, 300, GRADIENT, method=method, cost_limit=3.0)
        cases[f"image {method}"] = whole(dot, 300, GRADIENT, method=method)
    for method, rule in finite:
        cases[f"finite {method} {rule}"] = lambda out, method=method, rule=rule: capax.train(
            "capax/Gridworld-v0", steps=2000, out=out, seed=3, method=method, kappa=rule
        )
    cases["vector cap discounted"] = whole(point, 250, SMALL, discounted=True, cost_limit=10.0)
    cases["vector cap own cost"] = whole(point, 200, SMALL, cost=squared_action, cost_limit=20.0)
    cases["vector cap initial data"] = whole(point, 150, SMALL, initial_data=logged_data())
    cases["vector cap initial policy"] = whole(point, 150, SMALL, initial_policy=lambda obs: np.array([0.5]))
    cases["vector cap fast"] = whole("capax/PendulumSpeed-v0", 800, {"least_updates": 50, "most_updates": 50})
    cases["vector cap resumed"] = resumed(point, 250, SMALL)
    cases["image cap resumed"] = resumed(dot, 250, IMAGES)
    cases["vector ppo-lag resumed"] = resumed(point, 500, GRADIENT, method="ppo-lag")
    cases["binary cap resumed"] = resumed(tipping, 200, SMALL, cost_limit=3.0)
    cases["robot cap"] = whole("capax/HopperVelocity-v0", 150, SMALL)
    cases["racing cap"] = whole("capax/CarRacingSkid-v0", 200, {**IMAGES, "start_steps": 100}, episode_steps=30)
    for (kind, task), sizes in zip(PAPER_TASKS.items(), (PUBLISHED, IMAGES), strict=True):
        for method, rule in (("cap", "adam"), ("cap", 1.0), ("cem", None), ("random", None)):
            options = {"method": method, "episode_steps": 40, "preset": PRESET}
            options |= {} if rule is None else {"kappa": rule}
            cases[f"{PRESET} {kind} {method} {rule}"] = whole(task, 160, sizes, **options)
        for method in ("ppo", "ppo-lag", "focops"):
            cases[f"{PRESET} {kind} {method}"] = whole(
                task, 200, GRADIENT, method=method, episode_steps=40, preset=PRESET
            )
    cases["lanes"] = lambda out: capax.train(
        point, steps=150, out=out, seed=3, preset="fast", settings=SMALL, lanes=[{"kappa": 0.1}, {"seed": 4}]
    )
    return cases


def record() -> dict[str, Any]:
    """The rows of each run, and for some runs those of two fresh episodes of its policy."""
    recorded: dict[str, Any] = {}
    warnings.simplefilter("ignore")
    for name, train in cases().items():
        with tempfile.TemporaryDirectory() as folder:
            result = train(Path(folder) / "run")
            runs = result if isinstance(result, list) else [result]
            rows = [{k: v for k, v in row.items() if k != "time"} for run in runs for row in run.episodes]
            if name.startswith(("vector cap conformal", "image cap conformal", "vector ppo ", "vector ppo-lag")):
                rows += capax.evaluate(runs[0], episodes=2).rows
        recorded[name] = json.loads(json.dumps(rows))
        print(f"{name}: {len(rows)} rows", file=sys.stderr, flush=True)
    return recorded


def differences(before: dict[str, Any], after: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Where the same run has other rows, and notes on the keys that only one version writes."""
    changed, notes = [], set()
    for name in sorted({*before, *after}):
        first, second = before.get(name), after.get(name)
        if first is None or second is None or len(first) != len(second):
            changed.append(f"{name}: {first and len(first)} rows, then {second and len(second)}")
            continue
        for number, (x, y) in enumerate(zip(first, second, strict=True)):
            notes |= {f"note: only one writes {key}" for key in x.keys() ^ y.keys()}
            shared = sorted(key for key in x.keys() & y.keys() if x[key] != y[key])
            changed += [f"{name}, row {number}, {key}: {x[key]!r}, then {y[key]!r}" for key in shared]
    return changed, sorted(notes)


def main(command: str, path: Path) -> None:
    if command == "write":
        path.write_text(json.dumps(record()))
        return
    changed, notes = differences(json.loads(path.read_text()), record())
    print("\n".join([*notes, *(changed or ["no row differs"])]))
    sys.exit(bool(changed))


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("write", "compare"):
        sys.exit("\n".join((__doc__ or "").splitlines()[2:4]))
    main(sys.argv[1], Path(sys.argv[2]))
