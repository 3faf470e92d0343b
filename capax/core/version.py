"""The version of capax, and the commit of the source that runs."""

from __future__ import annotations

import os
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

try:
    __version__ = version("capax")
except PackageNotFoundError:  # used from a folder that is not installed
    __version__ = "0.0.0"


def commit() -> str | None:
    """The commit of the source if it is a git checkout; the variable `CAPAX_COMMIT` names it for a copy."""
    if "CAPAX_COMMIT" in os.environ:
        return os.environ["CAPAX_COMMIT"] or None
    try:
        here = Path(__file__).parent
        tracked = ["git", "-C", str(here), "ls-files", "--error-unmatch", __file__]
        if subprocess.run(tracked, capture_output=True, timeout=10).returncode:
            return None  # capax is installed inside another repository
        head = ["git", "-C", str(here), "rev-parse", "HEAD"]
        return subprocess.run(head, capture_output=True, text=True, timeout=10).stdout.strip() or None
    except (OSError, subprocess.TimeoutExpired):
        return None
