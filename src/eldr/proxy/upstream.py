"""The HTTP side of workers: one client session, and its errors mapped once.

Refused: no byte of the request was sent. Broken off: the worker may have read it. The difference decides what a
retry may re-use (docs/operations.md, "Failures").
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import aiohttp
from multidict import CIMultiDict

from eldr.config import Config, WorkerConfig
from eldr.errors import UpstreamError

KEEP_ALIVE_S = 2.0
"""Idle connections are closed before vLLM's server (5 s) closes them, or a request could meet a closed one."""


class RefusedError(UpstreamError):
    """No connection to the worker: it has not seen the request."""


class BrokenOffError(UpstreamError):
    """The connection broke or fell silent after the request was sent: the worker may have started on it."""


class Upstream:
    """Requests to workers. Made inside a running event loop, closed by `close`."""

    def __init__(self, config: Config) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
            cookie_jar=aiohttp.DummyCookieJar(),  # cookies of one client must not reach the next
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=config.connect_timeout_s, sock_read=config.idle_timeout_s
            ),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    @asynccontextmanager
    async def post(
        self, worker: WorkerConfig, path: str, body: bytes, headers: CIMultiDict[str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request; yields at the answer's headers. Leaving early closes the connection, which cancels it."""
        with mapped_errors(worker):
            response = await self._session.post(
                worker.url + path, data=body, headers=headers, allow_redirects=False
            )
        async with response:
            yield response

    async def get(self, worker: WorkerConfig, path: str, timeout_s: float) -> tuple[int, bytes]:
        """Status and body of a short GET."""
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        with mapped_errors(worker):
            async with self._session.get(
                worker.url + path, timeout=timeout, allow_redirects=False
            ) as response:
                return response.status, await response.read()


async def read(worker: WorkerConfig, response: aiohttp.ClientResponse) -> bytes:
    """The whole body of an answer."""
    with mapped_errors(worker):
        return await response.read()


async def chunks(worker: WorkerConfig, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The body of an answer, each piece as it arrives."""
    while True:
        with mapped_errors(worker):
            chunk = await response.content.readany()
        if not chunk:
            return
        yield chunk


@contextmanager
def mapped_errors(worker: WorkerConfig) -> Iterator[None]:
    """aiohttp's errors as RefusedError and BrokenOffError, naming the worker."""
    try:
        yield
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise RefusedError(f"worker {worker.name} ({worker.url}) refused the connection: {error}") from error
    except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
        reason = str(error) or type(error).__name__
        raise BrokenOffError(f"worker {worker.name} ({worker.url}) broke off: {reason}") from error
