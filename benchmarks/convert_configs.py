"""Adds to the `config.json` of committed runs the fields that are new, with the values that those runs had.

    python benchmarks/convert_configs.py $(git ls-files 'results/**/config.json') && make figures

Only fields with a default are added: it says what capax did before the field was there. Rows are not touched. `make figures` then
writes the digests of the configurations anew.
"""

from __future__ import annotations

import json
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from capax.runs.config import RunConfig


def with_new_fields(table: dict[str, Any]) -> dict[str, Any]:
    """The table with the fields that it lacks, in the order of `RunConfig`."""
    defaults = {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(RunConfig)
    }
    missing = {name: value for name, value in defaults.items() if name not in table and value is not MISSING}
    complete = {**table, **missing}
    return {"format": table["format"]} | {name: complete[name] for name in defaults if name in complete}


def main(paths: list[str]) -> None:
    for path in map(Path, paths):
        table = with_new_fields(json.loads(path.read_text()))
        text = RunConfig.from_json(json.dumps(table), str(path)).to_json()
        if text != path.read_text():
            path.write_text(text)
            print(f"converted {path}")


if __name__ == "__main__":
    main(sys.argv[1:])
