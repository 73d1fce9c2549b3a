"""How a mock engine writes its words in each of vLLM's APIs: whole answers, and the events of a stream."""

import json
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


def finish(body: Json, words: list[str]) -> tuple[list[str], str]:
    """The words up to the first stop string, and why they end there."""
    stops = body.get("stop") or []
    for index, word in enumerate(words):
        if word.strip() in ([stops] if isinstance(stops, str) else stops):
            return words[:index], "stop"
    return words, "length"


def tool_call(body: Json, words: list[str]) -> Json | None:
    """A call of the first tool with the words as argument, where the client demands one."""
    if not body.get("tools") or body.get("tool_choice") != "required":
        return None
    function = {
        "name": body["tools"][0]["function"]["name"],
        "arguments": json.dumps({"text": "".join(words)}),
    }
    return {"id": "call_1", "type": "function", "function": function}


def usage(path: str, prompt: int, output: int, cached: int | None) -> Json:
    """Token counts in the API's form, with details only where `cached` is known."""
    if path == MESSAGES:
        known = {} if cached is None else {"cache_read_input_tokens": cached}
        return {"input_tokens": prompt - (cached or 0), "output_tokens": output, **known}
    details = None if cached is None else {"cached_tokens": cached}
    if path == RESPONSES:
        tokens = {"input_tokens": prompt, "output_tokens": output, "input_tokens_details": details}
        return {**tokens, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": prompt + output}
    tokens = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    return {**tokens, "prompt_tokens_details": details}


def whole(path: str, body: Json, model: str, words: list[str], counts: Json) -> Json:
    """An answer that is not streamed."""
    words, reason = finish(body, words)
    if path == RESPONSES:
        return _response(model, "completed", "".join(words), counts)
    if path == MESSAGES:
        return _message(model, [{"type": "text", "text": "".join(words)}], counts)
    prompts = body["prompt"] if _is_list(body.get("prompt")) else [None]
    choices = [
        {"index": index, "finish_reason": reason, **_said(path, body, words)}
        for index in range(len(prompts) * (body.get("n") or 1))
    ]
    kind = "chat.completion" if path == CHAT else "text_completion"
    return {"id": "x", "object": kind, "created": 1, "model": model, "choices": choices, "usage": counts}


def _said(path: str, body: Json, words: list[str]) -> Json:
    tokens = [{"token": word, "logprob": -0.5, "bytes": None, "top_logprobs": []} for word in words]
    if path != CHAT:
        probabilities = (
            {"tokens": words, "token_logprobs": [-0.5] * len(words)} if body.get("logprobs") else None
        )
        return {"text": "".join(words), "logprobs": probabilities}
    message: Json = {"role": "assistant", "content": "".join(words)}
    if call := tool_call(body, words):
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return {"message": message, "logprobs": {"content": tokens} if body.get("logprobs") else None}


def events(path: str, body: Json, model: str, words: list[str], counts: Json) -> Iterator[tuple[bool, bytes]]:
    """The events of a stream up to [DONE] or the API's last one, and whether each carries output."""
    words, reason = finish(body, words)
    if path == RESPONSES:
        return _response_events(model, words, counts)
    if path == MESSAGES:
        return _message_events(model, words, counts)
    return _chunks(path, body, model, words, reason, counts)


def _chunks(
    path: str, body: Json, model: str, words: list[str], reason: str, counts: Json
) -> Iterator[tuple[bool, bytes]]:
    kind = "chat.completion.chunk" if path == CHAT else "text_completion"
    head = {"id": "x", "object": kind, "created": 1, "model": model}
    for word in words:
        for index in range(body.get("n") or 1):
            said = {"delta": {"content": word}} if path == CHAT else {"text": word}
            yield True, _data({**head, "choices": [{"index": index, "finish_reason": None, **said}]})
    if reason == "stop":
        ended: Json = {"index": 0, "finish_reason": reason} | (
            {"delta": {}} if path == CHAT else {"text": ""}
        )
        yield False, _data({**head, "choices": [ended]})
    if (body.get("stream_options") or {}).get("include_usage"):
        yield False, _data({**head, "choices": [], "usage": counts})
    yield False, b"data: [DONE]\n\n"


def _response_events(model: str, words: list[str], counts: Json) -> Iterator[tuple[bool, bytes]]:
    started = _response(model, "in_progress", "", None)
    yield False, _named({"type": "response.created", "response": started, "sequence_number": 0})
    for number, word in enumerate(words, 1):
        place = {"item_id": "msg_1", "output_index": 0, "content_index": 0, "logprobs": []}
        event = {"type": "response.output_text.delta", "delta": word, "sequence_number": number}
        yield True, _named({**event, **place})
    done = _response(model, "completed", "".join(words), counts)
    yield False, _named({"type": "response.completed", "response": done, "sequence_number": len(words) + 1})


def _message_events(model: str, words: list[str], counts: Json) -> Iterator[tuple[bool, bytes]]:
    started = {**counts, "output_tokens": 0}
    yield False, _named({"type": "message_start", "message": _message(model, [], started)})
    block = {"type": "text", "text": ""}
    yield False, _named({"type": "content_block_start", "index": 0, "content_block": block})
    for word in words:
        delta = {"type": "text_delta", "text": word}
        yield True, _named({"type": "content_block_delta", "index": 0, "delta": delta})
    yield False, _named({"type": "content_block_stop", "index": 0})
    ended = {"stop_reason": "max_tokens", "stop_sequence": None}
    yield False, _named({"type": "message_delta", "delta": ended, "usage": counts})
    yield False, _named({"type": "message_stop"})


def _response(model: str, status: str, text: str, counts: Json | None) -> Json:
    part = {"type": "output_text", "text": text, "annotations": []}
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": status,
        "model": model,
        "output": [message] if status == "completed" else [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": counts,
    }


def _message(model: str, content: list[Json], counts: Json) -> Json:
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": content}
    return {**head, "stop_reason": "max_tokens", "stop_sequence": None, "usage": counts}


def _data(value: Json) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def _named(value: Json) -> bytes:
    return b"event: " + value["type"].encode() + b"\n" + _data(value)


def _is_list(prompt: object) -> bool:
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], str | list)
