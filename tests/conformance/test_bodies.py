"""What bodies take up: counted while they are held, bounded together, given back however a request ends."""

import asyncio
import gzip
import json
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from eldr.config import load_config
from eldr.errors import ConfigError
from eldr.pool import Worker
from eldr.proxy import upstream
from eldr.proxy.body import Body
from eldr.proxy.gate import LARGE_BYTES, Gate
from eldr.proxy.handoff import MOST_FIELDS, BadRequestError, parse
from eldr.proxy.one_worker import reason_for_one_worker
from eldr.proxy.processes import Share
from eldr.proxy.request import Request
from eldr.proxy.room import SMALL_BYTES
from eldr.proxy.running import _parts
from eldr.settings_front import LimitConfig
from support.raw import connected, post, status_of
from support.stack import COMPLETIONS, Reply, Stack, right_text, stack

LARGE: dict[str, Any] = {"prompt": "word " * 30_000, "max_tokens": 3}
DATA = json.dumps(LARGE).encode()
SMALL: dict[str, Any] = {"prompt": "hello world", "max_tokens": 3}
FEW: dict[str, Any] = {"body_limit_bytes": 200_000, "limits": {"bodies_bytes": 200_000}}
"""Room for one of the large bodies."""

URLS = {"prefill": ["http://127.0.0.1:1"], "decode": ["http://127.0.0.1:2"]}


async def held(s: Stack) -> float:
    return await s.metric("eldr_held_body_bytes")


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def chunks() -> AsyncIterator[bytes]:
    for at in range(0, len(DATA), 50_000):
        yield DATA[at : at + 50_000]


WAYS: dict[str, Callable[[], dict[str, Any]]] = {
    "with its length": lambda: {"data": DATA},
    "in chunks": lambda: {"data": chunks()},
    "compressed": lambda: {
        "data": gzip.compress(DATA, mtime=0),
        "headers": {"Content-Encoding": "gzip"},
    },
}


async def send(s: Stack, way: str) -> Reply:
    async with s.http.post(s.url + COMPLETIONS, **WAYS[way]()) as answer:
        return Reply(answer.status, await answer.read(), answer.headers)


@pytest.mark.parametrize("way", WAYS)
async def test_a_body_counts_by_its_size_and_beyond_the_limit_is_a_503(way: str) -> None:
    async with stack(**FEW) as s:
        s.prefill[0].faults.until = asyncio.Event()
        first = asyncio.create_task(send(s, way))
        await until(lambda: s.prefill[0].running == 1)
        assert await held(s) == len(DATA)
        refused = await send(s, way)
        error = refused.json["error"]
        assert (refused.status, error["type"], error["code"]) == (503, "overloaded", 503)
        assert refused.headers["Retry-After"] == "1"
        assert await s.metric("eldr_client_faults_total", kind="bodies_full") == 1
        assert await held(s) == len(DATA)
        s.prefill[0].faults.until.set()
        assert (await first).json["choices"][0]["text"] == right_text(LARGE, 3)
        assert await held(s) == 0
        assert (await send(s, way)).status == 200
        assert [len(json.dumps(one.body["prompt"])) for one in s.prefill[0].received] == [150_002] * 2


async def test_small_bodies_count_and_always_find_room() -> None:
    async with stack(**FEW) as s:
        s.prefill[0].faults.until = asyncio.Event()
        requests = [asyncio.create_task(s.post(**LARGE))]
        await until(lambda: s.prefill[0].running == 1)
        small = [SMALL, SMALL, *({"prompt": "x" * (SMALL_BYTES - 100)} for _ in range(2))]
        requests += [asyncio.create_task(s.post(**body)) for body in small]
        await until(lambda: s.prefill[0].running == 5)
        assert await held(s) > FEW["limits"]["bodies_bytes"]
        s.prefill[0].faults.until.set()
        assert [(await one).status for one in requests] == [200] * 5
        assert await held(s) == 0


async def test_a_client_is_told_before_it_sends_a_body_that_there_is_no_room_for() -> None:
    async with stack(**FEW) as s, connected(s.url) as client:
        s.prefill[0].faults.until = asyncio.Event()
        first = asyncio.create_task(s.post(**LARGE))
        await until(lambda: s.prefill[0].running == 1)
        head = post(LARGE, "Expect: 100-continue").partition(b"\r\n\r\n")[0]
        client.writer.write(head + b"\r\n\r\n")
        assert status_of(await client.reader.readuntil(b"\r\n\r\n")) == 503
        s.prefill[0].faults.until.set()
        assert (await first).status == 200


