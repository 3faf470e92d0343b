"""Rebuilds every figure of README and docs from committed files.

python -m benchmarks.figures              tables, numbers, pictures whose data changed, digests
python -m benchmarks.figures --pictures   all pictures too
python -m benchmarks.figures --check      only says what is out of date; the exit code is 1 if anything is
"""

from __future__ import annotations

import sys

from benchmarks.figures import pages


def main(words: list[str]) -> None:
    if set(words) - {"--check", "--pictures"}:
        sys.exit((__doc__ or "").strip())
    if "--check" in words:
        stale = pages.outdated()
        print("\n".join(stale) or "everything is up to date")
        sys.exit(bool(stale))
    changed = pages.write("--pictures" in words)
    print("\n".join(changed) or "nothing has changed")


if __name__ == "__main__":
    main(sys.argv[1:])
