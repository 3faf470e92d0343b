"""capax: model-based safe reinforcement learning with a conservative and adaptive penalty."""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import capax.envs as _envs  # noqa: F401  registers the environments

if TYPE_CHECKING:
    from capax.evaluate import evaluate
    from capax.policy import load
    from capax.train import train

try:
    __version__ = version("capax")
except PackageNotFoundError:  # used from a folder that is not installed
    __version__ = "0.0.0"

__all__ = ["evaluate", "load", "train"]


def __getattr__(name: str) -> Any:
    """`train`, `load` and `evaluate` on first use: JAX takes a second to import."""
    if name == "load":
        from capax.policy import load

        return load
    if name in ("train", "evaluate"):
        from importlib import import_module

        function = getattr(import_module(f"capax.{name}"), name)
        globals()[name] = function  # the module of the same name was put there by its import
        return function
    raise AttributeError(f"module 'capax' has no attribute {name!r}")
