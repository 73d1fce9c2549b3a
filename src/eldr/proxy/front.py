"""Connections of clients: what they may send, how slowly, and how slowly they may read.

aiohttp parses and answers; this adds the limits that it lacks (docs/operations.md, "Limits"). A client that
reads nothing for too long, or never ends its headers, loses its connection, which cancels its request.
"""

import asyncio
import logging
from functools import partial
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from eldr.config import Config
from eldr.metrics.prometheus import RouterMetrics
from eldr.proxy.answers import error_answer
from eldr.proxy.app import DIRECT, METRICS, Handler
from eldr.proxy.stream import Listener
from eldr.settings_front import LimitConfig

log = logging.getLogger(__name__)

AT_ONCE_S = 0.01
"""A drain that takes no time: aiohttp takes 0 to mean that there is no limit."""

TOO_MANY_HEADERS = "Too many headers received"
"""aiohttp's words, which are all that tells this from what is no HTTP."""


class FrontRunner(web.AppRunner):
    """Serves an application on connections of the kind below."""

    def __init__(self, app: web.Application, config: Config, drain_s: float) -> None:
        # Cancelling the handler when its client leaves is what cancels the request to the engine.
        limit_s = max(drain_s, AT_ONCE_S)
        super().__init__(app, handler_cancellation=True, access_log=None, shutdown_timeout=limit_s)
        self._connection = partial(_Connection, limits=config.limits, metrics=app[METRICS])
        self._direct = app[DIRECT]

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        server.request_handler = partial(_handle, self._direct, server.request_handler)
        return server

    @property
    def server(self) -> Any:
        """What makes a protocol for each connection, for the sites of this runner."""
        server = super().server
        return None if server is None else partial(self._connection, server)


async def _handle(
    direct: dict[str, Handler], application: Handler, request: web.Request
) -> web.StreamResponse:
    """Answer a request. Where nothing stands before its handler, aiohttp's dispatch (5 % of it) is spared."""
    handler = direct.get(request.rel_url.raw_path) if request.method == "POST" else None
    if handler is None or "Expect" in request.headers:
        handler = application
    return await handler(request)


class _Connection(web.RequestHandler):
    """One connection of a client."""

    def __init__(self, server: web.Server, limits: LimitConfig, metrics: RouterMetrics) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]
            keepalive_timeout=limits.keep_alive_s,
            max_line_size=_url_bytes(limits),
            max_field_size=limits.header_bytes,
            max_headers=limits.headers,
            lingering_time=min(10.0, limits.body_timeout_s),  # for the rest of a body that nobody wants
        )
        self._limits, self._metrics = limits, metrics
        self.listener: Listener | None = None
        self._head: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        loop = asyncio.get_running_loop()
        self._head = loop.call_later(self._limits.header_timeout_s, self._check_head)

    def connection_lost(self, error: BaseException | None) -> None:
        for timer in (self._head, self._stall):
            if timer is not None:
                timer.cancel()
        if self.listener is not None:
            self.listener.client_left()
        super().connection_lost(error)

    def pause_writing(self) -> None:
        """What is to be sent has piled up."""
        super().pause_writing()
        if self.listener is not None:
            self.listener.client_lags()
        self._watch_stall()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is no HTTP, or not within the limits, in OpenAI's form and with one line in the log."""
        if status >= 500:  # a fault of the router
            super().handle_error(request, status, exc, message)  # whose trace goes to the log
            return error_answer(status, "the router failed; its log says how", "internal_error")
        status, fault, text = self._refusal(exc)
        self._count(fault, f"{text}: {_unquoted(message or str(exc))}")
        answer = error_answer(status, text, "invalid_request_error")
        answer.force_close()
        return answer

    def _refusal(self, error: BaseException | None) -> tuple[int, str, str]:
        """Status, kind of the fault, and words for a request that aiohttp's parser refused."""
        limits = self._limits
        if isinstance(error, LineTooLong):
            if error.args[1] == _url_bytes(limits):
                return 414, "long_url", f"the URL is longer than {limits.header_bytes} bytes"
            return 431, "large_headers", f"a header is longer than {limits.header_bytes} bytes"
        if TOO_MANY_HEADERS in str(error):
            return 431, "large_headers", f"there are more than {limits.headers} headers"
        return 400, "malformed", "the request is malformed, it is not HTTP as it must be"

    def _check_head(self) -> None:
        if self._request_count == 0 and self.transport is not None:
            self._count("slow_headers", f"no whole request within {self._limits.header_timeout_s:g} s")
            self.transport.abort()

    def _watch_stall(self) -> None:
        if self.transport is not None:
            unsent = self.transport.get_write_buffer_size()
            loop = asyncio.get_running_loop()
            self._stall = loop.call_later(self._limits.stall_timeout_s, self._check_stall, unsent)

    def _check_stall(self, unsent_before: int) -> None:
        if self.transport is None:
            return
        if self.transport.get_write_buffer_size() < unsent_before:
            self._watch_stall()
            return
        self._count("slow_reader", f"nothing was read for {self._limits.stall_timeout_s:g} s")
        self.transport.abort()

    def _count(self, kind: str, text: str) -> None:
        self._metrics.client_faults.labels(kind).inc()
        log.info("client %s: %s", self.peername, text)


def _url_bytes(limits: LimitConfig) -> int:
    """One less than for a header: the limit in aiohttp's error is all that tells which of the two it was."""
    return limits.header_bytes - 1


def _unquoted(text: str) -> str:
    """What aiohttp says, without what a client sent, which may be a key: it quotes that after a colon."""
    return text.strip().partition(":")[0]
