"""What the router reads in an answer on its way through: tokens, usage, the end, errors.

An answer's text is never changed. Two things are: the cached tokens of the usage (the decode worker would
count what it pulled from the prefill worker), and a usage event that only the router had asked for.
"""

import re
from dataclasses import dataclass, field

import msgspec
from msgspec import Raw

from eldr.proxy.fields import JSON_ERRORS, Body, decoded, given

_EVENT_END = re.compile(rb"\r?\n\r?\n")
_DATA = re.compile(rb"data: ?")


@dataclass(slots=True)
class EventReader:
    """Passes whole server-sent events on, and notes what they say.

    hides_usage: drop the final usage event, which the client did not ask for.
    cached_tokens: of the prefill leg, to be put into the usage; None leaves it.
    token_events: events that carried output. error: the first error event's body.
    done: the stream ended as it should, with [DONE].
    """

    hides_usage: bool = False
    cached_tokens: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    token_events: int = 0
    error: bytes | None = None
    done: bool = False
    _rest: bytes = field(default=b"", repr=False)

    def feed(self, data: bytes) -> bytes:
        """Take what arrived; return what the client gets now: whole events, as they came."""
        data = self._rest + data
        passed, start = [], 0
        for end in _EVENT_END.finditer(data):
            event = data[start : end.end()]
            start = end.end()
            passed.append(self._read(event) if event.startswith(b"data:") else event)
        self._rest = data[start:]
        return b"".join(passed)

    def _read(self, event: bytes) -> bytes:
        payload = event[_DATA.match(event).end() :].rstrip()  # type: ignore[union-attr]
        if payload == b"[DONE]":
            self.done = True
            return event
        if payload.startswith(b'{"error"'):
            self.error = self.error or payload
            return event
        if b'"usage":' in payload:  # never inside a text, where the quotes would be escaped
            return self._read_usage(event, payload)
        self.token_events += 1
        return event

    def _read_usage(self, event: bytes, payload: bytes) -> bytes:
        body = _object(payload)
        if body is None or not given(body, "usage"):
            self.token_events += 1
            return event
        self.prompt_tokens, self.output_tokens = usage_of(body)
        if decoded(body.get("choices", Raw(b"[]"))):
            self.token_events += 1
        elif self.hides_usage:
            return b""
        return b"data: " + msgspec.json.encode(with_cached_tokens(body, self.cached_tokens)) + b"\n\n"


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
    prompt_tokens, output_tokens = usage_of(body)
    body = with_cached_tokens(body, cached_tokens)
    if given(body, "kv_transfer_params"):
        body["kv_transfer_params"] = Raw(b"null")
    return Answer(msgspec.json.encode(body), prompt_tokens, output_tokens)


def usage_of(body: Body) -> tuple[int | None, int | None]:
    """Prompt and output tokens of an answer's usage, None where they are missing."""
    usage = decoded(body["usage"]) if "usage" in body else None
    if not isinstance(usage, dict):
        return None, None
    prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens")
    return prompt if type(prompt) is int else None, output if type(output) is int else None


def with_cached_tokens(body: Body, cached_tokens: int | None) -> Body:
    """The answer with `cached_tokens` of the prefill leg in its usage, where the usage has such details."""
    usage = decoded(body["usage"]) if cached_tokens is not None and "usage" in body else None
    if not isinstance(usage, dict) or not isinstance(usage.get("prompt_tokens_details"), dict):
        return body
    usage["prompt_tokens_details"]["cached_tokens"] = cached_tokens
    return {**body, "usage": Raw(msgspec.json.encode(usage))}


def _object(data: bytes) -> Body | None:
    try:
        return msgspec.json.decode(data, type=Body)
    except JSON_ERRORS:
        return None
