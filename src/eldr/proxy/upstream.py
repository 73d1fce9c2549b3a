"""The HTTP side of workers: connections that are kept for the next request, and what can fail, in two kinds.

Refused: no byte of the request was sent. Broken off: the worker may have read it. The difference decides what
a retry may re-use (docs/operations.md, "Failures").
"""

import asyncio
import errno
import logging
import os
import ssl
from contextlib import AbstractAsyncContextManager
from functools import cached_property, lru_cache
from urllib.parse import quote, urlsplit

from multidict import CIMultiDict

from eldr.config import Config
from eldr.errors import UpstreamError
from eldr.pool import Worker
from eldr.proxy.connection import Connection
from eldr.proxy.handoff import Parts
from eldr.proxy.headers import field_lines
from eldr.proxy.keys import worker_authorization
from eldr.proxy.tls import worker_tls
from eldr.proxy.worker_answer import Answer
from eldr.proxy.worker_answer import BrokenOffError as BrokenOffError

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 2.0
"""Idle connections end before vLLM's server ends them (after 5 s), or a request could meet a closed one."""

MAX_IDLE = 1024
"""Idle connections kept for a worker; those above are closed."""

LATE_S = 0.2
"""A time-out that is noticed so long after its time says nothing of the worker: the router did not look."""

OWN_FAULTS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Of a new connection, that say nothing of the worker: no descriptor or memory is left."""


class RefusedError(UpstreamError):
    """No connection to the worker: it has not seen the request."""


class ExhaustedError(UpstreamError):
    """The router itself has nothing left to make a connection of, which is held against no worker."""


class SilentError(BrokenOffError):
    """The worker took a short GET and did not answer in time: it hangs, or has too much to do."""


class Upstream:
    """Requests to workers. Made inside a running event loop, closed by `close`."""

    def __init__(self, config: Config) -> None:
        self._connect_timeout_s, self._idle_timeout_s = config.connect_timeout_s, config.idle_timeout_s
        self._authorization, self._security = worker_authorization(config.security), config.security
        self._loop = asyncio.get_running_loop()
        self._idle: dict[str, list[tuple[float, Connection]]] = {}
        self._sweeper: asyncio.TimerHandle | None = None

    async def close(self) -> None:
        """Close the connections that nobody uses."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for idle in self._idle.values():
            for _, connection in idle:
                connection.close()
        self._idle.clear()

    @property
    def has_key(self) -> bool:
        """Is there a key that workers are shown, so that a client's own must not go on?"""
        return self._authorization is not None

    def post(
        self, worker: Worker, path: str, body: Parts, fields: str
    ) -> AbstractAsyncContextManager[Answer]:
        """Send a request; yield at the answer's headers. Leaving early closes the connection: a cancel.

        fields: its headers as lines (`field_lines`), without a length and, if `has_key`, without credentials.
        """
        if self._authorization is not None:
            fields += f"Authorization: {self._authorization}\r\n"
        head = _head("POST", worker.url, path, f"{fields}Content-Length: {sum(map(len, body))}\r\n")
        return _Exchange(self, worker, (head + body[0], *body[1:]))

    async def get(
        self, worker: Worker, path: str, timeout_s: float, authorization: str | None = None
    ) -> tuple[int, bytes]:
        """Status and body of a short GET."""
        authorization = self._authorization or authorization
        headers = CIMultiDict({} if authorization is None else {"Authorization": authorization})
        headers["Accept-Encoding"] = "identity"
        try:
            async with asyncio.timeout(timeout_s):
                head = _head("GET", worker.url, path, field_lines(headers))
                async with _Exchange(self, worker, (head,)) as answer:
                    return answer.status, await answer.read()
        except TimeoutError:
            raise SilentError(
                f"worker {worker.id} ({worker.url}) did not answer {path} within {timeout_s:g} s"
            ) from None

    def release(self, worker: Worker, connection: Connection) -> None:
        """End an exchange: keep its connection for the next, or close it.

        Never raises: whatever is wrong with a connection, its answer has been given, or failed, before.
        """
        try:
            if connection.finish():
                self._keep(worker.url, connection)
        except Exception:
            log.exception("a connection to worker %s (%s) cannot be closed", worker.id, worker.url)

    async def connection(self, worker: Worker) -> Connection:
        """A connection to the worker: one that was kept, or a new one. Raises Refused- or ExhaustedError."""
        return self._kept(worker.url) or await self._connect(worker)

    async def _connect(self, worker: Worker) -> Connection:
        parts = urlsplit(worker.url)
        tls = self._tls if parts.scheme == "https" else None
        port = parts.port or (443 if tls else 80)
        try:
            async with asyncio.timeout(self._connect_timeout_s) as limit:
                _, connection = await self._loop.create_connection(
                    lambda: Connection(self._idle_timeout_s),
                    parts.hostname or "",
                    port,
                    ssl=tls,
                    server_hostname=worker.tls_name if tls else None,
                )
        except OSError as error:  # TimeoutError and ssl's errors are some
            at, reason = f"worker {worker.id} ({worker.url})", _reason(error)
            if error.errno in OWN_FAULTS:
                raise ExhaustedError(f"the router has no connection left to {at}: {reason}") from error
            if limit.expired() and self._loop.time() - (limit.when() or 0) > LATE_S:
                raise ExhaustedError(f"the router was too busy to connect to {at}") from error
            raise RefusedError(f"{at} cannot be reached: {reason}") from error
        return connection

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return worker_tls(self._security)

    def _kept(self, url: str) -> Connection | None:
        """The connection that was used last, since it is the least likely to have been closed."""
        idle = self._idle.get(url)
        while idle:
            since_s, connection = idle.pop()
            if connection.usable and self._loop.time() - since_s < KEEP_ALIVE_S:
                return connection
            connection.close()
        return None

    def _keep(self, url: str, connection: Connection) -> None:
        idle = self._idle.setdefault(url, [])
        if len(idle) >= MAX_IDLE:
            connection.close()
            return
        idle.append((self._loop.time(), connection))
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(KEEP_ALIVE_S, self._sweep)

    def _sweep(self) -> None:
        """Close what has been idle for too long; go on while there are connections."""
        oldest_s = self._loop.time() - KEEP_ALIVE_S
        for url, idle in list(self._idle.items()):
            for since_s, connection in idle:
                if since_s <= oldest_s:
                    connection.close()
            self._idle[url] = [kept for kept in idle if kept[0] > oldest_s]
            if not self._idle[url]:
                del self._idle[url]
        self._sweeper = self._loop.call_later(KEEP_ALIVE_S, self._sweep) if self._idle else None


