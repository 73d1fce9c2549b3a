"""When a worker is taken out of traffic by what its requests showed, and how it comes back."""

import asyncio
from typing import Any

import pytest

from eldr.clock import VirtualClock
from support.profiles import domain_profile
from support.stack import COMPLETIONS, Stack, stack
from support.waiting import HANG_S, until, until_running

PROMPT = {"prompt": "hello world", "max_tokens": 4}
SHORT = {"breaker": {"open_s": 0.2}}
LONG = {"breaker": {"open_s": 60, "longest_open_s": 60}}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    """The clock of the router and its breakers, which only the test moves."""
    clock = VirtualClock()
    monkeypatch.setattr("eldr.proxy.running.MonotonicClock", lambda: clock)
    return clock


async def state(s: Stack, worker: str = "d0") -> float:
    return await s.metric("eldr_worker_breaker_state", worker=worker)


async def ask(s: Stack, count: int, **more: Any) -> list[int]:
    return [(await s.post(**PROMPT, **more)).status for _ in range(count)]


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429, 503])
async def test_4xx_429_and_503_never_open_the_breaker_and_are_no_ill_health(status: int) -> None:
    async with stack(prefill=1, decode=1, health_interval_s=0.05, **LONG) as s:
        for engine in (s.prefill[0], s.decode[0]):
            engine.faults.status = (status, b"{}", "application/json")
            assert await ask(s, 6) == [status] * 6
            engine.faults.status = None
        assert await state(s, "p0") == await state(s, "d0") == 0
        assert await s.metric("eldr_worker_up", worker="p0") == 1
        assert await s.metric("eldr_worker_up", worker="d0") == 1
        assert await ask(s, 1) == [200]


@pytest.mark.parametrize("status", [500, 502, 504])
async def test_5xx_in_a_row_take_a_worker_out_and_the_rest_serve(status: int) -> None:
    async with stack(prefill=2, **LONG) as s:
        s.prefill[0].faults.status = (status, b"{}", "application/json")
        assert await ask(s, 6) == [status] * 3 + [200] * 3
        assert await state(s, "p0") == 2
        assert await s.metric("eldr_worker_up", worker="p0") == 0


async def test_a_prefill_worker_that_dies_with_many_kv_caches_takes_no_decode_worker_out() -> None:
    async with stack(prefill=1, **LONG) as s:
        s.prefill[0].faults.restarts = 8
        prefilled = s.prefill[0].faults.until = asyncio.Event()
        transfers = s.decode[0].faults.until = s.decode[1].faults.until = asyncio.Event()
        asked = [asyncio.create_task(s.post(**PROMPT)) for _ in range(8)]
        await until_running(s.prefill[0], count=8)
        prefilled.set()
        await until_running(*s.decode, count=8)
        transfers.set()  # and all of them fail at once
        assert [(await one).status for one in asked] == [200] * 8
        assert await s.metric("eldr_retries_total", kind="decode_kv_lost") == 8
        assert [await state(s, worker) for worker in ("d0", "d1")] == [0, 0]


async def test_a_decode_worker_that_fails_every_transfer_is_left_out_after_a_while() -> None:
    async with stack(breaker={"open_s": 0.02, "longest_open_s": 0.02}) as s:
        s.decode[0].faults.status = (500, b"{}", "application/json")
        async with asyncio.timeout(HANG_S):
            while await state(s) == 0:
                assert await ask(s, 1) == [200]  # tried again on d1


async def test_a_worker_that_dies_mid_stream_again_and_again_is_left_out() -> None:
    async with stack(**LONG) as s:
        s.decode[0].faults.die_after_chunks = 2
        workers = [(await s.post(stream=True, **PROMPT)).decode_worker for _ in range(6)]
        assert workers == ["d0"] * 3 + ["d1"] * 3
        assert await state(s) == 2


async def test_a_worker_that_hangs_is_left_out_after_three_idle_time_outs() -> None:
    async with stack(idle_timeout_s=1, **LONG) as s:
        s.decode[0].faults.hang = True
        answers = s.decode[1].faults.until = asyncio.Event()
        asked = [asyncio.create_task(s.post(**PROMPT)) for _ in range(6)]
        await until_running(*s.decode, count=6)
        answers.set()
        replies = [await one for one in asked]  # those that hung were tried again on d1
        assert [(reply.status, reply.decode_worker) for reply in replies] == [(200, "d1")] * 6
        assert (await s.post(**PROMPT)).decode_worker == "d1"
        assert len(s.decode[0].received) == 3
        assert await state(s) == 2


async def test_a_dead_worker_costs_its_streams_and_the_rest_goes_elsewhere_at_once() -> None:
    async with stack(decode=3) as s:
        s.decode[0].faults.chunk_delay_s = 60
        async with s.http.post(s.url + COMPLETIONS, json={**PROMPT, "stream": True}) as streaming:
            assert await streaming.content.readany()
            await s.decode[0].stop()
            replies = await asyncio.gather(*(s.post(**PROMPT) for _ in range(16)))
            assert b"[DONE]" not in await streaming.read()
        assert {reply.status for reply in replies} == {200}
        assert {reply.decode_worker for reply in replies} == {"d1", "d2"}
        assert await state(s) == 2
        await s.settled()


