"""The contract of a source of workers."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from eldr.errors import EldrError


class DiscoveryError(EldrError):
    """A source cannot tell now which workers there should be."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A worker that should be there. Its role and URL say who it is; the name is a wish.

    tls_name: that its certificate must have, where that is not the URL's host.
    """

    role: str
    url: str
    name: str | None = None
    tls_name: str | None = None


class Source(Protocol):
    """Tells which workers there should be.

    name: of the source in logs and metrics, unique.
    """

    name: str

    def sets(self) -> AsyncIterator[tuple[Wanted, ...]]:
        """All workers that this source wants, again whenever that changes; each set replaces the one before.

        Raises EldrError where it cannot tell. Whoever listens keeps the last set, and asks for a new iterator
        after a pause, which begins with the set of that moment or with the next change.
        """
        ...
