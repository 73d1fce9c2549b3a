"""What a client gets that sends too much, too slowly or too early, or does not read its answer."""

import asyncio
import json
import logging
from contextlib import AsyncExitStack

import pytest

from eldr.proxy.clients import MOST_SURPLUS
from support.raw import connected, exchange, post, status_of
from support.stack import COMPLETIONS, Reply, Stack, right_text, stack
from support.waiting import until, until_running

PROMPT = {"prompt": "hello world", "max_tokens": 4}


async def faults(s: Stack, kind: str) -> float:
    return await s.metric("eldr_client_faults_total", kind=kind)


def is_told_to_wait(reply: Reply, status: int) -> bool:
    error = reply.json["error"]
    return (reply.status, error["type"], error["code"]) == (status, "overloaded", status) and (
        int(reply.headers["Retry-After"]) >= 1
    )


async def test_a_request_beyond_the_queue_is_a_429_at_once() -> None:
    async with stack(limits={"in_flight": 1, "queued": 0}) as s:
        answers = s.prefill[0].faults.until = asyncio.Event()
        first = asyncio.create_task(s.post(**PROMPT))
        await until_running(s.prefill[0])
        assert is_told_to_wait(await s.post(**PROMPT), 429)
        assert not first.done()
        answers.set()
        assert (await first).status == 200
        assert len(s.prefill[0].received) == 1
        assert await faults(s, "queue_full") == 1
        assert (await s.post(**PROMPT)).status == 200
        await s.settled()


async def test_a_request_in_the_queue_gets_its_turn_in_order() -> None:
    async with stack(limits={"in_flight": 1, "queued": 8}) as s:
        answers = s.prefill[0].faults.until = asyncio.Event()
        asked = []
        for index in range(4):
            asked.append(asyncio.create_task(s.post(prompt=f"p{index}", max_tokens=1)))
            await until_running(s.prefill[0])
            await s.until_metric("eldr_queued_requests", index)
        answers.set()
        assert [(await one).status for one in asked] == [200] * 4
        assert [request.body["prompt"] for request in s.prefill[0].received] == ["p0", "p1", "p2", "p3"]
        assert s.prefill[0].peak == 1


async def test_a_request_that_waits_too_long_in_the_queue_is_a_503() -> None:
    async with stack(limits={"in_flight": 1, "queue_timeout_s": 1}) as s:
        answers = s.prefill[0].faults.until = asyncio.Event()
        first = asyncio.create_task(s.post(**PROMPT))
        await until_running(s.prefill[0])
        second = asyncio.create_task(s.post(**PROMPT))
        await s.until_metric("eldr_queued_requests", 1)
        assert is_told_to_wait(await second, 503)
        assert await s.metric("eldr_queued_requests") == 0
        assert await faults(s, "queue_timeout") == 1
        answers.set()
        assert (await first).status == 200


async def test_a_client_that_leaves_the_queue_takes_no_turn() -> None:
    async with stack(limits={"in_flight": 1}) as s:
        answers = s.prefill[0].faults.until = asyncio.Event()
        first = asyncio.create_task(s.post(**PROMPT))
        await until_running(s.prefill[0])
        leaving = asyncio.create_task(s.post(**PROMPT))
        await s.until_metric("eldr_queued_requests", 1)
        leaving.cancel()
        await s.until_metric("eldr_queued_requests", 0)
        answers.set()
        assert (await first).status == 200
        assert (await s.post(**PROMPT)).status == 200
        assert len(s.prefill[0].received) == 2
        await s.settled()


async def test_a_stream_holds_its_turn_to_its_last_byte() -> None:
    async with stack(limits={"in_flight": 1, "queued": 0}) as s:
        rest = s.decode[0].faults.rest_until = asyncio.Event()
        async with s.http.post(s.url + COMPLETIONS, json={**PROMPT, "stream": True}) as answer:
            await answer.content.readany()
            assert (await s.post(**PROMPT)).status == 429
            rest.set()
            await answer.read()
        assert (await s.post(**PROMPT)).status == 200


async def test_a_body_over_the_limit_is_a_413_however_its_length_is_told() -> None:
    async with stack(body_limit_bytes=1000) as s:
        data = json.dumps({"prompt": "x" * 2000}).encode()
        sized = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
        chunked = (
            f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n{len(data):x}\r\n"
        )
        for head, tail in ((sized, b""), (chunked, b"\r\n0\r\n\r\n")):
            async with connected(s.url) as connection:
                connection.writer.write(head.encode() + data + tail)
                answer = await connection.reader.read(4096)
                assert status_of(answer) == 413
                assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"] == {
                    "message": "the body is larger than 1000 bytes",
                    "type": "invalid_request_error",
                    "param": None,
                    "code": 413,
                }
        assert not s.prefill[0].received
        assert await faults(s, "large_body") == 2


