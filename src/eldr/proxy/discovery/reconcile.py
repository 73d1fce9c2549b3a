"""Makes the workers of the router those that its sources want: adds what is new, drains what has gone."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from eldr.errors import ConfigError, EldrError
from eldr.metrics.prometheus import RouterMetrics
from eldr.proxy.discovery.source import Source, Wanted
from eldr.proxy.membership import Membership, Seen

log = logging.getLogger(__name__)

PAUSE_S = 2.0
"""Before a source that failed is asked again."""

Key = tuple[str, str]
"""Role and URL."""


class Reconciler:
    """Each source owns what it wants; what a person did by the admin API stays until the source changes."""

    def __init__(self, membership: Membership, metrics: RouterMetrics) -> None:
        self._membership, self._metrics = membership, metrics
        self._held: dict[str, set[Key]] = {}
        self._said: dict[str, str] = {}

    def hold(self, source: str, wanted: Iterable[Wanted]) -> None:
        """Note that these workers are there, and are the source's."""
        self._held[source] = {(one.role, one.url) for one in wanted}

    async def run(self, source: Source) -> None:
        """Follow a source for ever. While it fails, its workers stay as they are."""
        while True:
            try:
                async for wanted in source.sets():
                    await self.apply(source.name, wanted)
            except EldrError as error:
                self._failed(source.name, str(error))
            except Exception as error:  # a source must not die of an answer that nobody has thought of
                log.exception("%s: unexpected", source.name)
                self._failed(source.name, repr(error))
            await asyncio.sleep(PAUSE_S)

    async def apply(self, source: str, wanted: tuple[Wanted, ...]) -> None:
        """Add the source's new workers and drain those that it wants no more."""
        held = self._held.get(source, set())
        now = {(one.role, one.url): one for one in wanted}
        self._held[source] = set(now)
        joining = [one for key, one in now.items() if key not in held]
        self._leave(held - set(now), {one.name for one in joining})
        await asyncio.gather(*(self._join(source, one) for one in joining))
        self._metrics.discovery_updates.labels(source, "applied").inc()
        self._said.pop(source, None)

    def _leave(self, leaving: set[Key], names: set[str | None]) -> None:
        """Drain what no source wants; a worker that another takes the name of makes room at once."""
        leaving = leaving.difference(*self._held.values())
        for seen in self._membership.snapshot():
            if (seen.role, seen.url) not in leaving:
                continue
            if seen.name in names:
                self._membership.remove(seen.name)
            else:
                self._membership.drain(seen.name)

    async def _join(self, source: str, one: Wanted) -> None:
        there = self._membership.snapshot()
        if any(_is(seen, one) and seen.state != "draining" for seen in there):
            return
        taken = one.name in {seen.name for seen in there}
        try:
            name = None if taken else one.name
            await self._membership.add(one.role, one.url, name, one.tls_name)
        except ConfigError as error:
            self._failed(source, str(error))

    def _failed(self, source: str, message: str) -> None:
        self._metrics.discovery_updates.labels(source, "failed").inc()
        if self._said.get(source) != message:
            self._said[source] = message
            log.error("%s: %s; the workers stay as they are", source, message)


@asynccontextmanager
async def following(reconciler: Reconciler, sources: Iterable[Source]) -> AsyncIterator[None]:
    """Follow sources while the block runs."""
    tasks = [asyncio.create_task(reconciler.run(source)) for source in sources]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _is(seen: Seen, one: Wanted) -> bool:
    return (seen.role, seen.url) == (one.role, one.url)
