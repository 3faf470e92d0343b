"""capax: model-based safe reinforcement learning with a conservative and adaptive penalty."""

from importlib.metadata import PackageNotFoundError, version

import capax.envs as _envs  # noqa: F401  registers the environments

try:
    __version__ = version("capax")
except PackageNotFoundError:  # used from a folder that is not installed
    __version__ = "0.0.0"