BIG = b"x" * 20_000
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n"
TOO_LARGE = {
    "the URL": (b"GET /" + BIG + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414, "long_url"),
    "its query": (b"GET /health?" + BIG + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414, "long_url"),
    "a header's value": (HEALTH + b"X-Big: " + BIG + b"\r\n\r\n", 431, "large_headers"),
    "a header that looks like a URL": (HEALTH + b"X-Big: /" + BIG + b"\r\n\r\n", 431, "large_headers"),
    "a header's name": (HEALTH + BIG + b": 1\r\n\r\n", 431, "large_headers"),
    "all headers together": (
        HEALTH + (b"X-A: " + b"x" * 10_000 + b"\r\n") * 9 + b"\r\n",
        431,
        "large_headers",
    ),
    "all headers of a head that never ends": (
        HEALTH + (b"X-A: " + b"x" * 10_000 + b"\r\n") * 14,
        431,
        "large_headers",
    ),
    "the number of headers": (HEALTH + b"X-A: 1\r\n" * 300 + b"\r\n", 431, "large_headers"),
}


@pytest.mark.parametrize("what", TOO_LARGE)
async def test_a_head_over_the_limit_is_refused_in_openai_form(what: str) -> None:
    sent, status, kind = TOO_LARGE[what]
    async with stack() as s:
        answer = await exchange(s.url, sent)
        assert status_of(answer) == status
        error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", status)
        assert "xxxx" not in error["message"]
        assert await faults(s, kind) == 1
        assert await faults(s, "malformed") == 0


async def test_headers_below_the_limit_pass() -> None:
    async with stack() as s:
        big = b"X-Big: " + b"x" * 10_000
        answer = await exchange(
            s.url, b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + big + b"\r\n\r\n"
        )
        assert status_of(answer) == 200


