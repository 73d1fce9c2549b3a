"""The token counts of an answer, in the three forms in which vLLM's APIs write them.

completions, chat: {prompt_tokens, completion_tokens, prompt_tokens_details: {cached_tokens}}
responses:         {input_tokens, output_tokens, input_tokens_details: {cached_tokens}}
messages:          {input_tokens, output_tokens, cache_read_input_tokens}, where input_tokens leaves out what
                   came from a cache; without cache fields the engine does not tell.
"""

from dataclasses import dataclass
from typing import Any

MOST_TOKENS = 2**31 - 1
"""More is a fault of the engine, as less than none is."""

_CACHED, _CREATED = "cache_read_input_tokens", "cache_creation_input_tokens"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens; None where the answer does not say."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None


def read_usage(usage: object) -> Usage:
    """Read the usage of an answer or event; anything that is none says nothing."""
    if not isinstance(usage, dict):
        return Usage()
    prompt, details = _integer(usage.get("prompt_tokens", usage.get("input_tokens"))), _details(usage)
    output = _integer(usage.get("completion_tokens", usage.get("output_tokens")))
    if details is not None:
        return Usage(prompt, output, _integer(details.get("cached_tokens")))
    cached = _integer(usage.get(_CACHED))
    if prompt is not None and _CREATED in usage:
        prompt += _integer(usage[_CREATED]) or 0
    return Usage(prompt if prompt is None else prompt + (cached or 0), output, cached)


def set_cached_tokens(usage: dict[str, Any], cached_tokens: int) -> None:
    """Put the prefill leg's cached tokens into a usage that tells them."""
    details = _details(usage)
    if details is not None:
        details["cached_tokens"] = cached_tokens
    elif _integer(usage.get(_CACHED)) is not None and _integer(usage.get("input_tokens")) is not None:
        usage["input_tokens"] += usage[_CACHED] - cached_tokens
        usage[_CACHED] = cached_tokens


def _details(usage: dict[str, Any]) -> dict[str, Any] | None:
    details = usage.get("prompt_tokens_details", usage.get("input_tokens_details"))
    return details if isinstance(details, dict) else None


def _integer(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None
