"""capax: model-based safe reinforcement learning with a conservative and adaptive penalty."""

import os
import sys

try:
    if (
        sys.argv[:1] == ["-m"]  # `python -m MODULE`, while Python looks for the module
        and sys.orig_argv[-len(sys.argv)].removeprefix("-m").partition(".")[0] == "capax"
        and sys.path[0] == os.getcwd()
    ):
        # Python has put the current folder first, where a file may have the name of any library
        _here = sys.path.pop(0)
        if not any(finder.find_spec("capax", None) for finder in sys.meta_path):
            sys.path.append(_here)  # capax itself is there, and not installed
except FileNotFoundError:
    pass

from importlib import import_module
from typing import TYPE_CHECKING, Any

import capax.envs as _envs  # noqa: F401  registers the environments
from capax.core.version import __version__

if TYPE_CHECKING:
    from capax.core.contracts import Agent, Logger, PlanningRule, Rule
    from capax.core.types import Episode, Feedback, Spec
    from capax.reporting.runs import report
    from capax.runs.run import Run
    from capax.training.evaluate import Evaluation, evaluate
    from capax.training.methods import Ingredients, Method, register
    from capax.training.open_run import open_run
    from capax.training.policy import Policy, load
    from capax.training.presets import Preset
    from capax.training.train import resume, train

_HOMES = {
    "train": "capax.training.train",
    "resume": "capax.training.train",
    "load": "capax.training.policy",
    "evaluate": "capax.training.evaluate",
    "open_run": "capax.training.open_run",
    "report": "capax.reporting.runs",
    "register": "capax.training.methods",
    "Method": "capax.training.methods",
    "Ingredients": "capax.training.methods",
    "Preset": "capax.training.presets",
    "Agent": "capax.core.contracts",
    "Rule": "capax.core.contracts",
    "PlanningRule": "capax.core.contracts",
    "Logger": "capax.core.contracts",
    "Feedback": "capax.core.types",
    "Episode": "capax.core.types",
    "Spec": "capax.core.types",
    "Run": "capax.runs.run",
    "Policy": "capax.training.policy",
    "Evaluation": "capax.training.evaluate",
}
"""The module that defines each public name. It is imported on first use: JAX takes a second to import."""

__all__ = [
    "Agent",
    "Episode",
    "Evaluation",
    "Feedback",
    "Ingredients",
    "Logger",
    "Method",
    "PlanningRule",
    "Policy",
    "Preset",
    "Rule",
    "Run",
    "Spec",
    "__version__",
    "evaluate",
    "load",
    "open_run",
    "register",
    "report",
    "resume",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'capax' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
