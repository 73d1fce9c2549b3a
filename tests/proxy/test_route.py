"""The way of one request: prefill, hand-off, decode, stream; and what both legs get."""

import asyncio
import json
from typing import Any
from unittest.mock import Mock

import pytest

from support.stack import CHAT, COMPLETIONS, right_text, stack
from support.waiting import until_running

PROMPT = {"prompt": "hello world", "max_tokens": 6}
MESSAGES = {"messages": [{"role": "user", "content": "hello"}], "max_completion_tokens": 6}


def events(body: bytes) -> list[Any]:
    parts = [part.removeprefix(b"data: ") for part in body.split(b"\n\n") if part]
    return [part.decode() if part == b"[DONE]" else json.loads(part) for part in parts]


def streamed_text(body: bytes) -> str:
    choices = [event["choices"][0] for event in events(body)[:-1] if event.get("choices")]
    return "".join(choice.get("text") or choice["delta"]["content"] for choice in choices)


@pytest.mark.parametrize(("path", "body"), [(COMPLETIONS, PROMPT), (CHAT, MESSAGES)])
async def test_a_request_is_prefilled_once_and_decoded_from_that_cache(
    path: str, body: dict[str, Any]
) -> None:
    async with stack() as s:
        reply = await s.post(path, **body)
        choice = reply.json["choices"][0]
        assert (choice.get("text") or choice["message"]["content"]) == right_text(body, 6)
        assert [len(engine.received) for engine in (*s.prefill, *s.decode)] == [1, 1, 0]
        sent = s.decode[0].received[0].body["kv_transfer_params"]
        assert sent["do_remote_prefill"] is True
        assert "eldr" not in sent
        assert b'"big_number":12345678901234567890123' in s.decode[0].received[0].raw
        assert (reply.headers["x-eldr-prefill-worker"], reply.decode_worker) == ("p0", "d0")
        assert reply.headers["x-eldr-policy"] == "jsq"
        await s.settled()


@pytest.mark.parametrize(("path", "body"), [(COMPLETIONS, PROMPT), (CHAT, MESSAGES)])
async def test_a_stream_has_the_same_text_and_ends_with_done(path: str, body: dict[str, Any]) -> None:
    async with stack() as s:
        reply = await s.post(path, stream=True, **body)
        assert reply.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert events(reply.body)[-1] == "[DONE]"
        assert streamed_text(reply.body) == right_text(body, 6)
        assert b"usage" not in reply.body
        assert s.prefill[0].received[0].body["stream"] is False
        await s.settled()


async def test_usage_reaches_a_client_that_asked_for_it_with_the_prefill_legs_cached_tokens() -> None:
    async with stack() as s:
        s.prefill[0].cached_tokens, s.decode[0].cached_tokens = 1, 2
        body = {**PROMPT, "stream": True, "stream_options": {"include_usage": True}}
        usage = events((await s.post(**body)).body)[-2]["usage"]
        assert usage["completion_tokens"] == 6
        assert usage["prompt_tokens_details"] == {"cached_tokens": 1}
        whole = (await s.post(**PROMPT)).json["usage"]
        assert whole["prompt_tokens_details"] == {"cached_tokens": 1}


async def test_the_first_chunk_passes_at_once() -> None:
    async with stack(decode=1) as s:
        next_one = asyncio.Semaphore(0)
        s.decode[0].faults.rest_until = Mock(wait=next_one.acquire)
        body = {**PROMPT, "max_tokens": 3, "stream": True}
        async with s.http.post(s.url + COMPLETIONS, json=body) as answer:
            for _ in range(3):
                chunk = await answer.content.readany()
                assert (chunk.count(b"data: "), chunk[-2:]) == (1, b"\n\n")
                next_one.release()
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")


async def test_eight_at_once_on_two_equal_workers_split_four_and_four() -> None:
    async with stack(prefill=2, policy="locality_band") as s:
        all_run = {"prefill": asyncio.Event(), "decode": asyncio.Event()}
        for role, engines in (("prefill", s.prefill), ("decode", s.decode)):
            for engine in engines:
                engine.faults.until = all_run[role]
        posts = [asyncio.create_task(s.post(prompt=f"p{index}", max_tokens=2)) for index in range(8)]
        for role, engines in (("prefill", s.prefill), ("decode", s.decode)):
            await until_running(*engines, count=8)
            assert [engine.running for engine in engines] == [4, 4]
            all_run[role].set()
        assert [(await post).status for post in posts] == [200] * 8
        assert [len(engine.received) for engine in (*s.prefill, *s.decode)] == [4, 4, 4, 4]
        await s.settled()


