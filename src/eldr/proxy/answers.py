"""The router's own answers, in OpenAI's error form."""

import msgspec

from eldr.proxy.response import Response, json_response


def error_body(status: int, message: str, kind: str, param: str | None = None) -> bytes:
    """`{"error": {...}}` as bytes."""
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": status}})


def error_event(status: int, message: str, kind: str, named: bool) -> bytes:
    """The same as a server-sent event, for a stream whose status has been sent already.

    named: for APIs whose events have names (responses, messages).
    """
    body = error_body(status, message, kind)
    return (
        b'event: error\ndata: {"type":"error",' + body[1:] + b"\n\n" if named else b"data: " + body + b"\n\n"
    )


def error_answer(status: int, message: str, kind: str, retry_after_s: int | None = None) -> Response:
    """An answer that says what went wrong in the router or on the way to a worker."""
    answer = json_response(error_body(status, message, kind), status)
    if retry_after_s is not None:
        answer.headers["Retry-After"] = str(retry_after_s)
    return answer
