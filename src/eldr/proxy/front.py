"""Connections of clients: HTTP/1.1 as a server speaks it, and how slowly a client may write and read.

A request is read as eldr.proxy.head and eldr.proxy.body say, and answered before the next one on its
connection is looked at. A client that reads nothing for too long, or never ends its headers, loses its
connection (docs/operations.md, "Limits"). The request of a client that leaves is cancelled.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from eldr.proxy.answers import error_answer
from eldr.proxy.head import HeadReader, RefusedHeadError, parse_head
from eldr.proxy.patience import Deadline, StallWatch
from eldr.proxy.request import Listener, Request
from eldr.proxy.response import CONTINUE, whole

if TYPE_CHECKING:
    from eldr.proxy.clients import Clients

log = logging.getLogger(__name__)

MOST_HELD_BYTES = 64 * 1024
"""Of a body that nobody has read yet, then the client must wait; of what follows a request, then it goes."""

LINGER_S = 10.0
"""For the rest of a body that nobody wants; a client that is still sending would not see its answer."""


class ClientConnection(asyncio.Protocol):
    """One connection of a client: a request, its answer, then the next."""

    _transport: asyncio.Transport
    write: Callable[[bytes], None]

    def __init__(self, clients: "Clients") -> None:
        self._clients, self._limits = clients, clients.limits
        self._loop = asyncio.get_running_loop()
        self.listener: Listener | None = None
        self.lags = False
        self._head = HeadReader(self._limits)
        self._received = bytearray()  # what comes after a request that is not answered yet
        self._request: Request | None = None
        self._task: asyncio.Task[None] | None = None
        self._lost, self._paused = False, False
        self._answers = 0
        self._deadline = Deadline(self._no_request_came)
        self._drained: asyncio.Future[None] | None = None

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.write = self._transport.write
        self._stall = StallWatch(self._transport, self._limits.stall_timeout_s, self._nothing_was_read)
        self._handler = self._clients.began(self)
        self._deadline.set(self._limits.header_timeout_s)
        if self._clients.draining:
            self._close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._lost = True
        self._deadline.close()
        self._stall.close()
        if self.listener is not None:
            self.listener.client_left()
        if self._task is None:
            self._forget()
        else:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        request = self._request
        if request is None:
            self._receive_head(data)
            return
        if not request.body.complete:
            data = request.body.feed(data)
        self._received += data
        if self._task is None:
            self._go_on(request)
        elif len(self._received) > MOST_HELD_BYTES:
            self.end("pipelined", f"more than {MOST_HELD_BYTES} bytes follow a request that is not answered")
        elif not request.body.complete and request.body.held_bytes > MOST_HELD_BYTES:
            self._paused = True  # never after the end of the request: that the client left would not show
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        self.lags = True
        if self.listener is not None:
            self.listener.client_lags()
        self._stall.start()

    def resume_writing(self) -> None:
        self.lags = False
        self._stall.stop()
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    # What those call who answer (eldr.proxy.request.Connection), and the front.

    async def drain(self) -> None:
        while self.lags:
            self._drained = self._loop.create_future()
            await self._drained

    def end_soon(self) -> None:
        """End the connection now, or with the answer to the request that runs."""
        if self._request is None or self._task is None:
            self._close()
        else:
            self._request.keep_alive = False

    def end(self, kind: str, text: str) -> None:
        """End the connection at once; kind and text are for metrics and the log."""
        self._count(kind, text)
        self.abort()

    def abort(self) -> None:
        """End the connection at once."""
        self._transport.abort()

    @property
    def sends(self) -> bool:
        """Does it hold what the client has not taken yet?"""
        return self._transport.get_write_buffer_size() > 0

    # One request after another.

    def _receive_head(self, data: bytes) -> None:
        """Begin a request, if its head has ended."""
        try:
            if (whole := self._head.feed(data)) is not None:
                head, rest = whole
                self._begin(parse_head(head, self._limits, self._clients.body_limit_bytes, self), rest)
        except RefusedHeadError as error:
            self._refuse(error)

    def _begin(self, request: Request, rest: bytes) -> None:
        self._request = request
        self._clients.busy(self)
        self._deadline.lift()
        self._task = self._loop.create_task(self._answer(request))
        if not request.body.complete:
            request.body.on_wanted = self._want_body
        if rest:
            self.data_received(rest)

    def _want_body(self) -> None:
        """Somebody waits for the body: the client may go on, and is told so if it asked."""
        request = self._request
        assert request is not None
        request.body.on_wanted = None
        if request.knows_chunks and "Expect" in request.headers:
            self.write(CONTINUE)
        self._read_on()

    async def _answer(self, request: Request) -> None:
        try:
            response = await self._handler(request)
            if not response.sent:
                if not request.body.complete:
                    self._check_rest(request)
                self.write(whole(response, request))
            if self.lags:
                await self.drain()
        except Exception:
            self._fail(request)
        finally:
            self._task = None
            if self._lost:
                self._forget()
            elif request.body.complete:
                self._go_on(request)
            else:
                self._linger(request)

    def _forget(self) -> None:
        """Leave nothing behind of a connection that is gone, not even for the garbage collector."""
        self._request = None
        self._clients.ended(self)

    def _check_rest(self, request: Request) -> None:
        """Let an answer that comes before the end of its request say where no other request can follow.

        A client that was not told to go on may leave its body out (RFC 9110, 10.1.1).
        """
        untold = request.body.on_wanted is not None and "Expect" in request.headers
        if request.body.malformed or untold:
            request.keep_alive = False

    def _fail(self, request: Request) -> None:
        """Answer after a fault of the router, or cut off an answer that has begun."""
        log.exception("the router failed to answer a request")
        if request.answered:
            self.abort()
        else:
            request.keep_alive = False
            error = error_answer(500, "the router failed; its log says how", "internal_error")
            self.write(whole(error, request))

    def _linger(self, request: Request) -> None:
        """Take the rest of a body that nobody wants: a client that still sends would not see its answer."""
        if not self._clients.draining:
            request.body.drop()
            self._deadline.set(min(LINGER_S, self._limits.body_timeout_s))
            self._read_on()
        self._go_on(request)

    def _go_on(self, request: Request) -> None:
        """Begin the next request once the body of this one, which has been answered, has ended."""
        if (
            self._transport.is_closing()
            or request.body.malformed
            or self._clients.draining
            or (request.body.complete and not request.keep_alive)
        ):
            self._close()
        elif request.body.complete:
            self._request = None
            self._clients.rests(self)
            self._answers += 1
            self._deadline.set(self._limits.keep_alive_s)
            self._read_on()
            if self._received:
                received = bytes(self._received)
                self._received.clear()
                self._receive_head(received)

    def _refuse(self, error: RefusedHeadError) -> None:
        self._count(error.fault, str(error))
        self.write(whole(error_answer(error.status, str(error), "invalid_request_error"), None))
        self._close()

    def _read_on(self) -> None:
        if self._paused and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    def _close(self) -> None:
        self._clients.busy(self)
        self._deadline.lift()
        self._transport.close()
        if self.sends:
            self._stall.start()

    # Clients that take their time.

    def _no_request_came(self) -> None:
        if self._answers == 0 and self._request is None:
            self.end("slow_headers", f"no whole request within {self._limits.header_timeout_s:g} s")
        else:
            self._close()

    def _nothing_was_read(self) -> None:
        self.end("slow_reader", f"nothing was read for {self._limits.stall_timeout_s:g} s")

    def _count(self, kind: str, text: str) -> None:
        self._clients.metrics.client_faults.labels(kind).inc()
        log.info("client %s: %s", self._transport.get_extra_info("peername"), text)