class _Exchange(AbstractAsyncContextManager[Answer]):
    """A request and its answer, on one connection until the block ends."""

    def __init__(self, upstream: Upstream, worker: Worker, request: Parts) -> None:
        self._upstream, self._worker, self._request = upstream, worker, request

    async def __aenter__(self) -> Answer:
        self._connection = await self._upstream.connection(self._worker)
        try:
            answer = self._connection.send(self._request, self._worker)
            self._request = ()  # it may be large, and the answer long
            await answer.head()
        except BaseException:
            self._upstream.release(self._worker, self._connection)
            raise
        return answer

    async def __aexit__(self, *_: object) -> None:
        self._upstream.release(self._worker, self._connection)


def _head(method: str, url: str, path: str, fields: str) -> bytes:
    """The head of a request, from its headers as lines."""
    head = f"{method} {_target(path)} HTTP/1.1\r\nHost: {_host(url)}\r\n{fields}\r\n"
    return head.encode("utf-8", "surrogateescape")


@lru_cache(maxsize=4096)
def _host(url: str) -> str:
    return urlsplit(url).netloc


@lru_cache(maxsize=256)
def _target(path: str) -> str:
    """A decoded path as it may stand in a request line."""
    return quote(path, safe="/:@!$&'()*+,;=~-._")


def _reason(error: OSError) -> str:
    if isinstance(error.errno, int) and error.errno > 0 and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