async def test_a_body_that_is_announced_takes_up_only_what_has_come_of_it() -> None:
    async with stack(**FEW) as s, connected(s.url) as client:
        head, _, data = post(LARGE).partition(b"\r\n\r\n")
        client.writer.write(head + b"\r\n\r\n" + data[:1000])
        async with asyncio.timeout(20):
            while await held(s) != 1000:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert (await s.post(**LARGE)).status == 200
        client.writer.transport.abort()
        await s.settled()
        assert await held(s) == 0


async def test_what_was_held_is_given_back_however_a_request_ends() -> None:
    async with stack(decode=1, body_limit_bytes=200_000, limits={"body_timeout_s": 0.5}) as s:

        async def ends(status: int, **sent: Any) -> None:
            async with s.http.post(s.url + COMPLETIONS, **sent) as answer:
                assert answer.status == status
            assert await held(s) == 0

        await ends(400, data=b"x" * 100_000)
        await ends(400, data=DATA, headers={"Content-Encoding": "gzip"})
        await ends(400, data=gzip.compress(DATA)[:-4], headers={"Content-Encoding": "gzip"})
        await ends(413, data=gzip.compress(DATA * 2), headers={"Content-Encoding": "gzip"})
        s.prefill[0].faults.status = (500, b"{}", "application/json")
        await ends(500, data=DATA)
        s.prefill[0].faults.status = None
        s.prefill[0].faults.reset_before_answer = True
        await ends(502, data=DATA)
        s.prefill[0].faults.reset_before_answer = False
        s.decode[0].faults.reset_before_answer = True
        await ends(502, data=DATA)
        async with connected(s.url) as client:
            head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            client.writer.write(head.encode() + b"30d40\r\n" + b"x" * 100_000)
            assert status_of(await client.reader.readuntil(b"\r\n\r\n")) == 408
            assert await held(s) == 0
        async with connected(s.url) as client:
            client.writer.write(head.encode() + b"40000\r\n" + b"x" * 262_144)
            assert status_of(await client.reader.readuntil(b"\r\n\r\n")) == 413
            assert await held(s) == 0


@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_a_client_that_leaves_gives_back_what_was_held(leg: str) -> None:
    async with stack(decode=1) as s:
        engine = (s.prefill if leg == "prefill" else s.decode)[0]
        engine.faults.hang = True
        request = asyncio.create_task(s.post(**LARGE))
        await until(lambda: engine.running == 1)
        assert await held(s) == len(DATA)
        request.cancel()
        await s.settled()
        assert await held(s) == 0


async def test_a_second_try_sends_the_whole_body_again() -> None:
    async with stack(decode=1) as s:
        s.decode[0].faults.status = (500, b"{}", "application/json")
        s.decode[0].faults.times = 1
        assert (await s.post(**LARGE)).json["choices"][0]["text"] == right_text(LARGE, 3)
        assert [one.body["prompt"] for one in s.prefill[0].received] == [LARGE["prompt"]] * 2
        assert await held(s) == 0


async def test_a_worker_that_refuses_passes_the_whole_body_on() -> None:
    async with stack(prefill=2, decode=2) as s:
        await s.prefill[0].stop()
        await s.decode[0].stop()
        for _ in range(2):
            assert (await s.post(**LARGE)).json["choices"][0]["text"] == right_text(LARGE, 3)


def kept() -> int:
    """Bytes that the router's own code has allocated and not freed."""
    only = tracemalloc.Filter(True, "*/eldr/proxy/*")
    return sum(one.size for one in tracemalloc.take_snapshot().filter_traces([only]).statistics("filename"))


