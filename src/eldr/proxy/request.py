"""A client's request: its head, read strictly, and what the rest of the router may ask of it.

One regular expression matches a head. It takes less than RFC 9112 lets servers take: no folded header, no
blank before a colon, no line end but CR LF, no control character. Then one length, told in one way. So what
two servers could read as two different requests is refused; tests/fuzz checks that llhttp reads what passes
in the same way.
"""

import re
from collections.abc import Callable
from typing import Protocol

from multidict import CIMultiDict

from eldr.proxy.body import Body
from eldr.settings_front import LimitConfig

_NAME = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_LINE = rb"[\t -~\x80-\xff]*"
_TARGET = rb"/[!-~]*|(?i:https?)://[0-9A-Za-z.:\[\]_~-]+(?:[/?][!-~]*)?|\*"
_HEAD = re.compile(
    rb"(?:\r\n)?(%b) (%b) HTTP/1\.([01])\r\n((?:%b:%b\r\n)*)\r\n" % (_NAME, _TARGET, _NAME, _LINE)
)
_UNFINISHED = re.compile(rb"(?:%b\r\n)*%b\r?" % (_LINE, _LINE))
_ORIGIN = re.compile(r"https?://[^/?#]*", re.IGNORECASE)
_ONCE = ("host", "content-length", "transfer-encoding", "content-type", "content-range", "user-agent")
"""Headers that nobody may send twice, since two servers could go by one each."""


class RefusedHeadError(Exception):
    """A head that is not taken. fault: for metrics. The message, for the client, quotes nothing of it."""

    def __init__(self, status: int, fault: str, message: str) -> None:
        super().__init__(message)
        self.status, self.fault = status, fault


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


def parse_head(
    data: bytes | bytearray, limits: LimitConfig, body_limit_bytes: int, connection: Connection
) -> Request:
    """The request that this head, blank line included, begins. Raises RefusedHeadError."""
    if len(data) > limits.header_bytes or data.count(b"\n") > limits.headers:
        check_sizes(data, limits)
    match = _HEAD.fullmatch(data)
    if match is None:
        raise _malformed("it is not HTTP as it must be")
    method, target, minor, fields = match.groups()
    lines = fields.decode("utf-8", "surrogateescape").split("\r\n")
    lines.pop()  # what follows the last line end: nothing
    headers = CIMultiDict(
        [(line[: (colon := line.index(":"))], line[colon + 1 :].strip(" \t")) for line in lines]
    )
    knows_chunks = minor == b"1"
    if len(set(map(str.lower, headers))) < len(headers):
        _check_once(headers)
    if knows_chunks and "Host" not in headers:
        raise _malformed("it has no Host")
    body = Body(_length(headers, knows_chunks), body_limit_bytes, headers.get("Content-Encoding", ""))
    return Request(
        method.decode(),
        _path(target.decode()),
        headers,
        knows_chunks=knows_chunks,
        body=body,
        connection=connection,
    )


def check_unfinished(data: bytes | bytearray, limits: LimitConfig) -> None:
    """Raise RefusedHeadError where the rest of a head cannot make it good any more."""
    check_sizes(data, limits)
    if _UNFINISHED.fullmatch(data) is None:
        raise _malformed("it is not HTTP as it must be")


def check_sizes(data: bytes | bytearray, limits: LimitConfig) -> None:
    """Raise RefusedHeadError for a head, or its beginning, over a limit."""
    first, *fields = data.lstrip(b"\r\n").split(b"\r\n")
    if max(map(len, first.split(b" "))) > limits.header_bytes:
        text = f"the URL is longer than {limits.header_bytes} bytes"
        raise RefusedHeadError(414, "long_url", text)
    if max(map(len, fields), default=0) > limits.header_bytes:
        text = f"a header is longer than {limits.header_bytes} bytes"
        raise RefusedHeadError(431, "large_headers", text)
    if sum(map(bool, fields)) > limits.headers:
        text = f"there are more than {limits.headers} headers"
        raise RefusedHeadError(431, "large_headers", text)


def _path(target: str) -> str:
    """The path of a target, which may name the origin too (RFC 9112, 3.2.2)."""
    if not target.startswith("/"):
        target = _ORIGIN.sub("", target, count=1)
    return target.partition("?")[0]


def _check_once(headers: CIMultiDict[str]) -> None:
    for name in _ONCE:
        if len(headers.getall(name, ())) > 1:
            raise _malformed(f"{name} is there twice")


def _length(headers: CIMultiDict[str], knows_chunks: bool) -> int | None:
    """The bytes of the body, None for one in chunks."""
    length, encoding = headers.get("Content-Length"), headers.get("Transfer-Encoding")
    if encoding is not None:
        if length is not None or not knows_chunks or encoding.lower() != "chunked":
            raise _malformed("its body has no certain length")
        return None
    if length is None:
        return 0
    if not (length.isascii() and length.isdecimal() and len(length) < 19):
        raise _malformed("its Content-Length is no number")
    return int(length)


def _keeps_alive(headers: CIMultiDict[str], by_default: bool) -> bool:
    if "Connection" not in headers:
        return by_default
    tokens = {token.strip().lower() for token in ",".join(headers.getall("Connection")).split(",")}
    return "close" not in tokens and (by_default or "keep-alive" in tokens)


def _malformed(why: str) -> RefusedHeadError:
    return RefusedHeadError(400, "malformed", f"the request is malformed: {why}")
