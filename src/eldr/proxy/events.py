"""What the router reads in an answer on its way through: tokens, usage, the end, errors.

An answer's text is never changed. Two things are: the cached tokens of the usage (the decode worker would
count what it pulled from the prefill worker), and a usage event that only the router had asked for.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Raw

from eldr.proxy.fields import JSON_ERRORS, Body, decoded, given
from eldr.proxy.usage import Usage, read_usage, set_cached_tokens

_EVENT_END = re.compile(rb"\r?\n\r?\n")
_ROLE = b'"role":'  # as in b'"usage":' below, never inside a text
_USAGE, _NO_USAGE = b'"usage":', b'"usage":null}'  # never inside a text, where the quotes would be escaped
_NO_CHOICES = Raw(b"[]")
_HEAD = re.compile(rb"(?:event: ?([^\r\n]*)\r?\n)?data: ?")

# Events of /v1/responses and /v1/messages by name: the last ones, those that tell of a failure (and are the
# last then), and those with a usage.
_LAST = (b"response.completed", b"response.incomplete", b"message_stop")
_FAILED = (b"error", b"response.failed")
_WITH_USAGE = (b"response.completed", b"response.incomplete", b"message_start", b"message_delta")


@dataclass(slots=True)
class EventReader:
    """Passes whole server-sent events on, and notes what they say.

    hides_usage: drop the final usage event, which the client did not ask for.
    cached_tokens: of the prefill leg, to be put into the usage; None leaves it.
    token_events: events that carried output. A chat's first chunk, which only names a role, does not. Chunks
    that pass by the reader (eldr.proxy.chunks) are not counted.
    error: the first error event's body.
    done: the stream ended as it should, with [DONE] or the last event of its API.
    """

    hides_usage: bool = False
    cached_tokens: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    token_events: int = 0
    error: bytes | None = None
    done: bool = False
    _rest: bytes = field(default=b"", repr=False)

    @property
    def in_output(self) -> bool:
        """Output has begun, and no part of an event waits for its rest."""
        return self.token_events > 0 and not self._rest

    def feed(self, data: bytes) -> bytes:
        """Take what arrived; return what the client gets now: whole events, as they came."""
        if self._rest:
            data = self._rest + data
        end = data.rfind(b"\n\n") + 2
        whole = data[:end]
        if _only_tokens(whole) and (self.token_events or _ROLE not in whole):
            self.token_events += whole.count(b"\n\ndata:") + 1
            self._rest = data[end:]
            return whole
        passed, start = [], 0
        for match in _EVENT_END.finditer(data):
            event = data[start : match.end()]
            start = match.end()
            passed.append(self._read(event))
        self._rest = data[start:]
        return b"".join(passed)

    def _read(self, event: bytes) -> bytes:
        head = _HEAD.match(event)
        if head is None:
            return event
        payload = event[head.end() :].rstrip()
        if head[1]:
            return self._read_named(head[1], event, head[0], payload)
        if payload == b"[DONE]":
            self.done = True
            return event
        if payload.startswith(b'{"error"'):
            self.error = self.error or payload
            return event
        if _USAGE in payload and not (payload.endswith(_NO_USAGE) and payload.count(_USAGE) == 1):
            return self._read_usage(event, payload)
        self._count(payload)
        return event

    def _count(self, payload: bytes) -> None:
        """Note a chunk of output, which one that only says whose turn it is, before all output, is not."""
        if self.token_events or not (_ROLE in payload and _only_a_role(payload)):
            self.token_events += 1

    def _read_usage(self, event: bytes, payload: bytes) -> bytes:
        body = _object(payload)
        if body is None or not given(body, "usage"):
            self._count(payload)
            return event
        self._note_usage(body)
        choices = body.get("choices", _NO_CHOICES)
        if bytes(choices) != _NO_CHOICES and decoded(choices):
            self._count(payload)
        elif self.hides_usage:
            return b""
        return b"data: " + msgspec.json.encode(with_cached_tokens(body, self.cached_tokens)) + b"\n\n"

    def _read_named(self, name: bytes, event: bytes, head: bytes, payload: bytes) -> bytes:
        self.done = self.done or name in _LAST
        if name in _FAILED:
            self.error, self.done = self.error or payload, True
        if name not in _WITH_USAGE:
            self.token_events += name.endswith(b"delta")
            return event
        body = _object(payload)
        if body is None:
            return event
        for part in ("response", "message"):
            inner = _object(body[part]) if part in body else None
            if inner is not None:
                self._note_usage(inner)
                body[part] = Raw(_for_client(inner, self.cached_tokens))
        self._note_usage(body)
        return head + msgspec.json.encode(with_cached_tokens(body, self.cached_tokens)) + b"\n\n"

    def _note_usage(self, body: Body) -> None:
        usage = read_usage(decoded(body["usage"])) if "usage" in body else Usage()
        if usage.prompt_tokens is not None:
            self.prompt_tokens = usage.prompt_tokens
        if usage.output_tokens is not None:
            self.output_tokens = usage.output_tokens


def _only_tokens(data: bytes) -> bool:
    """Whether these are surely whole events of output: nearly all of a stream, seen without parsing any."""
    return (
        data.startswith(b"data: {")
        and data.endswith(b"}\n\n")
        and b'"error"' not in data
        and b"[DONE]" not in data
        and b"\r" not in data
        and data.count(b'"usage":') == data.count(b'"usage":null')
    )


class _Choice(msgspec.Struct):
    delta: dict[str, Any]
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice]


def _only_a_role(payload: bytes) -> bool:
    """Whether this is a chunk with which a chat begins, before its first token."""
    try:
        choices = msgspec.json.decode(payload, type=_Chunk).choices
    except JSON_ERRORS:
        return False
    return not any(
        choice.finish_reason or any(value for field, value in choice.delta.items() if field != "role")
        for choice in choices
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole (not streamed) answer for the client."""

    body: bytes
    prompt_tokens: int | None = None
    output_tokens: int | None = None


def read_answer(data: bytes, cached_tokens: int | None) -> Answer:
    """A decode worker's answer, with the prefill leg's cached tokens and without transfer parameters."""
    body = _object(data)
    if body is None:
        return Answer(data)
    usage = read_usage(decoded(body["usage"])) if "usage" in body else Usage()
    return Answer(_for_client(body, cached_tokens), usage.prompt_tokens, usage.output_tokens)


def with_cached_tokens(body: Body, cached_tokens: int | None) -> Body:
    """The answer with `cached_tokens` of the prefill leg in its usage, where the usage tells them."""
    usage = decoded(body["usage"]) if cached_tokens is not None and "usage" in body else None
    if cached_tokens is None or not isinstance(usage, dict):
        return body
    set_cached_tokens(usage, cached_tokens)
    return {**body, "usage": Raw(msgspec.json.encode(usage))}


def _for_client(answer: Body, cached_tokens: int | None) -> bytes:
    answer = with_cached_tokens(answer, cached_tokens)
    if given(answer, "kv_transfer_params"):
        answer["kv_transfer_params"] = Raw(b"null")
    return msgspec.json.encode(answer)


def _object(data: bytes | Raw) -> Body | None:
    try:
        return msgspec.json.decode(data, type=Body)
    except JSON_ERRORS:
        return None
