"""Why a request cannot be handed off and must run whole on one decode worker (docs/handoff.md)."""

import re

import msgspec
from msgspec import Raw

from eldr.proxy.dialects import COMPLETIONS, RESPONSES, Dialect
from eldr.proxy.fields import JSON_ERRORS, Body, given, integer, text_field, truth

_MAY_NEED_ONE_WORKER = frozenset(
    (
        *("n", "best_of", "echo", "use_beam_search", "prompt_logprobs", "prompt_embeds"),
        *("truncate_prompt_tokens", "background", "previous_response_id", "tools", "truncation"),
    )
)
"""Fields besides the prompt that `reason_for_one_worker` looks at."""

_LIST_OF_PROMPTS = re.compile(rb"\[[ \t\r\n]*[\"\[]")


def reason_for_one_worker(body: Body, dialect: Dialect = COMPLETIONS) -> str | None:
    """Why this request cannot be handed off and must run whole on one decode worker; None when it can.

    One set of transfer parameters belongs to one prompt and one sequence, and logprobs of the prompt exist
    only where the prompt is computed.
    """
    if _has_prompts(body):
        return "prompt_list"
    if body.keys().isdisjoint(_MAY_NEED_ONE_WORKER):
        return None
    if _above_one(body, "n") or _above_one(body, "best_of"):
        return "n_above_one"
    for field in ("echo", "use_beam_search"):
        if truth(body, field):
            return field
    for field in ("prompt_logprobs", "prompt_embeds"):
        if given(body, field):
            return field
    if "truncate_prompt_tokens" in body and integer(body["truncate_prompt_tokens"]) == -1:
        return "truncation"
    return _responses_reason(body) if dialect is RESPONSES else None


def _responses_reason(body: Body) -> str | None:
    """The same for what only the responses API has.

    A background request is answered before it has run; a previous response is known to one worker only; after
    a call of a tool of the engine's own, the engine would use the transfer parameters again.
    """
    if truth(body, "background"):
        return "background"
    if given(body, "previous_response_id"):
        return "previous_response_id"
    if "tools" in body and _kinds(body["tools"]) - {"function", "custom"}:
        return "engine_tools"
    return "truncation" if text_field(body, "truncation") == "auto" else None


def _has_prompts(body: Body) -> bool:
    """Are there several prompts? A list of texts or of token lists holds some, a list of token ids is one.

    They are not counted: a list of them all would take many times the memory of the body.
    """
    prompt = body.get("prompt")
    if prompt is None or _LIST_OF_PROMPTS.match(memoryview(prompt)) is None:
        return False
    try:
        msgspec.json.decode(prompt, type=tuple[Raw])
    except msgspec.ValidationError:
        return True
    return False


class _Tool(msgspec.Struct):
    type: str | None = None


def _kinds(tools: Raw) -> set[str | None]:
    """The types of tools; none where they are malformed, which the engine refuses."""
    try:
        return {tool.type for tool in msgspec.json.decode(tools, type=list[_Tool])}
    except JSON_ERRORS:
        return set()


def _above_one(body: Body, field: str) -> bool:
    return field in body and (integer(body[field]) or 1) > 1
