"""An answer to a client, and its head as bytes."""

import time
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from multidict import CIMultiDict

from eldr.proxy.headers import field_lines
from eldr.proxy.request import Request

CHUNKS_END = b"0\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_WITHOUT_BODY = (204, 304)


class Response:
    """An answer. sent: whoever returns it has sent it already, as a stream."""

    __slots__ = ("body", "headers", "sent", "status")

    def __init__(
        self, status: int, body: bytes = b"", headers: CIMultiDict[str] | None = None, *, sent: bool = False
    ) -> None:
        self.status, self.body, self.sent = status, body, sent
        self.headers = CIMultiDict[str]() if headers is None else headers


def json_response(body: bytes, status: int = 200) -> Response:
    """An answer whose body is JSON already."""
    return Response(status, body, CIMultiDict({"Content-Type": "application/json"}))


def whole(response: Response, request: Request | None) -> bytes:
    """An answer as bytes. request: None where it could not be read, after which the connection ends."""
    length = "" if response.status in _WITHOUT_BODY else f"Content-Length: {len(response.body)}\r\n"
    head = _head(response.status, response.headers, length, request)
    return head if request is not None and request.method == "HEAD" else head + response.body


def stream_head(status: int, headers: CIMultiDict[str], request: Request) -> bytes:
    """What an answer of unknown length begins with: chunks follow, or in HTTP/1.0 bytes until the end."""
    request.answered = True
    request.keep_alive = request.keep_alive and request.knows_chunks
    return _head(status, headers, "Transfer-Encoding: chunked\r\n" if request.knows_chunks else "", request)


def chunk(data: bytes) -> bytes:
    """One chunk of a body (RFC 9112, 7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _head(status: int, headers: CIMultiDict[str], length: str, request: Request | None) -> bytes:
    if request is not None and request.keep_alive:
        connection = "" if request.knows_chunks else "Connection: keep-alive\r\n"
    else:
        connection = "Connection: close\r\n"
    first, date = _status_line(status), _date(int(time.time()))
    return f"{first}{field_lines(headers)}{date}{length}{connection}\r\n".encode("utf-8", "surrogateescape")


@lru_cache(maxsize=64)
def _status_line(status: int) -> str:
    phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else "Unknown"
    return f"HTTP/1.1 {status} {phrase}\r\n"


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return f"Date: {formatdate(second, usegmt=True)}\r\n"
