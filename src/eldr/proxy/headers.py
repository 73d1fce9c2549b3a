"""Which headers go on to an engine, and which come back to the client."""

import random
from collections.abc import Set

from multidict import CIMultiDict, MultiMapping

from eldr.proxy.request import Request

REQUEST_ID = "X-Request-Id"
DECODE_WORKER = "x-eldr-decode-worker"
PREFILL_WORKER = "x-eldr-prefill-worker"
POLICY = "x-eldr-policy"

_HOP_BY_HOP = {
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}
_NOT_TO_ENGINE = {
    "host",
    "content-length",
    "content-encoding",  # the body was decoded on its way in
    "accept-encoding",  # the router reads what the engine answers
    "expect",
    "x-request-id",
    DECODE_WORKER,
    PREFILL_WORKER,
    POLICY,
}
_CREDENTIALS = {"authorization", "x-api-key"}
_NOT_TO_CLIENT = {"content-length", "content-encoding", "date", "server", "x-request-id"}

_KEPT_FROM_ENGINE = _HOP_BY_HOP | _NOT_TO_ENGINE
_KEPT_FROM_CLIENT = _HOP_BY_HOP | _NOT_TO_CLIENT
_KEPT_FROM_ENGINE_TOO = _KEPT_FROM_ENGINE | _CREDENTIALS
_MAX_ID_LENGTH = 256


def to_engine(headers: MultiMapping[str], without_key: bool) -> CIMultiDict[str]:
    """The client's headers for engines, to which each leg adds a request id of its own.

    traceparent passes, and the client's key unless they go `without_key`. x-data-parallel-* would let a
    client choose a rank, so it does not.
    """
    dropped = _dropped(headers, _KEPT_FROM_ENGINE_TOO if without_key else _KEPT_FROM_ENGINE)
    passed = CIMultiDict(
        [
            field
            for field in headers.items()
            if (name := field[0].lower()) not in dropped and not name.startswith("x-data-parallel-")
        ]
    )
    passed["Accept-Encoding"] = "identity"
    passed.setdefault("Content-Type", "application/json")
    return passed


def to_client(headers: MultiMapping[str]) -> CIMultiDict[str]:
    """An engine's headers for the client's answer, whose length and encoding are the router's matter."""
    dropped = _dropped(headers, _KEPT_FROM_CLIENT)
    return CIMultiDict([field for field in headers.items() if field[0].lower() not in dropped])


def client_request_id(request: Request) -> str:
    """The client's own request id where it sent a usable one, else a new one."""
    given = request.headers.get(REQUEST_ID, "")
    return given if 0 < len(given) <= _MAX_ID_LENGTH and given.isprintable() else new_id()


def new_id() -> str:
    """A request id that no other request has. Engines mix up two requests that run under one id."""
    return f"{random.getrandbits(128):032x}"


def field_lines(headers: MultiMapping[str]) -> str:
    """Headers as lines of a head. Raises ValueError for one that would end its line."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers) or "\0" in lines:
        raise ValueError("a header's value holds a line end")
    return lines


def _dropped(headers: MultiMapping[str], always: Set[str]) -> Set[str]:
    """Lower-case names of headers that go no further: some always, others since `Connection` names them."""
    if "Connection" not in headers:
        return always
    named = ",".join(headers.getall("Connection")).lower().split(",")
    return always | {name.strip() for name in named}
