"""What a client sees when an engine answers with an error, refuses, or breaks off before any output."""

from typing import Any

import pytest

from support.mock_engine import LOAD_FAILED
from support.stack import CHAT, COMPLETIONS, Stack, right_text, stack

PROMPT = {"prompt": "hello world", "max_tokens": 4}
BAD = (400, b'{"error": {"message":"too long",  "code":400}}', "application/json; charset=utf-8")
STREAMS = pytest.mark.parametrize("stream", [False, True])


async def right(s: Stack, stream: bool = False) -> bool:
    reply = await s.post(stream=stream, **PROMPT)
    words = right_text(PROMPT, 4).split()
    return reply.status == 200 and all(word in reply.text for word in words) and "WRONG" not in reply.text


@STREAMS
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_a_prefill_400_comes_back_as_it_is_once_and_decode_is_never_called(
    path: str, stream: bool
) -> None:
    async with stack() as s:
        s.prefill[0].faults.status = BAD
        body: dict[str, Any] = {"messages": []} if path == CHAT else PROMPT
        reply = await s.post(path, stream=stream, **body)
        assert (reply.status, reply.body, reply.headers["Content-Type"]) == BAD
        assert len(s.prefill[0].received) == 1
        assert not s.decode[0].received
        assert not s.decode[1].received
        assert await s.metric("eldr_requests_total", outcome="refused") == 1
        await s.settled()


@pytest.mark.parametrize("status", [401, 404, 422, 429, 500, 503])
async def test_a_prefill_error_is_not_turned_into_a_prefill_on_the_decode_worker(status: int) -> None:
    async with stack() as s:
        s.prefill[0].faults.status = (status, b"no", "text/plain")
        reply = await s.post(**PROMPT)
        assert (reply.status, reply.text, reply.headers["Content-Type"]) == (status, "no", "text/plain")
        assert not s.decode[0].received
        assert await s.metric("eldr_worker_up", worker="p0") == 1
        s.prefill[0].faults.status = None
        assert await right(s)


@STREAMS
async def test_a_decode_error_keeps_its_status_and_body_also_with_stream(stream: bool) -> None:
    async with stack() as s:
        for engine in s.decode:
            engine.faults.status = BAD
        reply = await s.post(stream=stream, **PROMPT)
        assert (reply.status, reply.body, reply.headers["Content-Type"]) == BAD
        assert len(s.prefill[0].received) == 1
        assert len(s.decode[0].received) + len(s.decode[1].received) == 1
        assert reply.decode_worker == "d0"
        await s.settled()


async def test_a_stream_that_begins_with_an_error_is_an_answer_of_that_status() -> None:
    async with stack(decode=1) as s:
        s.decode[0].faults.error_event_at = 0
        reply = await s.post(stream=True, **PROMPT)
        assert (reply.status, reply.body) == (500, LOAD_FAILED)
        assert reply.headers["Content-Type"] == "application/json"
        await s.settled()


@STREAMS
async def test_a_decode_worker_that_refuses_is_passed_over_and_the_cache_still_used(stream: bool) -> None:
    async with stack() as s:
        await s.decode[0].stop()
        assert await right(s, stream)
        assert len(s.prefill[0].received) == 1
        assert len(s.decode[1].received) == 1
        assert "kv_transfer_params" in s.decode[1].received[0].body
        assert await s.metric("eldr_upstream_errors_total", worker="d0", kind="refused") == 1
        assert await s.metric("eldr_worker_up", worker="d0") == 0
        await s.settled()


async def test_a_prefill_worker_that_refuses_is_passed_over() -> None:
    async with stack(prefill=2) as s:
        await s.prefill[0].stop()
        assert await right(s)
        assert await right(s)
        assert await s.metric("eldr_retries_total", kind="prefill_refused") == 1
        await s.settled()