@pytest.mark.parametrize("sent", [b"", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Slow"])
async def test_headers_that_do_not_end_cost_the_client_its_connection(sent: bytes) -> None:
    async with stack(limits={"header_timeout_s": 0.5}) as s, connected(s.url) as connection:
        connection.writer.write(sent)
        assert await connection.rest() == b""
        assert await faults(s, "slow_headers") == 1


async def test_a_second_request_that_does_not_come_ends_the_connection() -> None:
    async with stack(limits={"keep_alive_s": 0.1}) as s, connected(s.url) as connection:
        connection.writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /hea")
        assert status_of(await connection.rest()) == 200


async def test_a_body_that_does_not_end_is_a_408_and_reaches_no_engine() -> None:
    async with stack(limits={"body_timeout_s": 0.1}) as s, connected(s.url) as connection:
        connection.writer.write(post(PROMPT)[:-3])
        answer = await connection.reader.read(4096)
        assert status_of(answer) == 408
        assert not s.prefill[0].received
        assert await faults(s, "slow_body") == 1


async def test_a_reader_that_stalls_is_cut_off_and_its_request_cancelled_on_the_engine() -> None:
    async with stack(decode=1, limits={"stall_timeout_s": 0.3}) as s:
        s.decode[0].big_words = 50_000
        async with connected(s.url) as connection:
            connection.writer.transport.pause_reading()
            connection.writer.write(post({"prompt": "x", "max_tokens": 1000, "stream": True}))
            await until_running(s.decode[0])
            await until(lambda: faults(s, "slow_reader"))
            await s.settled()
        assert s.decode[0].cancelled == 1
        assert s.decode[0].bytes_written < 20_000_000, "the router held back the engine, not the memory"
        assert await s.metric("eldr_requests_total", outcome="cancelled") == 1


async def test_a_reader_that_is_slow_but_reads_gets_its_whole_answer() -> None:
    async with stack(decode=1, limits={"stall_timeout_s": 5}) as s:
        s.decode[0].big_words = 20_000
        async with connected(s.url) as connection:
            connection.writer.write(post({"prompt": "x", "max_tokens": 200, "stream": True}))
            parts = []
            while part := await connection.reader.read(65536):
                parts.append(part)
                await asyncio.sleep(0.005)
        answer = b"".join(parts)
        assert b"data: [DONE]" in answer
        assert answer.count(b'"text"') == 200
        assert await faults(s, "slow_reader") == 0


async def test_a_client_that_says_expect_is_told_to_continue() -> None:
    async with stack() as s, connected(s.url) as connection:
        head, _, body = post(PROMPT, "Expect: 100-continue").partition(b"\r\n\r\n")
        connection.writer.write(head + b"\r\n\r\n")
        assert (await connection.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        connection.writer.write(body)
        assert right_text(PROMPT, 4).encode() in await connection.rest()
        assert "Expect" not in s.prefill[0].received[0].headers


async def test_a_client_that_sends_much_after_its_request_is_cut_off_and_its_request_cancelled() -> None:
    async with stack() as s:
        s.prefill[0].faults.hang = True
        async with connected(s.url) as connection:
            connection.writer.write(post(PROMPT))
            await until_running(s.prefill[0])
            connection.writer.write(BIG * 4)
            assert await connection.rest() == b""
        await s.settled()
        assert s.prefill[0].cancelled == 1
        assert await faults(s, "pipelined") == 1


async def test_a_client_that_leaves_is_noticed_whose_body_was_too_large_to_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("eldr.proxy.front.MOST_HELD_BYTES", 1_000)
    async with stack() as s:
        s.prefill[0].faults.hang = True
        async with connected(s.url) as connection:
            connection.writer.write(post({"prompt": "x" * 2_000}))  # all of it comes before it is read
            await until_running(s.prefill[0])
        await s.settled()
        assert s.prefill[0].cancelled == 1


async def test_idle_connections_make_room_for_others_the_longest_idle_first() -> None:
    async with stack(limits={"connections": 4}) as s, AsyncExitStack() as clients:
        await s.get("/health")  # keeps a connection, which is idle for the longest time
        idle = [await clients.enter_async_context(connected(s.url)) for _ in range(4)]
        idle[0].writer.write(HEALTH + b"\r\n")
        assert status_of(await idle[0].reader.readuntil(b"}")) == 200
        assert (await s.get("/ready")).status == 200
        assert await idle[1].rest() == b""
        assert await faults(s, "idle") == 2
        for kept in (idle[0], idle[2], idle[3]):
            kept.writer.write(HEALTH + b"Connection: close\r\n\r\n")
            assert status_of(await kept.rest()) == 200


async def test_a_burst_of_requests_that_is_cut_off_takes_up_no_connection() -> None:
    async with stack(limits={"connections": 1}) as s:
        async with connected(s.url) as client:
            client.writer.write((HEALTH + b"\r\n") * 3000)
            await client.rest()
        assert (await s.post(**PROMPT)).status == 200
        assert await faults(s, "pipelined") == 1


async def test_with_all_connections_busy_a_request_is_a_503_and_health_is_answered() -> None:
    async with stack(limits={"connections": 2}) as s, AsyncExitStack() as clients:
        s.prefill[0].faults.hang = True
        for count in (1, 2):
            busy = await clients.enter_async_context(connected(s.url))
            busy.writer.write(post(PROMPT))
            await until_running(s.prefill[0], count=count)
        reply = await s.post(**PROMPT)
        assert is_told_to_wait(reply, 503)
        assert reply.headers["Connection"] == "close"
        assert (await s.get("/ready")).status == 200
        assert await faults(s, "too_many_connections") == 1
        surplus = [await clients.enter_async_context(connected(s.url)) for _ in range(MOST_SURPLUS + 1)]
        assert await surplus[-1].rest() == b""
        busy.writer.transport.abort()
        surplus[0].writer.transport.abort()
        await until(lambda: s.prefill[0].running <= 1)
        assert await faults(s, "too_many_connections") == 2
        assert s.prefill[0].running == 1


@pytest.mark.parametrize(
    "header",
    [
        b"secret-key value",
        b"Authorization: Bearer secret" + BIG,
        b"Authorization: Bearer secret\x00",
        b"secret" + BIG + b": 1",
    ],
)
async def test_a_refused_request_is_one_line_in_the_log_that_quotes_nothing(
    header: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with stack() as s:
        with caplog.at_level(logging.INFO):
            answer = await exchange(s.url, HEALTH + header + b"\r\n\r\n")
        assert status_of(answer) in (400, 431)
        (line,) = [record for record in caplog.records if record.name == "eldr.proxy.front"]
        assert (line.exc_info, "\n" in line.message, "secret" in caplog.text) == (None, False, False)
        assert b"secret" not in answer
