"""Standard output that holds JSON and nothing else, whatever environments and libraries print."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from capax.runs.folder import to_json
from capax.runtime.streams import open_missing, standard_error

ends_process = False
"""Whether the process ends with the command. Then nothing that is printed after the JSON reaches standard output either."""


@contextmanager
def only_json(wanted: bool) -> Iterator[Callable[[Any], None]]:
    """A context whose value prints one object as JSON. If `wanted`, all else that is printed goes to standard error.

    So do the prints of libraries in C and of programs that an environment starts.
    """
    if not wanted:
        yield lambda value: None
        return
    values: list[Any] = []
    open_missing()
    _flush(sys.stdout)
    output, saved = sys.stdout, os.dup(1)
    os.dup2(2, 1)
    sys.stdout = standard_error()
    try:
        yield values.append
        text = "".join(map(to_json, values))
    finally:
        _flush(output)  # what was printed by those who keep their own reference to it
        if not ends_process:
            sys.stdout = output
            os.dup2(saved, 1)
            os.close(saved)
    if not ends_process:
        output.write(text)
        return
    with open(saved, "w") as file:
        file.write(text)


def _flush(stream: Any) -> None:
    with suppress(OSError, ValueError, AttributeError):
        stream.flush()
