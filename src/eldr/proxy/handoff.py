"""vLLM's prefill/decode hand-off as pure functions: bodies in, bodies out, no I/O.

    client body -> parse -> prefill_leg -> [prefill worker] -> read_prefill -> decode_leg -> [decode worker]

The top-level fields of a body stay raw bytes, so unknown fields, number formats and long texts pass verbatim,
and whatever shapes the prompt is the same in both legs. The rules and why: docs/handoff.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw

from eldr.errors import UpstreamError
from eldr.proxy.dialects import COMPLETIONS, DIALECTS, Dialect
from eldr.proxy.fields import JSON_ERRORS, Body, check_text, decoded, given, integer, truth
from eldr.proxy.room import SMALL_BYTES
from eldr.proxy.usage import read_usage

ENGINE_ONLY = ("kv_transfer_params", "ec_transfer_params")
"""Fields that steer an engine's transfers: they name hosts and memory, so a client must not set them."""

PREFILL_PARAMS: dict[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


MOST_FIELDS = 1000
"""At the top of a body above 64 KiB. Each takes many times the memory of its text."""

LIMITS = tuple({field: None for dialect in DIALECTS.values() for field in dialect.limits})
"""Fields that limit the output in any API, the one that wins first."""


class BadRequestError(Exception):
    """The client's body is not a JSON object; the message is for the client."""


Leg = dict[str, Any]
"""The body of a leg, whose values from the client have not been parsed."""

Parts = Sequence[bytes | memoryview]
"""A body as JSON."""


@dataclass(frozen=True, slots=True)
class PrefillAnswer:
    """What the router needs of a prefill worker's answer.

    kv_params: for the decode leg, verbatim; None when the engine gave none.
    counts: the payload of expert counts, not yet checked (see eldr.wire); None when there is none.
    """

    kv_params: Raw | None = None
    counts: object | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


def parse(data: bytes, dialect: Dialect = COMPLETIONS) -> Body:
    """The client's body without what only the router may say to an engine. Raises BadRequestError."""
    try:
        if not data.isascii():
            check_text(data)  # msgspec does not look into raw values, and what is no text fails in an engine
        body = msgspec.json.decode(data, type=Body) if len(data) <= SMALL_BYTES else _few_fields(data)
    except JSON_ERRORS as error:
        raise BadRequestError(f"the body is not a JSON object: {error}") from None
    for field in (*ENGINE_ONLY, *dialect.dropped):
        body.pop(field, None)
    if "vllm_xargs" in body:  # vLLM keeps transfer parameters among these, so they are a second way in
        body["vllm_xargs"] = _without_engine_fields(body["vllm_xargs"])
    return body


class _Name(str):
    """The name of a field that is counted."""


def _few_fields(data: bytes) -> Body:
    """A large body, which is left at the first field too many: to decode millions takes a minute."""
    left = MOST_FIELDS

    def counted(_: type, name: str) -> _Name:
        nonlocal left
        left -= 1
        if left < 0:
            raise BadRequestError(f"the body has more than {MOST_FIELDS} fields")
        return _Name(name)

    body = msgspec.json.decode(data, type=dict[_Name, Raw], dec_hook=counted)
    return {str(name): value for name, value in body.items()}


def prefill_leg(body: Body, dialect: Dialect = COMPLETIONS) -> Leg:
    """The body that computes the prompt, keeps its KV cache for a decode worker, and stops after one token.

    A field of the wrong type stays, so that the engine refuses the request before it holds anything for it.
    """
    leg: Leg = dict(body)
    for field in (*dialect.limits, "n"):
        if field in leg and (not given(body, field) or integer(body[field]) is not None):
            leg[field] = 1
    if not given(body, "min_tokens") or integer(body["min_tokens"]) is not None:
        leg.pop("min_tokens", None)
    if _stream_options(body) is not None:
        leg.pop("stream_options", None)
    if dialect.default_limit is not None and not any(field in leg for field in dialect.limits):
        leg[dialect.default_limit] = 1
    leg |= dialect.prefill_fields
    return {**leg, "stream": False, "kv_transfer_params": PREFILL_PARAMS}


def decode_leg(body: Body, kv_params: Raw | None, dialect: Dialect = COMPLETIONS) -> Leg:
    """The client's body, with the transfer parameters if there are any, and with usage when it streams."""
    leg: Leg = dict(body)
    if kv_params is not None:
        leg["kv_transfer_params"] = kv_params
    if hides_usage(body, dialect):
        options = _stream_options(body) or {}
        leg["stream_options"] = {**options, "include_usage": True, "continuous_usage_stats": False}
    return leg


def encoded(leg: Leg) -> Parts:
    """A leg's body as JSON."""
    return (msgspec.json.encode(leg),)


def encoded_without_copy(leg: Leg) -> Parts:
    """The same in parts, for a large body: what the client sent goes on from where it lies."""
    parts: list[bytes | memoryview] = []
    for name, value in leg.items():
        parts.append((b"," if parts else b"{") + msgspec.json.encode(name) + b":")
        parts.append(memoryview(value) if isinstance(value, Raw) else msgspec.json.encode(value))
    return (*parts, b"}") if parts else (b"{}",)


def streams(body: Body) -> bool:
    """Whether the client asked for server-sent events."""
    return truth(body, "stream")


def hides_usage(body: Body, dialect: Dialect = COMPLETIONS) -> bool:
    """Whether the usage of a stream is asked for by the router alone (for TPOT), and kept from the client."""
    if not (dialect.asks_for_usage and streams(body)):
        return False
    options = _stream_options(body)
    return options is not None and options.get("include_usage") in (None, False)


def max_tokens(body: Body) -> int | None:
    """The output limit that the client set; None when it set none."""
    for field in LIMITS:
        if field in body and (limit := integer(body[field])) is not None:
            return limit
    return None


def read_prefill(data: bytes) -> PrefillAnswer:
    """Read a prefill worker's answer of status 200. Raises UpstreamError when it is not a JSON object."""
    try:
        answer = msgspec.json.decode(data, type=_Answer)
    except JSON_ERRORS as error:
        raise UpstreamError(f"the prefill worker's answer cannot be read: {error}") from None
    params = dict(answer.kv_transfer_params or {})
    counts = params.pop("eldr", None)
    usage = read_usage(decoded(answer.usage))
    return PrefillAnswer(
        kv_params=Raw(msgspec.json.encode(params)) if params else None,
        counts=None if counts is None else msgspec.json.decode(counts),
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
    )


class _Answer(msgspec.Struct):
    kv_transfer_params: Body | None = None
    usage: Raw = Raw(b"null")


def _without_engine_fields(raw: Raw) -> Raw:
    try:
        fields = msgspec.json.decode(raw, type=Body)
    except JSON_ERRORS:
        return raw  # not an object: the engine refuses it
    return Raw(msgspec.json.encode({key: value for key, value in fields.items() if key not in ENGINE_ONLY}))


def _stream_options(body: Body) -> dict[str, Any] | None:
    """The client's stream_options, {} without any; None when they are not an object."""
    options = decoded(body["stream_options"]) if given(body, "stream_options") else {}
    return options if isinstance(options, dict) else None
