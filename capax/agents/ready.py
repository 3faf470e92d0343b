"""How are parameters made ready for acting once per fit, and not in every step?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Ready:
    """Remembers what was made of the last two."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self._known: list[tuple[tuple[Any, ...], Any]] = []

    def __call__(self, *params: Any) -> Any:
        for known, made in self._known:
            if all(one is other for one, other in zip(known, params, strict=True)):
                return made
        made = self._make(*params)
        self._known = [*self._known[-1:], (params, made)]  # of the present fit and of the one before
        return made
