"""Files of somebody else's that lie where a user works: modules, plugins, and what a run folder names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

RECORD = "import builtins\nwith builtins.open({path!r}, 'a') as file:\n    file.write({name!r} + '\\n')\n"
ENVIRONMENT = """
import gymnasium as gym
import numpy as np

class Line(gym.Env):
    observation_space = gym.spaces.Box(-9.0, 9.0, (1,))
    action_space = gym.spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, cost_limit=9.0, push=1.0):
        self.push = push

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), self.push, False, False, {"cost": 1.0}

if "Line-v0" not in gym.registry:
    gym.register("Line-v0", Line, max_episode_steps=4, kwargs={"cost_limit": 9.0})

def half(obs, action, next_obs, info):
    return 0.5
"""
"""A module that registers an environment, and has a cost function."""
LIBRARIES = (
    "numpy",
    "jax",
    "json",
    "typing",
    "ctypes",
    "multiprocessing",
    "gymnasium",
    "mujoco",
    "glfw",
    "rich",
    "concurrent",
)
COMMANDS = """
import os, sys
from capax.cli.main import main
for command in {commands!r}:
    if command[0] == "cd":
        os.chdir(command[1])
        continue
    try:
        main(command)
    except SystemExit as stop:
        print(f"exit {{stop.code}}", file=sys.stderr)
"""


def record(folder: Path, name: str) -> str:
    """Code that writes down that it was run."""
    return RECORD.format(path=str(folder / "ran"), name=name)


def ran(folder: Path) -> list[str]:
    """The names of what was run."""
    return (folder / "ran").read_text().split() if (folder / "ran").exists() else []


def plant_plugins(folder: Path, log: Path) -> None:
    """Plugins of JAX and Gymnasium that are found by who has this folder on the path."""
    (folder / "planted_plugin.py").write_text(record(log, "plugin") + "\ndef initialize(): pass\n")
    (folder / "jax_plugins" / "planted").mkdir(parents=True)
    (folder / "jax_plugins" / "planted" / "__init__.py").write_text(record(log, "jax_plugins"))
    info = folder / "planted_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: planted-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[jax_plugins]\nplanted = planted_plugin\n[gymnasium.envs]\n__root__ = planted_plugin:initialize\n"
    )


def plant_libraries(folder: Path, log: Path) -> None:
    """Modules with the names of libraries."""
    for name in LIBRARIES:
        (folder / f"{name}.py").write_text(record(log, name))


def change_config(run: Path, **values: Any) -> None:
    """Let a run's configuration say something else."""
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | values))


def python(folder: Path, *arguments: str, memory: Path) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder. It finds capax, and the modules of the folder as Python does for these arguments."""
    home = str(Path(__file__).parents[2])
    env = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    env |= {"PYTHONPATH": home, "CAPAX_TRUSTED": str(memory)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=env, capture_output=True, text=True, timeout=300
    )


def commands(folder: Path, *lines: str, memory: Path) -> str:
    """Run commands of capax, and `cd`, one after the other in one process, with the path that the script `capax` has. Returns
    what they print on standard error."""
    code = COMMANDS.format(commands=[line.split() for line in lines])
    return python(folder, "-P", "-c", code, memory=memory).stderr
