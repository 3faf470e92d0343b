"""capax: model-based safe reinforcement learning with a conservative and adaptive penalty."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import capax.envs as _envs  # noqa: F401  registers the environments

if TYPE_CHECKING:
    from capax.evaluation import evaluate
    from capax.policy import load
    from capax.training import resume, train

try:
    __version__ = version("capax")
except PackageNotFoundError:  # used from a folder that is not installed
    __version__ = "0.0.0"

__all__ = ["evaluate", "load", "resume", "train"]


_HOMES = {"train": "capax.training", "resume": "capax.training", "evaluate": "capax.evaluation", "load": "capax.policy"}


def __getattr__(name: str) -> Any:
    """`train`, `resume`, `load` and `evaluate` on first use: JAX takes a second to import."""
    if name not in _HOMES:
        raise AttributeError(f"module 'capax' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
