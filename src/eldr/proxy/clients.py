"""All clients of the router: their connections made, and ended when the router is told to stop."""

import asyncio

from eldr.config import Config
from eldr.metrics.prometheus import RouterMetrics
from eldr.proxy.app import Handler
from eldr.proxy.front import ClientConnection

END_S = 5.0
"""For requests that were cancelled to end."""


class Clients:
    """Makes the connections of clients, and ends them. Used from one event loop."""

    def __init__(self, handler: Handler, config: Config, metrics: RouterMetrics) -> None:
        self.handler, self.limits, self.metrics = handler, config.limits, metrics
        self.body_limit_bytes = config.body_limit_bytes
        self.connections: set[ClientConnection] = set()
        self.draining = False
        self._changed = asyncio.Event()

    def connection(self) -> ClientConnection:
        """A protocol for a new connection."""
        return ClientConnection(self)

    def ended(self, connection: ClientConnection) -> None:
        """Note that a connection is gone, and no request of it runs."""
        self.connections.discard(connection)
        self._changed.set()

    async def drain(self, limit_s: float) -> None:
        """End all connections: those at rest now, the others with their answer, or after `limit_s`."""
        self.draining = True
        for connection in tuple(self.connections):
            connection.end_soon()
        if not await self._all_ended(limit_s):
            for connection in tuple(self.connections):
                connection.abort()
            await self._all_ended(END_S)

    async def _all_ended(self, limit_s: float) -> bool:
        try:
            async with asyncio.timeout(limit_s):
                while self.connections:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True
