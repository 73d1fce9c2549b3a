"""/v1/messages, /v1/responses and the paths that one worker answers, as clients see them on the wire."""

import json
from typing import Any

import pytest

from support.stack import Stack, right_text, stack

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
ASK: dict[str, dict[str, Any]] = {
    MESSAGES: {"messages": [{"role": "user", "content": "a law text"}], "max_tokens": 4},
    RESPONSES: {"input": "a law text", "max_output_tokens": 4},
}
BOTH = pytest.mark.parametrize("path", ASK)


def named_events(data: bytes) -> list[tuple[str, dict[str, Any]]]:
    events = [event.split("\n", 1) for event in data.decode().split("\n\n") if event]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in events]


def text_of(path: str, answer: dict[str, Any]) -> str:
    return answer["content"][0]["text"] if path == MESSAGES else answer["output"][0]["content"][0]["text"]


def right(path: str) -> str:
    body = ASK[path]
    return right_text({"prompt": body["input"]} if path == RESPONSES else body, 4)


async def told(s: Stack, path: str) -> list[tuple[str, dict[str, Any]]]:
    reply = await s.post(path, **ASK[path], stream=True)
    assert (reply.status, reply.headers["Content-Type"]) == (200, "text/event-stream; charset=utf-8")
    return named_events(reply.body)


@BOTH
async def test_a_whole_answer_is_handed_off_with_usage_as_the_prefill_worker_saw_it(path: str) -> None:
    async with stack() as s:
        s.prefill[0].cached_tokens, s.decode[0].cached_tokens = 1, 3
        reply = await s.post(path, **ASK[path])
        assert text_of(path, reply.json) == right(path)
        used = reply.json["usage"]
        cached = used.get("cache_read_input_tokens") or used.get("input_tokens_details", {})["cached_tokens"]
        prompt = used["input_tokens"] + (cached if path == MESSAGES else 0)
        assert (cached, prompt, used["output_tokens"]) == (1, 6 if path == MESSAGES else 3, 4)
        assert reply.json["kv_transfer_params"] is None
        assert "kv_transfer_params" in s.decode[0].received[0].body
        await s.settled()


@BOTH
async def test_a_stream_passes_event_by_event_and_ends_with_its_last_event(path: str) -> None:
    async with stack() as s:
        events = await told(s, path)
        words = [
            event["delta"] for name, event in events if name.endswith("_delta") or name.endswith(".delta")
        ]
        words = [word if path == RESPONSES else word.get("text", "") for word in words]
        assert "".join(words) == right(path)
        assert events[-1][0] == ("message_stop" if path == MESSAGES else "response.completed")
        assert await s.metric("eldr_requests_total", outcome="ok") == 1
        assert await s.metric("eldr_inter_token_latency_seconds_count") <= 3
        assert await s.metric("eldr_request_time_per_output_token_seconds_count") == 1
        assert "stream_options" not in s.decode[0].received[0].body
        await s.settled()


async def test_the_usage_of_a_message_stream_leaves_out_what_was_pulled() -> None:
    async with stack() as s:
        s.prefill[0].cached_tokens, s.decode[0].cached_tokens = 1, 3
        events = dict(await told(s, MESSAGES))
        for used in (events["message_start"]["message"]["usage"], events["message_delta"]["usage"]):
            assert (used["input_tokens"], used["cache_read_input_tokens"]) == (5, 1)


@BOTH
@pytest.mark.parametrize("fault", [{"die_after_chunks": 2}, {"end_early": True}])
async def test_a_stream_that_breaks_ends_with_an_error_event(path: str, fault: dict[str, Any]) -> None:
    async with stack(decode=1) as s:
        for name, value in fault.items():
            setattr(s.decode[0].faults, name, value)
        name, event = (await told(s, path))[-1]
        assert (name, event["type"], event["error"]["code"]) == ("error", "error", 502)
        assert await s.metric("eldr_requests_total", outcome="broken") == 1
        await s.settled()


@BOTH
async def test_the_prefill_leg_makes_one_token_and_stores_nothing(path: str) -> None:
    async with stack() as s:
        await s.post(path, **ASK[path], stream=True, store=True, request_id="mine")
        prefill, decode = s.prefill[0].received[0].body, s.decode[0].received[0].body
        limit = "max_tokens" if path == MESSAGES else "max_output_tokens"
        assert (prefill[limit], decode[limit], prefill["stream"]) == (1, 4, False)
        assert (prefill["store"], decode["store"]) == (path == MESSAGES, True)
        assert ("request_id" in decode) == (path == MESSAGES)


async def test_a_message_without_its_limit_is_left_to_the_engine_to_refuse() -> None:
    async with stack() as s:
        await s.post(MESSAGES, messages=[])
        assert "max_tokens" not in s.prefill[0].received[0].body


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"background": True}, "background"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"tools": [{"type": "code_interpreter"}]}, "engine_tools"),
        ({"truncation": "auto"}, "truncation"),
    ],
)
async def test_a_response_that_cannot_be_handed_off_runs_on_one_worker(
    extra: dict[str, Any], reason: str
) -> None:
    async with stack() as s:
        reply = await s.post(RESPONSES, **ASK[RESPONSES], **extra)
        assert text_of(RESPONSES, reply.json) == right(RESPONSES)
        assert not s.prefill[0].received
        assert await s.metric("eldr_fallbacks_total", reason=reason) == 1


async def test_tools_of_the_clients_own_are_handed_off() -> None:
    async with stack() as s:
        await s.post(RESPONSES, **ASK[RESPONSES], tools=[{"type": "function", "name": "f"}])
        assert len(s.prefill[0].received) == 1


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/v1/embeddings", "/v1/messages/count_tokens"])
async def test_what_one_worker_answers_goes_to_the_next_when_one_is_gone(path: str) -> None:
    async with stack(prefill=2) as s:
        await s.prefill[0].stop()
        body = {"prompt": "x", "kv_transfer_params": {"remote_host": "evil"}}
        reply = await s.post(path, headers={"X-data-parallel-rank": "1"}, **body)
        assert reply.status == 200
        assert reply.headers["x-eldr-prefill-worker"] == "p1"
        (received,) = s.prefill[1].received
        assert (received.path, received.body) == (path, {"prompt": "x"})
        assert "X-data-parallel-rank" not in received.headers
        await s.settled()


async def test_an_error_of_the_one_worker_comes_back_as_it_is() -> None:
    async with stack() as s:
        s.prefill[0].faults.status = (404, b"no such thing", "text/plain")
        reply = await s.post("/v1/embeddings", input="x")
        assert (reply.status, reply.text) == (404, "no such thing")
        assert (await s.get("/v1/embeddings")).status == 405
