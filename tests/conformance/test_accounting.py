"""In-flight counts: held from the choice of a worker to the last byte, then given back once."""

import asyncio

import pytest

from support.stack import COMPLETIONS, Stack, stack

PROMPT = {"prompt": "hello world", "max_tokens": 4}


async def in_flight(s: Stack, role: str) -> float:
    names = [f"{role[0]}{index}" for index in range(len(getattr(s, role)))]
    return sum([await s.metric("eldr_in_flight_requests", role=role, worker=name) for name in names])


async def test_a_stream_counts_until_its_last_byte_not_its_headers() -> None:
    async with stack() as s:
        s.decode[0].faults.chunk_delay_s = 0.1
        async with s.http.post(s.url + COMPLETIONS, json={**PROMPT, "stream": True}) as answer:
            await answer.content.readany()
            assert (await in_flight(s, "prefill"), await in_flight(s, "decode")) == (0, 1)
            await answer.content.readany()
            assert await in_flight(s, "decode") == 1
            await answer.read()
        await s.settled()


async def test_a_prefill_counts_until_its_answer() -> None:
    async with stack() as s:
        s.prefill[0].faults.delay_s = 0.2
        request = asyncio.create_task(s.post(**PROMPT))
        while not s.prefill[0].running:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert (await in_flight(s, "prefill"), await in_flight(s, "decode")) == (1, 0)
        assert (await request).status == 200
        await s.settled()


@pytest.mark.parametrize("policy", ["jsq", "locality_band", "p2c"])
async def test_a_busy_worker_gets_less(policy: str) -> None:
    async with stack(policy=policy) as s:
        s.decode[0].faults.delay_s = 0.5
        slow = asyncio.create_task(s.post(**PROMPT))
        while not (s.decode[0].running or slow.done()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        if not slow.done():  # p2c may have taken d1 first
            workers = [(await s.post(**PROMPT)).decode_worker for _ in range(4)]
            assert workers == ["d1"] * 4
        await slow
        await s.settled()


async def test_a_retry_is_counted_on_one_worker_at_a_time() -> None:
    async with stack() as s:
        s.decode[0].faults.reset_before_answer = True
        s.decode[1].faults.delay_s = 0.2
        request = asyncio.create_task(s.post(**PROMPT))
        while not s.decode[1].running:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert await in_flight(s, "decode") == 1
        assert (await request).decode_worker == "d1"
        await s.settled()
