"""A table of named entries that users can extend. A misspelt name is refused with the nearest ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from capax.core.checks import nearest, short_repr
from capax.core.errors import InputError

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """Entries by name, in the order in which they were added."""

    def __init__(self, what: str, entries: Mapping[str, T]) -> None:
        """`what` names an entry in messages, as in "method"."""
        self._what, self._entries, self._built_in = what, dict(entries), frozenset(entries)

    def __getitem__(self, name: str) -> T:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, name: str, entry: T) -> None:
        """Add an entry, or replace one that was added before. Built-in entries cannot be replaced."""
        if not isinstance(name, str) or not name or not name.replace("-", "_").isidentifier():
            raise InputError(f"the {self._what} is called {short_repr(name)}: give a name of letters, digits, - and _.")
        if name in self._built_in:
            raise InputError(f"there is already a {self._what} {name}: choose another name.")
        self._entries[name] = entry

    def find(self, name: object, among: Mapping[str, object] | None = None) -> T:
        """The entry of a name that a user chose; `among` narrows the choice."""
        choices = self._entries if among is None else among
        if isinstance(name, str) and name in choices:
            return self._entries[name]
        near = nearest(name, choices) if isinstance(name, str) else []
        hint = f"did you mean {' or '.join(near)}?" if near else f"choose {', '.join(choices)}."
        raise InputError(f"there is no {self._what} {short_repr(name)}: {hint}")
