"""Reads the committed results: runs, rows of the gridworld experiment, and measurements; packs and unpacks runs.

python -m benchmarks.figures.stored pack RUN results/halfcheetah/conformal-0      # adds a finished run
python -m benchmarks.figures.stored unpack results/halfcheetah runs/halfcheetah   # for capax report, capax.open_run
python -m benchmarks.figures.stored digest                                        # results/SHA256SUMS anew
"""

from __future__ import annotations

import hashlib
import json
import lzma
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
PACKED, CONFIG, DIGESTS = "episodes.jsonl.xz", "config.json", "SHA256SUMS"
PRESET = 9 | lzma.PRESET_EXTREME
LAST = 10
"""Episodes at the end of a run that the tables average, as the paper does."""


class StoredRun(NamedTuple):
    """A committed run."""

    name: str
    config: dict[str, Any]
    rows: tuple[dict[str, Any], ...]

    @property
    def planned(self) -> list[dict[str, Any]]:
        """The rows of episodes that the agent answers for."""
        return [row for row in self.rows if row["phase"] != "random"]

    @property
    def random(self) -> list[dict[str, Any]]:
        """The rows of the random start."""
        return [row for row in self.rows if row["phase"] == "random"]

    def until(self, steps: int) -> StoredRun:
        """The run as it stood after the episode in which it reached so many steps."""
        return self._replace(rows=tuple(row for row in self.rows if row["steps"] - row["length"] < steps))


@cache
def run(name: str) -> StoredRun:
    """The run in `results/NAME`."""
    folder = RESULTS / name
    text = lzma.decompress((folder / PACKED).read_bytes()).decode()
    return StoredRun(name, read_json(f"{name}/{CONFIG}"), tuple(json.loads(line) for line in text.splitlines()))


@cache
def group(name: str) -> tuple[StoredRun, ...]:
    """The runs `results/NAME-SEED`, by seed."""
    parent = (RESULTS / name).parent
    start = f"{Path(name).name}-"
    seeds = [path.name.removeprefix(start) for path in parent.iterdir() if path.name.startswith(start)]
    runs = tuple(run(f"{name}-{seed}") for seed in sorted((s for s in seeds if s.isdigit()), key=int))
    if not runs:
        raise ValueError(f"results/ holds no run {name}-SEED")
    return runs


@cache
def read_json(name: str) -> Any:
    """A JSON file below `results/`."""
    return json.loads((RESULTS / name).read_text())


@cache
def read_rows(name: str) -> list[dict[str, Any]]:
    """Compressed JSON lines below `results/`."""
    return [json.loads(line) for line in lzma.decompress((RESULTS / name).read_bytes()).decode().splitlines()]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write compressed JSON lines."""
    text = "".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows)
    path.write_bytes(lzma.compress(text.encode(), preset=PRESET))


def data_files() -> Iterator[Path]:
    """Every committed file of results but pages and the digests themselves."""
    return (
        path for path in sorted(RESULTS.rglob("*")) if path.is_file() and path.suffix != ".md" and path.name != DIGESTS
    )


def digests() -> str:
    """The SHA-256 sum of every data file, as `sha256sum` writes and checks them."""
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(RESULTS).as_posix()}\n"
        for path in data_files()
    )


def pack(source: Path, target: Path) -> None:
    """Copy a run folder's compressed rows and its configuration, which the gridworld experiment does not have."""
    target.mkdir(parents=True, exist_ok=True)
    if (source / CONFIG).exists():
        shutil.copyfile(source / CONFIG, target / CONFIG)
    (target / PACKED).write_bytes(lzma.compress((source / "episodes.jsonl").read_bytes(), preset=PRESET))


def unpack(source: Path, target: Path) -> None:
    """Write plain run folders below `target` for all packed ones below `source`."""
    for packed in sorted(source.rglob(PACKED)):
        folder = target / packed.parent.relative_to(source)
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(packed.parent / CONFIG, folder / CONFIG)
        (folder / "episodes.jsonl").write_bytes(lzma.decompress(packed.read_bytes()))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["pack", source, target]:
            pack(Path(source), Path(target))
            (RESULTS / DIGESTS).write_text(digests())
        case ["unpack", source, target]:
            unpack(Path(source), Path(target))
        case ["digest"]:
            (RESULTS / DIGESTS).write_text(digests())
        case _:
            sys.exit((__doc__ or "").partition("\n\n")[2].rstrip())