async def test_engine_request_ids_are_unique_and_the_clients_comes_back() -> None:
    async with stack() as s:
        headers = {"X-Request-Id": "mine"}
        replies = await asyncio.gather(*(s.post(headers=headers, **PROMPT) for _ in range(2)))
        assert [reply.headers["X-Request-Id"] for reply in replies] == ["mine", "mine"]
        received = [request for engine in (*s.prefill, *s.decode) for request in engine.received]
        ids = {request.headers["X-Request-Id"] for request in received}
        assert len(ids) == 4
        assert "mine" not in ids


async def test_headers_pass_except_those_that_must_not() -> None:
    async with stack() as s:
        sent = {
            "Authorization": "Bearer key",
            "traceparent": "00-1-2-01",
            "X-Custom": "kept",
            "X-Data-Parallel-Rank": "3",
            "Connection": "X-Hop",
            "X-Hop": "gone",
            "TE": "trailers",
        }
        await s.post(headers=sent, **PROMPT)
        for engine in (s.prefill[0], s.decode[0]):
            got = {name.lower(): value for name, value in engine.received[0].headers.items()}
            assert got["authorization"] == "Bearer key"
            assert got["traceparent"] == "00-1-2-01"
            assert got["x-custom"] == "kept"
            assert not {"x-data-parallel-rank", "x-hop", "te"} & set(got)
            assert got["host"] == f"127.0.0.1:{engine.port}"


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": ["a", "b"], "max_tokens": 2},
        {"prompt": "p", "n": 2, "max_tokens": 2},
        {"prompt": "p", "echo": True, "max_tokens": 2},
        {"prompt": "p", "prompt_logprobs": 1, "max_tokens": 2},
    ],
)
async def test_what_cannot_be_handed_off_is_decoded_without_a_transfer(body: dict[str, Any]) -> None:
    async with stack() as s:
        reply = await s.post(**body)
        assert [choice["text"] for choice in reply.json["choices"]] == [right_text(body, 2)] * (
            2 if "n" in body or isinstance(body["prompt"], list) else 1
        )
        assert not s.prefill[0].received
        assert s.decode[0].received[0].body == body
        assert "x-eldr-prefill-worker" not in reply.headers
        reason = {"prompt": "prompt_list", "n": "n_above_one"}.get(list(body)[-2], list(body)[-2])
        assert await s.metric("eldr_fallbacks_total", reason=reason) == 1


async def test_token_ids_are_one_prompt() -> None:
    async with stack() as s:
        body = {"prompt": [1, 2, 3], "max_tokens": 2}
        assert (await s.post(**body)).json["choices"][0]["text"] == right_text(body, 2)
        assert len(s.prefill[0].received) == 1


async def test_a_clients_transfer_parameters_reach_no_engine() -> None:
    async with stack() as s:
        evil = {
            "do_remote_prefill": True,
            "remote_host": "10.0.0.1",
            "remote_engine_id": "x",
            "remote_request_id": "y",
        }
        assert (await s.post(**PROMPT, kv_transfer_params=evil)).json["choices"][0]["text"] == right_text(
            PROMPT, 6
        )
        await s.post(**PROMPT, n=2, kv_transfer_params=evil)
        for request in (*s.prefill[0].received, *s.decode[0].received):
            assert b"10.0.0.1" not in request.raw
        assert "kv_transfer_params" not in s.decode[0].received[1].body


async def test_the_label_header_routes_by_domain() -> None:
    options = {"workers": {"law": ["d1"], "code": ["d0"]}}
    async with stack(policy="domain_label", options=options) as s:
        workers = [
            (await s.post(headers={"x-eldr-label": label}, **PROMPT)).decode_worker
            for label in ("law", "code")
        ]
        assert workers == ["d1", "d0"]
