"""The workers behind a DNS name: one for each address, asked for again and again."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import urlsplit

from eldr.proxy.discovery.source import DiscoveryError, Wanted

Resolve = Callable[[str, int], Awaitable[list[str]]]


async def addresses(host: str, port: int) -> list[str]:
    """The addresses of a name, in order; raises DiscoveryError."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise DiscoveryError(f"{host} cannot be resolved: {error.strerror or error}") from None
    return sorted({str(address[0]) for *_, address in found})


class DnsSource:
    """Workers of one role behind one name. url: http://NAME:PORT, or https://, then certificates of NAME."""

    def __init__(self, role: str, url: str, interval_s: float, resolve: Resolve = addresses) -> None:
        self.name = f"dns:{role}:{url}"
        self._role, self._interval_s, self._resolve = role, interval_s, resolve
        parts = urlsplit(url)
        self._scheme, self._host, self._port = parts.scheme, parts.hostname or "", parts.port or 80

    async def sets(self) -> AsyncIterator[tuple[Wanted, ...]]:
        """One worker an address, now and whenever the addresses change."""
        before: list[str] | None = None
        while True:
            found = await self._resolve(self._host, self._port)
            if found != before:
                before = found
                yield tuple(self._worker(address) for address in found)
            await asyncio.sleep(self._interval_s)

    def _worker(self, address: str) -> Wanted:
        host = f"[{address}]" if ":" in address else address
        name = re.sub(r"[^\w.-]", "-", f"{address}-{self._port}")
        tls_name = self._host if self._scheme == "https" else None
        return Wanted(self._role, f"{self._scheme}://{host}:{self._port}", name, tls_name)
