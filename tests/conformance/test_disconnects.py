"""A client that leaves: its request is cancelled on the engine at once, and nothing stays counted."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from eldr.metrics.records import read_records
from eldr.pool import Worker
from eldr.proxy.connection import Connection
from eldr.proxy.upstream import Upstream
from support.mock_engine import MockEngine
from support.raw import connected, post
from support.stack import COMPLETIONS, Stack, stack
from support.waiting import HANG_S, until, until_running

PROMPT = {"prompt": "hello world", "max_tokens": 50}


async def leave(s: Stack, engine: MockEngine, stream: bool, after_chunks: int = 0) -> None:
    """Send a request on a connection of its own; close it once `engine` works on it."""
    body = {**PROMPT, "max_tokens": 1_000, "stream": stream}
    async with aiohttp.ClientSession() as http:
        request = asyncio.create_task(http.post(s.url + COMPLETIONS, json=body))
        await until_running(engine)
        if after_chunks:
            answer = await request
            for _ in range(after_chunks):
                await answer.content.readany()
            answer.close()
        else:
            request.cancel()
    await until(lambda: not engine.running)


@pytest.mark.parametrize("stream", [False, True])
async def test_while_waiting_for_prefill(stream: bool) -> None:
    async with stack() as s:
        s.prefill[0].faults.hang = True
        await leave(s, s.prefill[0], stream)
        assert s.prefill[0].cancelled == 1
        assert not s.decode[0].received
        await s.settled()
        assert await s.metric("eldr_requests_total", outcome="cancelled") == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_while_waiting_for_the_first_token(stream: bool) -> None:
    async with stack() as s:
        s.decode[0].faults.hang = True
        await leave(s, s.decode[0], stream)
        assert s.decode[0].cancelled == 1
        assert not s.decode[1].received
        await s.settled()


async def test_between_the_legs(monkeypatch: pytest.MonkeyPatch) -> None:
    connection, reached = Upstream.connection, asyncio.Event()

    async def hangs_for_decode(self: Upstream, worker: Worker) -> Connection:
        if worker.id.startswith("d"):
            reached.set()
            await asyncio.sleep(3600)
        return await connection(self, worker)

    async with stack() as s:
        monkeypatch.setattr(Upstream, "connection", hangs_for_decode)
        asked = asyncio.create_task(s.post(**PROMPT))
        await asyncio.wait_for(reached.wait(), HANG_S)
        asked.cancel()
        await s.settled()
        assert (len(s.prefill[0].received), len(s.decode[0].received)) == (1, 0)
        assert await s.metric("eldr_requests_total", outcome="cancelled") == 1


async def test_in_the_middle_of_a_stream(tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    async with stack(records=str(records)) as s:
        s.decode[0].faults.chunk_delay_s = 0.05
        await leave(s, s.decode[0], stream=True, after_chunks=2)
        assert s.decode[0].cancelled == 1
        await s.settled()
    (record,) = read_records(records)
    assert record.outcome == "cancelled"
    assert record.ttft_s is not None
    assert record.tpot_s is None


@pytest.mark.parametrize("leaves", [False, True])
async def test_when_closing_the_connection_to_the_engine_raises(
    leaves: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    close = Connection.close

    def closes_and_raises(self: Connection) -> None:
        close(self)
        raise OSError("no such socket")

    async with stack() as s:
        s.decode[0].faults.chunk_delay_s = 0.05
        s.decode[0].faults.die_in_body = not leaves  # then the router closes it, and asks the other one
        monkeypatch.setattr(Connection, "close", closes_and_raises)
        if leaves:
            await leave(s, s.decode[0], stream=True, after_chunks=2)
        else:
            assert (await s.post(**{**PROMPT, "max_tokens": 4})).decode_worker == "d1"
        await s.settled()
        outcome = "cancelled" if leaves else "ok"
        assert await s.metric("eldr_requests_total", outcome=outcome) == 1
        assert "cannot be closed" in caplog.text
        monkeypatch.undo()


async def test_many_at_every_point_leave_nothing_behind() -> None:
    async with stack(prefill=2) as s:
        for engine in (*s.prefill, *s.decode):
            engine.faults.delay_s, engine.faults.chunk_delay_s = 0.02, 0.01

        async def one(index: int, step_s: float) -> None:
            async with aiohttp.ClientSession() as http:
                try:
                    async with asyncio.timeout(step_s * index):
                        async with http.post(
                            s.url + COMPLETIONS, json={**PROMPT, "stream": index % 2 == 0}
                        ) as answer:
                            await answer.read()
                except TimeoutError:
                    pass

        step_s = 0.003
        while await s.metric("eldr_requests_total", outcome="cancelled") == 0:
            await asyncio.gather(*(one(index, step_s) for index in range(60)))
            await s.settled()
            step_s *= 2  # on a busy machine all may have left before they were heard


async def test_closing_one_half_of_the_connection_is_leaving() -> None:
    async with stack() as s, connected(s.url) as connection:
        s.decode[0].faults.hang = True
        connection.writer.write(post(PROMPT))
        await until_running(s.decode[0])
        connection.writer.write_eof()
        assert await connection.rest() == b""
        await s.settled()
        assert s.decode[0].cancelled == 1
