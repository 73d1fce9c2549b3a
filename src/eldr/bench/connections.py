"""Many clients on connections of their own, cheap enough to leave the machine to what they measure.

A client knows just enough HTTP for the mock engines behind a router: when output begins, how many chunks
came, and when the answer ends.
"""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import cast
from urllib.parse import urlsplit

import numpy as np

from eldr.errors import EngineError

EVENT = b"data: {"
END = b"0\r\n\r\n"
PROMPT_WORDS = 200


@dataclass
class Tally:
    """What the clients of a run saw. chunks: output events; ttft_s: from sending to the first of them."""

    chunks: int = 0
    ttft_s: list[float] = field(default_factory=list)


class Client(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._answer = b""
        self._tail = b""
        self._began_s: float | None = None
        self._done: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    async def send(self, request: bytes, began_s: float) -> bytes:
        """Send a request that began at a time of `time.perf_counter`; return how the answer began."""
        self._done = asyncio.get_running_loop().create_future()
        self._answer, self._tail, self._began_s = b"", b"", began_s
        self.transport.write(request)
        answer = await self._done
        if not answer.startswith(b"HTTP/1.1 200"):
            raise EngineError(f"a request was answered with {answer[:300]!r}")
        return answer

    def data_received(self, data: bytes) -> None:
        if self._done is None:
            return
        if events := data.count(EVENT):
            self._tally.chunks += events
            if self._began_s is not None:
                self._tally.ttft_s.append(time.perf_counter() - self._began_s)
                self._began_s = None
        if self._began_s is not None:  # the beginning is kept, and answers without events
            self._answer += data
        self._tail = (self._tail + data)[-len(END) :]
        if self._tail == END or (self._began_s is not None and _is_whole(self._answer)):
            done, self._done = self._done, None
            if not done.done():
                done.set_result(self._answer or b"HTTP/1.1 200")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if self._done is not None and not self._done.done():
            self._done.set_exception(EngineError(f"a connection was lost after {self._answer[-200:]!r}"))


def _is_whole(answer: bytes) -> bool:
    head, _, body = answer.partition(b"\r\n\r\n")
    _, found, after = head.lower().partition(b"content-length:")
    return bool(found) and len(body) >= int(after.partition(b"\r\n")[0])


class Path:
    """The way of a request: through a router, or (without one) from a prefill to a decode engine by hand."""

    def __init__(self, url: str, prefill_url: str | None = None) -> None:
        self.url, self.prefill_url = url, prefill_url
        self._made = 0

    def request(self, max_tokens: int, interval_ms: int, params: bytes = b"") -> bytes:
        """A streamed completion with a prompt that no other has."""
        self._made += 1
        prompt = b"%d" % self._made + b" word" * PROMPT_WORDS
        body = b'{"model":"mock","prompt":"%b","max_tokens":%d,"seed":%d,"stream":true,"temperature":0%b}' % (
            prompt,
            max_tokens,
            interval_ms,
            params,
        )
        head = b"POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)

    async def open(self, tally: Tally) -> "Way":
        """A connection that requests can take."""
        return Way(self, await _connect(self.url, tally), await self._open_prefill())

    async def _open_prefill(self) -> Client | None:
        return None if self.prefill_url is None else await _connect(self.prefill_url, Tally())


@dataclass
class Way:
    """One client's connection, and without a router the one to the prefill engine."""

    path: Path
    client: Client
    prefill: Client | None

    async def send(self, max_tokens: int, interval_ms: int) -> None:
        """One request, until the end of its answer."""
        began_s, params = time.perf_counter(), b""
        if self.prefill is not None:
            answer = await self.prefill.send(self.path.request(1, 0), began_s)
            _, _, after = answer.partition(b'"kv_transfer_params":')
            params = b',"kv_transfer_params":' + after[:-1]
        await self.client.send(self.path.request(max_tokens, interval_ms, params), began_s)

    def close(self) -> None:
        for client in (self.client, self.prefill):
            if client is not None:
                client.transport.close()


async def _connect(url: str, tally: Tally) -> Client:
    parts = urlsplit(url)
    _, client = await asyncio.get_running_loop().create_connection(
        partial(Client, tally), parts.hostname or "", parts.port or 80
    )
    return client


async def paced(ways: list[Way], rate: float, requests: int, rng: np.random.Generator) -> None:
    """One-token requests as a Poisson process of `rate` a second, each on the way that rested longest."""
    resting = deque(ways)
    loop = asyncio.get_running_loop()
    at_s = loop.time()

    async def one(way: Way) -> None:
        await way.send(1, 0)
        resting.append(way)

    async with asyncio.TaskGroup() as group:
        for gap_s in rng.exponential(1 / rate, requests):
            at_s += gap_s
            await asyncio.sleep(at_s - loop.time())
            while not resting:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            group.create_task(one(resting.popleft()))
