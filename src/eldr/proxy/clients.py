"""All clients of the router: their connections made, and ended when the router is told to stop."""

import asyncio

from eldr.config import Config
from eldr.metrics.prometheus import RouterMetrics
from eldr.proxy.answers import error_answer
from eldr.proxy.app import Handler
from eldr.proxy.descriptors import most_connections
from eldr.proxy.front import ClientConnection
from eldr.proxy.request import Request
from eldr.proxy.response import Response

END_S = 5.0
"""For requests that were cancelled to end."""

MOST_SURPLUS = 16
"""Connections above the limit, which are told so; but GETs are answered, as health checks are some."""


class Clients:
    """Makes the connections of clients, and ends them. Used from one event loop."""

    def __init__(self, handler: Handler, config: Config, metrics: RouterMetrics) -> None:
        self.handler, self.limits, self.metrics = handler, config.limits, metrics
        self.body_limit_bytes = config.body_limit_bytes
        self.connections: set[ClientConnection] = set()
        self._idle: dict[ClientConnection, None] = {}  # the one that has been so for the longest time first
        self._most = most_connections(config.limits.connections)
        self.draining = False
        self._changed = asyncio.Event()

    def connection(self) -> ClientConnection:
        """A protocol for a new connection."""
        return ClientConnection(self)

    def began(self, connection: ClientConnection) -> Handler:
        """Note a new connection, for which one that is idle makes room; return who answers its requests."""
        self.connections.add(connection)
        surplus = len(self.connections) - self._most
        if surplus <= 0 or self._free_one():
            self.rests(connection)
            return self.handler
        if surplus > MOST_SURPLUS:
            connection.end("too_many_connections", f"there are {self._most}, and {MOST_SURPLUS} turned away")
        return self._turn_away

    def rests(self, connection: ClientConnection) -> None:
        """Note that a connection has no request."""
        self._idle[connection] = None

    def busy(self, connection: ClientConnection) -> None:
        """Note that a connection has a request, or is being closed."""
        self._idle.pop(connection, None)

    def _free_one(self) -> bool:
        """End the connection that has been idle longest, of those that were sent all of their answer."""
        for connection in self._idle:
            if not connection.sends:
                self.busy(connection)
                connection.end("idle", f"it was idle while another came, and there may be {self._most}")
                return True
        return False

    async def _turn_away(self, request: Request) -> Response:
        request.keep_alive = False
        if request.method != "POST" or len(self.connections) <= self._most:
            return await self.handler(request)
        self.metrics.client_faults.labels("too_many_connections").inc()
        return error_answer(503, f"{self._most} clients are connected and busy; try again", "overloaded", 1)

    def ended(self, connection: ClientConnection) -> None:
        """Note that a connection is gone, and no request of it runs."""
        self.connections.discard(connection)
        self.busy(connection)
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
