"""A client's request, and what those who answer it may ask of its connection."""

from collections.abc import Callable
from typing import Protocol

from multidict import CIMultiDict

from eldr.proxy.body import Body


class Listener(Protocol):
    """Who streams to a client, and is told what becomes of its connection."""

    def client_lags(self) -> None:
        """The client reads more slowly than it is written to."""

    def client_left(self) -> None:
        """The connection is gone."""


class Connection(Protocol):
    """A client's connection, as those use it who answer."""

    listener: Listener | None

    @property
    def lags(self) -> bool:
        """Does the client read more slowly than it is written to?"""

    @property
    def write(self) -> Callable[[bytes], None]:
        """Sends bytes as they are."""

    async def drain(self) -> None:
        """Wait until the client does not lag."""


class Request:
    """One request of a client.

    path: as it was sent, without the query. knows_chunks: may the answer be chunked? In HTTP/1.0 it may not.
    keep_alive: may another request follow? authorized: was the key in it the router's own?
    answered: has an answer begun?
    """

    __slots__ = (
        "answered",
        "authorized",
        "body",
        "connection",
        "headers",
        "keep_alive",
        "knows_chunks",
        "method",
        "path",
    )

    def __init__(
        self,
        method: str,
        path: str,
        headers: CIMultiDict[str],
        *,
        knows_chunks: bool,
        body: Body,
        connection: Connection,
    ) -> None:
        self.method, self.path, self.headers = method, path, headers
        self.knows_chunks, self.body, self.connection = knows_chunks, body, connection
        self.keep_alive = _keeps_alive(headers, knows_chunks)
        self.authorized = self.answered = False


def _keeps_alive(headers: CIMultiDict[str], by_default: bool) -> bool:
    if "Connection" not in headers:
        return by_default
    tokens = {token.strip().lower() for token in ",".join(headers.getall("Connection")).split(",")}
    return "close" not in tokens and (by_default or "keep-alive" in tokens)
