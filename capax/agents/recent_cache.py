"""A cache of the last results of a function: parameters are prepared for acting once per fit, not in every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class RecentCache:
    """Calls a function and keeps its last two results: those for the parameters of the last two fits."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._entries: list[tuple[tuple[Any, ...], Any]] = []

    def __call__(self, *params: Any) -> Any:
        """The result for these very objects."""
        for arguments, result in self._entries:
            if all(one is other for one, other in zip(arguments, params, strict=True)):
                return result
        result = self._function(*params)
        self._entries = [*self._entries[-1:], (params, result)]
        return result
