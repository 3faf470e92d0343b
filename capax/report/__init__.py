"""Tables and pictures of results, made from saved files alone.

The public function `capax.report` has the name of this room. Once a module of the room is imported, Python puts the room where
the function was, so the room can be called like the function.
"""

import sys
from types import ModuleType
from typing import Any


class _CallableRoom(ModuleType):
    """The room, which `capax.report(...)` calls."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from capax.report.runs import report

        return report(*arguments, **options)


sys.modules[__name__].__class__ = _CallableRoom
