"""Cache of compiled programs on disk, so that a second start compiles nothing again.

It lies in the user's cache folder, with a subfolder for each version of JAX and each processor: a program that was
compiled for one does not run on another. JAX's own variables come first: `JAX_COMPILATION_CACHE_DIR` names another
folder, and `JAX_ENABLE_COMPILATION_CACHE=0` keeps nothing.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import time
from contextlib import suppress
from pathlib import Path

import jax

CPUINFO = Path("/proc/cpuinfo")
MAX_AGE_S = 90 * 24 * 3600.0
"""Seconds after which a program is deleted, if it was not compiled again."""


def enable() -> None:
    """Keep what is compiled from now on, unless the user has chosen a folder. Safe to call again.

    Nothing is kept if there is no writable folder.
    """
    if jax.config.values.get("jax_compilation_cache_dir") is not None:
        return
    try:
        folder = cache_home() / "capax" / f"jax-{jax.__version__}-{processor_id()}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # whoever writes there can run programs here
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        return
    if not os.access(folder, os.W_OK) or (hasattr(os, "getuid") and folder.stat().st_uid != os.getuid()):
        return
    delete_old(folder)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # a hundred small programs take seconds too
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def cache_home() -> Path:
    """The user's cache folder."""
    if sys.platform == "darwin":
        return Path("~/Library/Caches").expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", "~/AppData/Local")).expanduser()
    folder = os.environ.get("XDG_CACHE_HOME", "")
    return Path(folder) if os.path.isabs(folder) else Path("~/.cache").expanduser()


def processor_id() -> str:
    """A short digest that differs between kinds of processor."""
    lines = ""
    with suppress(OSError):
        text = CPUINFO.read_text(errors="replace")
        lines = "".join(
            sorted({line for line in text.splitlines() if line.startswith(("model name", "flags", "Features"))})
        )
    return hashlib.sha256(f"{platform.machine()} {platform.processor()} {lines}".encode()).hexdigest()[:12]


def delete_old(folder: Path) -> None:
    """Delete the programs that are older than `MAX_AGE_S`."""
    for path in folder.iterdir():
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > MAX_AGE_S:
                path.unlink()