async def test_the_next_best_match_takes_a_dead_workers_requests() -> None:
    domains = domain_profile(("code", "law", "zh"))
    async with stack(decode=3, policy="locality_band", profile=domains, options={"tau": 0.1}) as s:
        assert (await s.post(prompt="law law", max_tokens=1)).decode_worker == "d1"
        await s.decode[1].stop()
        for _ in range(3):  # found dead by the first, known to be dead by the rest
            assert (await s.post(prompt="law law", max_tokens=1)).decode_worker in ("d0", "d2")
        assert (await s.post(prompt="zh", max_tokens=1)).decode_worker == "d2"
        assert await s.metric("eldr_retries_total", kind="decode_refused") == 1


async def test_half_open_tries_one_request_and_a_good_one_brings_the_worker_back(clock: VirtualClock) -> None:
    async with stack(decode=1, **SHORT) as s:
        s.decode[0].faults.status = (502, b"{}", "application/json")
        assert await ask(s, 4) == [502] * 3 + [503]
        assert len(s.decode[0].received) == 3
        clock.advance_to(0.25)
        assert await state(s) == 1
        s.decode[0].faults.status = None
        answers = s.decode[0].faults.until = asyncio.Event()
        trial = asyncio.create_task(s.post(**PROMPT))
        await until_running(s.decode[0])
        assert await ask(s, 3) == [503] * 3
        answers.set()
        assert (await trial).status == 200
        assert await state(s) == 0
        assert await ask(s, 2) == [200] * 2


async def test_a_worker_that_came_back_takes_all_requests_though_the_first_runs_long(
    clock: VirtualClock,
) -> None:
    async with stack(decode=1, health_interval_s=0.03, **SHORT) as s:
        await s.decode[0].stop()
        await until_up(s, False)
        await s.decode[0].start()
        answers = s.decode[0].faults.until = asyncio.Event()  # not streamed: nothing comes before the end
        clock.advance_to(0.25)
        await until_up(s, True)
        first = asyncio.create_task(s.post(**PROMPT))
        await until_running(s.decode[0])
        checks = s.decode[0].health_checks
        await until(lambda: s.decode[0].health_checks >= checks + 3)
        second = asyncio.create_task(s.post(**PROMPT))
        await until(lambda: s.decode[0].running == 2 or second.done())
        assert not first.done()
        answers.set()
        assert [(await one).status for one in (first, second)] == [200, 200]


async def test_a_trial_that_fails_keeps_the_worker_out_for_longer(clock: VirtualClock) -> None:
    async with stack(decode=1, **SHORT) as s:
        s.decode[0].faults.status = (502, b"{}", "application/json")
        await ask(s, 3)
        clock.advance_to(0.2)
        assert await ask(s, 2) == [502, 503]
        clock.advance_to(0.59)
        assert await state(s) == 2
        clock.advance_to(0.61)
        assert await state(s) == 1


async def test_a_client_that_leaves_a_trial_blocks_no_other_trial(clock: VirtualClock) -> None:
    async with stack(decode=1, **SHORT) as s:
        s.decode[0].faults.status = (502, b"{}", "application/json")
        await ask(s, 3)
        clock.advance_to(0.25)
        s.decode[0].faults.status, s.decode[0].faults.hang = None, True
        leaving = asyncio.create_task(s.post(**PROMPT))
        await until_running(s.decode[0])
        leaving.cancel()
        await s.settled()
        s.decode[0].faults.hang = False
        assert await ask(s, 1) == [200]


async def test_with_all_breakers_open_the_client_is_told_when_to_come_again(clock: VirtualClock) -> None:
    async with stack(**LONG) as s:
        for engine in s.decode:
            engine.faults.status = (502, b"{}", "application/json")
        assert await ask(s, 6) == [502] * 6
        clock.advance_to(10)
        reply = await s.post(**PROMPT)
        assert reply.status == 503
        assert reply.headers["Retry-After"] == "50"  # when the breakers' time is over
        assert len(s.prefill[0].received) == 6  # nothing was prefilled for nobody
        assert (await s.get("/ready")).json == {"ready": False, "missing": ["decode"], "draining": False}


async def test_a_worker_that_flaps_is_left_alone_longer_each_time(clock: VirtualClock) -> None:
    async with stack(health_interval_s=0.03, breaker={"open_s": 1}) as s:
        for open_s in (1, 2, 4):
            await s.decode[0].stop()
            await until_up(s, False)
            await s.decode[0].start()
            checks = s.decode[0].health_checks
            clock.advance_to(clock.now_s() + open_s - 0.01)
            await until(lambda: s.decode[0].health_checks >= checks + 2)  # noqa: B023
            assert await s.metric("eldr_worker_up", worker="d0") == 0
            clock.advance_to(clock.now_s() + 0.02)
            await until_up(s, True)


async def until_up(s: Stack, up: bool) -> None:
    await s.until_metric("eldr_worker_up", up, worker="d0")
