"""What differs between vLLM's APIs that generate text, as data. What they share: eldr.proxy.handoff."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Dialect:
    """One API.

    limits: the fields that limit the output, the one that wins first.
    default_limit: the one that the prefill leg gets when the client set none; None where vLLM demands one.
    prefill_fields: what else the prefill leg says.
    dropped: fields that no engine gets.
    asks_for_usage: whether a stream tells its usage only when asked to (`stream_options`).
    named_events: whether the events of a stream have names.
    """

    limits: tuple[str, ...]
    default_limit: str | None
    prefill_fields: Mapping[str, Any] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    asks_for_usage: bool = False
    named_events: bool = False


COMPLETIONS = Dialect(("max_completion_tokens", "max_tokens"), "max_tokens", asks_for_usage=True)
RESPONSES = Dialect(
    ("max_output_tokens",),
    "max_output_tokens",
    prefill_fields={"store": False},  # nobody will ask the prefill worker for this response
    dropped=("request_id",),  # it becomes the engine's own id, and two that are equal are mixed up
    named_events=True,
)
MESSAGES = Dialect(("max_tokens",), None, named_events=True)

DIALECTS = {
    "/v1/completions": COMPLETIONS,
    "/v1/chat/completions": COMPLETIONS,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
}
"""The paths that are handed off from a prefill to a decode worker."""

PASSED_ON = ("/v1/embeddings", "/tokenize", "/detokenize", "/v1/messages/count_tokens")
"""The paths that one worker answers."""
