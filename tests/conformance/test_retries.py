"""Second tries: bounded for each request and over all of them, and never with used transfer parameters."""

import asyncio
import json

import pytest

from support.mock_engine import LOAD_FAILED
from support.stack import COMPLETIONS, right_text, stack

PROMPT = {"prompt": "hello world", "max_tokens": 4}
TIGHT = {"retry": {"share": 0, "least_per_s": 0, "burst": 3}, "breaker": {"failures": 1000}}


async def test_an_outage_makes_no_retry_storm() -> None:
    async with stack(**TIGHT) as s:
        for engine in s.decode:
            engine.faults.reset_before_answer = True
        replies = await asyncio.gather(*(s.post(**PROMPT) for _ in range(20)))
        assert {reply.status for reply in replies} == {502}
        assert sum(len(engine.received) for engine in s.decode) == 20 + 3
        assert len(s.prefill[0].received) == 20 + 3
        assert await s.metric("eldr_retries_total", kind="decode_broke_off") == 3
        assert await s.metric("eldr_retries_denied_total", kind="decode_broke_off") == 17
        await s.settled()


async def test_a_refused_connection_costs_no_budget() -> None:
    async with stack(retry={"share": 0, "least_per_s": 0, "burst": 0}) as s:
        await s.decode[0].stop()
        assert (await s.post(**PROMPT)).status == 200
        assert await s.metric("eldr_retries_denied_total", kind="decode_refused") == 0


async def test_requests_fill_the_budget() -> None:
    async with stack(retry={"share": 0.5, "least_per_s": 0, "burst": 1}) as s:
        s.decode[0].faults.reset_before_answer = True
        assert [(await s.post(**PROMPT)).status for _ in range(3)] == [200, 502, 200]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prefill_worker_that_restarts_between_the_legs_is_asked_again(stream: bool) -> None:
    async with stack() as s:
        s.prefill[0].faults.restarts = 1
        reply = await s.post(stream=stream, **PROMPT)
        assert reply.status == 200
        assert all(word in reply.text for word in right_text(PROMPT, 4).split())
        used = [engine.received[0].body["kv_transfer_params"] for engine in s.decode]
        assert used[0]["remote_engine_id"] != used[1]["remote_engine_id"]
        assert await s.metric("eldr_retries_total", kind="decode_kv_lost") == 1
        assert await s.metric("eldr_requests_total", outcome="ok") == 1
        await s.settled()


async def test_a_decode_500_that_stays_is_the_clients_answer() -> None:
    async with stack() as s:
        s.prefill[0].faults.restarts = 2
        reply = await s.post(**PROMPT)
        assert (reply.status, reply.body) == (500, LOAD_FAILED)
        assert len(s.prefill[0].received) == 2
        await s.settled()


@pytest.mark.parametrize("status", [400, 429, 501, 503])
async def test_other_decode_errors_and_those_without_a_transfer_run_once(status: int) -> None:
    async with stack() as s:
        for engine in s.decode:
            engine.faults.status = (status, b"{}", "application/json")
        assert (await s.post(**PROMPT)).status == status
        for engine in s.decode:
            engine.faults.status = (500, b"{}", "application/json")
        assert (await s.post(n=2, **PROMPT)).status == 500
        assert sum(len(engine.received) for engine in s.decode) == 2


async def test_without_budget_the_engines_own_error_comes_back() -> None:
    async with stack(retry={"share": 0, "least_per_s": 0, "burst": 0}) as s:
        s.prefill[0].faults.restarts = 1
        reply = await s.post(**PROMPT)
        assert (reply.status, reply.body) == (500, LOAD_FAILED)
        assert await s.metric("eldr_retries_denied_total", kind="decode_kv_lost") == 1


async def test_a_decode_worker_that_hangs_in_mid_stream_ends_with_an_error_event() -> None:
    async with stack(decode=1, idle_timeout_s=1) as s:
        s.decode[0].faults.rest_until = asyncio.Event()
        async with s.http.post(s.url + COMPLETIONS, json={**PROMPT, "stream": True}) as answer:
            first = await answer.content.readany()
            assert b'"text"' in first
            rest = await answer.read()
        assert b"[DONE]" not in rest
        last = (first + rest).split(b"\n\n")[-2].removeprefix(b"data: ")
        assert json.loads(last)["error"]["type"] == "upstream_error"
        assert await s.metric("eldr_upstream_errors_total", worker="d0", kind="mid_stream") == 1
        assert await s.metric("eldr_requests_total", outcome="broken") == 1
        await s.settled()
