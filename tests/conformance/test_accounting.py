"""In-flight counts: held from the choice of a worker to the last byte, then given back once."""

import asyncio

import pytest

from support.stack import COMPLETIONS, Stack, stack
from support.waiting import until_running

PROMPT = {"prompt": "hello world", "max_tokens": 4}


async def in_flight(s: Stack, role: str) -> float:
    names = [f"{role[0]}{index}" for index in range(len(getattr(s, role)))]
    return sum([await s.metric("eldr_in_flight_requests", role=role, worker=name) for name in names])


async def test_a_stream_counts_until_its_last_byte_not_its_headers() -> None:
    async with stack() as s:
        first = s.decode[0].faults.rest_until = asyncio.Event()
        async with s.http.post(s.url + COMPLETIONS, json={**PROMPT, "stream": True}) as answer:
            await answer.content.readany()
            assert (await in_flight(s, "prefill"), await in_flight(s, "decode")) == (0, 1)
            second = s.decode[0].faults.rest_until = asyncio.Event()
            first.set()
            await answer.content.readany()
            assert await in_flight(s, "decode") == 1
            second.set()
            await answer.read()
        await s.settled()


async def test_a_prefill_counts_until_its_answer() -> None:
    async with stack() as s:
        answers = s.prefill[0].faults.until = asyncio.Event()
        request = asyncio.create_task(s.post(**PROMPT))
        await until_running(s.prefill[0])
        assert (await in_flight(s, "prefill"), await in_flight(s, "decode")) == (1, 0)
        answers.set()
        assert (await request).status == 200
        await s.settled()


@pytest.mark.parametrize("policy", ["jsq", "locality_band", "p2c"])
async def test_a_busy_worker_gets_less(policy: str) -> None:
    async with stack(policy=policy) as s:
        answers = asyncio.Event()
        for engine in s.decode:
            engine.faults.until = answers
        slow = asyncio.create_task(s.post(**PROMPT))
        await until_running(*s.decode)
        busy, free = sorted(s.decode, key=lambda engine: engine.running, reverse=True)
        free.faults.until = None
        workers = [(await s.post(**PROMPT)).decode_worker for _ in range(4)]
        assert workers == [f"d{s.decode.index(free)}"] * 4
        assert busy.running == 1
        answers.set()
        assert (await slow).decode_worker == f"d{s.decode.index(busy)}"
        await s.settled()


async def test_a_retry_is_counted_on_one_worker_at_a_time() -> None:
    async with stack() as s:
        s.decode[0].faults.reset_before_answer = True
        answers = s.decode[1].faults.until = asyncio.Event()
        request = asyncio.create_task(s.post(**PROMPT))
        await until_running(s.decode[1])
        assert await in_flight(s, "decode") == 1
        answers.set()
        assert (await request).decode_worker == "d1"
        await s.settled()
