"""Bytes to a server and back, as no HTTP client would send or read them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from support.waiting import HANG_S


@dataclass
class Connection:
    """One TCP connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def rest(self, timeout_s: float = HANG_S) -> bytes:
        """Everything up to the end, b"" also for a reset; fails if the server does not end it."""
        parts = []
        async with asyncio.timeout(timeout_s):
            try:
                while part := await self.reader.read(65536):
                    parts.append(part)
            except ConnectionError:
                pass
        return b"".join(parts)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    """A connection to the server of a URL, closed at the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    try:
        yield Connection(reader, writer)
    finally:
        writer.transport.abort()


async def exchange(url: str, data: bytes, timeout_s: float = HANG_S) -> bytes:
    """What the server answers to these bytes until it closes; fails if it leaves the client hanging."""
    async with connected(url) as connection:
        connection.writer.write(data)
        return await connection.rest(timeout_s)


def post(body: dict[str, Any], *headers: str, path: str = "/v1/completions") -> bytes:
    """A whole request after which the server closes the connection."""
    data = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: x",
        f"Content-Length: {len(data)}",
        "Connection: close",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def status_of(answer: bytes) -> int:
    """The status of an answer; 0 where there is none."""
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.") else 0