@STREAMS
@pytest.mark.parametrize("fault", ["reset_before_answer", "die_in_body"])
async def test_a_decode_failure_before_output_runs_prefill_again_with_fresh_parameters(
    fault: str, stream: bool
) -> None:
    async with stack() as s:
        setattr(s.decode[0].faults, fault, True)
        assert await right(s, stream)
        assert len(s.prefill[0].received) == 2
        used = [s.decode[index].received[0].body["kv_transfer_params"] for index in range(2)]
        assert used[0]["remote_request_id"] != used[1]["remote_request_id"]
        assert await s.metric("eldr_retries_total", kind="decode_broke_off") == 1
        await s.settled()


@STREAMS
async def test_after_one_retry_the_client_gets_a_502(stream: bool) -> None:
    async with stack(decode=3) as s:
        for engine in s.decode:
            engine.faults.reset_before_answer = True
        reply = await s.post(stream=stream, **PROMPT)
        assert reply.status == 502
        assert reply.json["error"]["type"] == "upstream_error"
        assert "127.0.0.1" not in reply.text
        assert [len(engine.received) for engine in s.decode] == [1, 1, 0]
        assert len(s.prefill[0].received) == 2
        await s.settled()


async def test_a_single_decode_worker_is_tried_again() -> None:
    async with stack(decode=1) as s:
        s.decode[0].faults.reset_before_answer = True
        assert (await s.post(**PROMPT)).status == 502
        assert len(s.decode[0].received) == 2
        await s.settled()


@pytest.mark.parametrize("fault", ["reset_before_answer", "die_in_body"])
async def test_a_prompt_that_kills_a_prefill_worker_is_not_carried_to_the_next(fault: str) -> None:
    async with stack(prefill=2) as s:
        for engine in s.prefill:
            setattr(engine.faults, fault, True)
        reply = await s.post(**PROMPT)
        assert reply.status == 502
        assert [len(engine.received) for engine in s.prefill] == [1, 0]
        assert await s.metric("eldr_upstream_errors_total", role="prefill", kind="broke_off") == 1
        await s.settled()


async def test_a_prefill_answer_that_cannot_be_read_is_a_502() -> None:
    async with stack() as s:
        s.prefill[0].faults.status = (200, b"<html>", "text/html")
        assert (await s.post(**PROMPT)).status == 502
        assert not s.decode[0].received
        await s.settled()


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_worker_that_hangs_is_given_up_after_its_idle_time(role: str) -> None:
    async with stack(decode=1, idle_timeout_s=1) as s:
        getattr(s, role)[0].faults.hang = True
        assert (await s.post(**PROMPT)).status == 502
        await s.settled()


async def test_idle_time_is_counted_between_chunks_not_over_the_stream() -> None:
    async with stack(idle_timeout_s=1) as s:
        s.decode[0].faults.chunk_delay_s = 0.3
        assert await right(s, stream=True)


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_with_all_workers_of_a_role_down_the_client_is_told_when_to_come_again(role: str) -> None:
    async with stack(health_interval_s=1800) as s:
        for engine in getattr(s, role):
            await engine.stop()
        for _ in range(2):  # found down by this request, and known to be down
            reply = await s.post(**PROMPT)
            assert reply.status == 503
            assert reply.headers["Retry-After"] == "1800"  # when it will be checked again
            assert reply.json["error"]["type"] == "no_worker_available"
        assert len(s.prefill[0].received) == (1 if role == "decode" else 0)
        assert (await s.get("/ready")).json == {"ready": False, "missing": [role], "draining": False}
        assert (await s.get("/health")).status == 200
        await s.settled()


async def test_a_prefill_worker_restarted_at_its_address_is_used_with_its_new_engine_id() -> None:
    async with stack() as s:
        assert await right(s)
        await s.prefill[0].stop()
        await s.prefill[0].start()
        assert await right(s)
        ids = [request.body["kv_transfer_params"]["remote_engine_id"] for request in s.decode[0].received]
        assert ids[0] != ids[1]
