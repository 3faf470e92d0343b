"""Where are compiled programs kept, so that a second start need not compile them again?

In the user's cache folder, a folder for each JAX and processor: what was compiled for one does not run on every other.
`JAX_COMPILATION_CACHE_DIR` names another, and `JAX_ENABLE_COMPILATION_CACHE=0` keeps none; both are JAX's own.
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
LONGEST = 90 * 24 * 3600.0
"""Seconds after which a program that was not compiled again is thrown away."""


def remember() -> None:
    """Keep what is compiled from now on, unless the user has decided where; without a folder to write to, nothing is kept."""
    if jax.config.values.get("jax_compilation_cache_dir") is not None:
        return
    try:
        folder = home() / "capax" / f"jax-{jax.__version__}-{processor()}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # whoever writes there can run programs here
    except (OSError, RuntimeError):  # the latter where there is no home
        return
    if not os.access(folder, os.W_OK) or (hasattr(os, "getuid") and folder.stat().st_uid != os.getuid()):
        return
    forget_old(folder)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # a hundred small ones are seconds too
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def home() -> Path:
    """The user's cache folder."""
    if sys.platform == "darwin":
        return Path("~/Library/Caches").expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", "~/AppData/Local")).expanduser()
    given = os.environ.get("XDG_CACHE_HOME", "")
    return Path(given) if os.path.isabs(given) else Path("~/.cache").expanduser()


def processor() -> str:
    """What tells this processor from others, in a few letters."""
    lines = ""
    with suppress(OSError):
        text = CPUINFO.read_text(errors="replace")
        lines = "".join(
            sorted({line for line in text.splitlines() if line.startswith(("model name", "flags", "Features"))})
        )
    return hashlib.sha256(f"{platform.machine()} {platform.processor()} {lines}".encode()).hexdigest()[:12]


def forget_old(folder: Path) -> None:
    """Throw away what is old."""
    for path in folder.iterdir():
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > LONGEST:
                path.unlink()
