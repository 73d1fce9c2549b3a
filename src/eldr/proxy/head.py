"""The head of a client's request, read strictly.

One regular expression matches a head. It takes less than RFC 9112 lets servers take: no folded header, no
blank before a colon, no line end but CR LF, no control character. Then one length, told in one way. So what
two servers could read as two different requests is refused; tests/fuzz checks that llhttp reads what passes
in the same way.
"""

import re

from multidict import CIMultiDict

from eldr.proxy.body import Body
from eldr.proxy.request import Connection, Request
from eldr.settings_front import LimitConfig

_END = b"\r\n\r\n"
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

LARGEST_ALL = 4
"""Times the limit of one header, for a whole head: so much may a connection hold of one that never ends."""


class RefusedHeadError(Exception):
    """A head that is not taken. fault: for metrics. The message, for the client, quotes nothing of it."""

    def __init__(self, status: int, fault: str, message: str) -> None:
        super().__init__(message)
        self.status, self.fault = status, fault


class HeadReader:
    """Gathers the bytes of a head, and looks through what came of it each time that it has doubled."""

    def __init__(self, limits: LimitConfig) -> None:
        self._limits = limits
        self._begun = bytearray()
        self._checked = 0

    def feed(self, data: bytes) -> tuple[bytes, bytes] | None:
        """A whole head and what came after it; None where it has not ended. Raises RefusedHeadError."""
        if not self._begun and (end := data.find(_END)) >= 0:
            end += len(_END)
            return data[:end], data[end:]
        before = len(self._begun)
        self._begun += data
        end = self._begun.find(_END, max(0, before - len(_END) + 1)) + len(_END)
        if end < len(_END):
            if len(self._begun) >= 2 * self._checked:
                check_unfinished(self._begun, self._limits)
                self._checked = len(self._begun)
            return None
        whole = bytes(self._begun)
        self._begun.clear()
        self._checked = 0
        return whole[:end], whole[end:]


def parse_head(data: bytes, limits: LimitConfig, body_limit_bytes: int, connection: Connection) -> Request:
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
    if len(data) > LARGEST_ALL * limits.header_bytes:
        text = f"URL and headers are longer than {LARGEST_ALL * limits.header_bytes} bytes together"
        raise RefusedHeadError(431, "large_headers", text)
    if sum(map(bool, fields)) > limits.headers:
        text = f"there are more than {limits.headers} headers"
        raise RefusedHeadError(431, "large_headers", text)


def _path(target: str) -> str:
    """The path of a target, which may name the origin too (RFC 9112, 3.2.2)."""
    if not target.startswith("/"):
        target = _ORIGIN.sub("", target, count=1)
    return target.partition("?")[0] or "/"


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


def _malformed(why: str) -> RefusedHeadError:
    return RefusedHeadError(400, "malformed", f"the request is malformed: {why}")
