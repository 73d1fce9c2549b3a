"""A table of named things, from which configuration and the command line choose."""

from collections.abc import Callable
from typing import Generic, TypeVar

from eldr.errors import ConfigError

T = TypeVar("T")


class Registry(Generic[T]):
    """Names to entries of one kind, in the order of registration.

    kind: what an entry is called in messages, for example "policy".
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorate an entry to add it under `name`; raises ConfigError when the name is taken."""

        def add(entry: T) -> T:
            if name in self._entries:
                raise ConfigError(f"{self._kind} {name!r} is registered twice; choose another name")
            self._entries[name] = entry
            return entry

        return add

    def __getitem__(self, name: str) -> T:
        """Return the entry; raises ConfigError, naming those that exist."""
        if name not in self._entries:
            raise ConfigError(f"unknown {self._kind} {name!r}; choose from {', '.join(self._entries)}")
        return self._entries[name]

    def names(self) -> tuple[str, ...]:
        return tuple(self._entries)