async def test_a_large_body_is_there_once_and_gone_with_the_first_output() -> None:
    large = {**LARGE, "prompt": "word " * 400_000, "stream": True}
    size = len(json.dumps(large))
    async with stack(decode=1) as s:
        s.prefill[0].faults.until, s.decode[0].faults.chunk_delay_s = asyncio.Event(), 60
        tracemalloc.start()
        try:
            before = kept()
            request = asyncio.create_task(s.http.post(s.url + COMPLETIONS, json=large))
            await until(lambda: s.prefill[0].running == 1)
            assert size * 0.9 < kept() - before < size * 1.2
            s.prefill[0].faults.until.set()
            async with await request as answer:
                await answer.content.readany()
                assert kept() - before < size * 0.1
                assert await held(s) == 0
        finally:
            tracemalloc.stop()
        await s.settled()


async def test_a_large_body_is_read_apart_from_the_event_loop() -> None:
    gate, threads = Gate(LimitConfig()), []
    for size in (LARGE_BYTES, LARGE_BYTES + 1):
        body = Body(size, 2 * LARGE_BYTES)
        body.feed(b"x" * size)
        request = cast(Request, SimpleNamespace(body=body))
        await gate.read(request, lambda _: threads.append(threading.current_thread()))
        assert gate.room.held_bytes == size
        body.let_go()
        body.let_go()
        assert gate.room.held_bytes == 0
    assert threads[0] is threading.current_thread() is not threads[1]


def test_several_processes_divide_the_room_and_each_has_it_for_one_body() -> None:
    def parts(processes: int, **settings: Any) -> list[int]:
        config = load_config(None, {**URLS, **settings})
        shares = [cast(Share, SimpleNamespace(row=row, processes=processes)) for row in range(processes)]
        return [_parts(config, share)[0].bodies_bytes for share in shares]

    assert sum(parts(4)) == LimitConfig().bodies_bytes
    assert parts(3, body_limit_bytes=10, limits={"bodies_bytes": 100}) == [34, 33, 33]
    assert parts(2, body_limit_bytes=80, limits={"bodies_bytes": 100}) == [80, 80]


def test_room_for_less_than_one_body_is_an_error() -> None:
    text = r"limits\.bodies_bytes: 100 is below body_limit_bytes, 200"
    with pytest.raises(ConfigError, match=text):
        load_config(None, {**URLS, "body_limit_bytes": 200, "limits": {"bodies_bytes": 100}})


HUGE_LISTS = {
    "prompts": (b'{"prompt":[' + b'"a",' * 300_000 + b'"a"]}', "prompt_list"),
    "tokens": (b'{"prompt":[' + b"1," * 300_000 + b"1]}", None),
    "a number that is a list": (b'{"n":[' + b"[]," * 600_000 + b"[]]}", None),
}


@pytest.mark.parametrize("what", HUGE_LISTS)
def test_a_body_of_many_values_takes_no_more_memory_than_its_text(what: str) -> None:
    data, reason = HUGE_LISTS[what]
    tracemalloc.start()
    try:
        assert reason_for_one_worker(parse(data)) == reason
        assert tracemalloc.get_traced_memory()[1] < 2 * len(data)
    finally:
        tracemalloc.stop()


def test_a_body_of_many_fields_is_refused() -> None:
    fields = {f"f{number}": "x" * 100 for number in range(MOST_FIELDS)}
    assert {
        name: json.loads(bytes(value)) for name, value in parse(json.dumps(fields).encode()).items()
    } == fields
    begun = json.dumps(fields).encode()[:-1]
    with pytest.raises(BadRequestError, match="more than 1000 fields"):
        parse(begun + b',"one":1,' + b"no JSON")  # it is not looked at to its end
    with pytest.raises(BadRequestError, match="more than 1000 fields"):
        parse(json.dumps({**fields, "one": 1}).encode())


@pytest.mark.parametrize("late", [True, False])
async def test_a_connection_that_takes_too_long_is_a_refusal_unless_the_router_was_late(
    late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()

    async def never(*_: object, **__: object) -> None:
        if late:
            loop.call_soon(time.sleep, 0.4)
        await asyncio.sleep(3600)

    monkeypatch.setattr(loop, "create_connection", never)
    if not late:
        monkeypatch.setattr(upstream, "LATE_S", 20)
    made = upstream.Upstream(load_config(None, {**URLS, "connect_timeout_s": 0.05}))
    error = upstream.ExhaustedError if late else upstream.RefusedError
    with pytest.raises(error):
        async with made.post(Worker("d0", "http://127.0.0.1:2"), "/v1/completions", (b"{}",), ""):
            pass
    await made.close()
