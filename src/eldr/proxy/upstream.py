"""The HTTP side of workers: one client session, and its errors mapped once.

Refused: no byte of the request was sent. Broken off: the worker may have read it. The difference decides what
a retry may re-use (docs/operations.md, "Failures").
"""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import aiohttp
from multidict import CIMultiDict

from eldr.config import Config
from eldr.errors import UpstreamError
from eldr.pool import Worker

KEEP_ALIVE_S = 2.0
"""Idle connections end before vLLM's server ends them (after 5 s), or a request could meet a closed one."""


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
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=config.connect_timeout_s, sock_read=config.idle_timeout_s
            ),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    @asynccontextmanager
    async def post(
        self, worker: Worker, path: str, body: bytes, headers: CIMultiDict[str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request; yield at the answer's headers. Leaving early closes the connection: a cancel."""
        with mapped_errors(worker):
            response = await self._session.post(
                worker.url + path, data=body, headers=headers, allow_redirects=False
            )
        async with response:
            yield response

    async def get(
        self, worker: Worker, path: str, timeout_s: float, authorization: str | None = None
    ) -> tuple[int, bytes]:
        """Status and body of a short GET."""
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        headers = {} if authorization is None else {"Authorization": authorization}
        with mapped_errors(worker):
            async with self._session.get(
                worker.url + path, timeout=timeout, headers=headers, allow_redirects=False
            ) as response:
                return response.status, await response.read()


async def read(worker: Worker, response: aiohttp.ClientResponse) -> bytes:
    """The whole body of an answer."""
    with mapped_errors(worker):
        return await response.read()


async def read_chunk(worker: Worker, response: aiohttp.ClientResponse) -> bytes:
    """The next piece of an answer's body as soon as it is there; empty at its end."""
    with mapped_errors(worker):
        return await response.content.readany()


@contextmanager
def mapped_errors(worker: Worker) -> Iterator[None]:
    """aiohttp's errors as RefusedError and BrokenOffError, naming the worker."""
    try:
        yield
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise RefusedError(
            f"worker {worker.id} ({worker.url}) cannot be reached: {_reason(error)}"
        ) from error
    except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
        raise BrokenOffError(f"worker {worker.id} ({worker.url}) broke off: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    number = getattr(error, "errno", None)
    if isinstance(number, int) and number > 0:
        return os.strerror(number)
    return str(error) or type(error).__name__
