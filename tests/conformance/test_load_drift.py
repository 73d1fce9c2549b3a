"""After a router restarts, engines still run what the ledger has forgotten."""

import asyncio

import numpy as np
import pytest

from eldr.config import load_config
from eldr.policy import create_policy
from eldr.proxy.profiles import Profiles
from eldr.proxy.running import running_app
from support.mock_engine import engines
from support.stack import COMPLETIONS, Stack, served, stack
from support.waiting import until_running

PROMPT = {"prompt": "hello world", "max_tokens": 4}


async def workers_of(s: Stack, count: int) -> list[str]:
    """The decode workers of so many requests that all run at once, in order of their names."""
    before = sum(engine.running for engine in s.decode)
    answers = s.decode[0].faults.until = s.decode[1].faults.until = asyncio.Event()
    asked = [asyncio.create_task(s.post(**PROMPT)) for _ in range(count)]
    await until_running(*s.decode, count=before + count)
    answers.set()
    return sorted([str((await one).decode_worker) for one in asked])


@pytest.mark.parametrize("policy", ["jsq", "locality_band"])
async def test_a_restarted_router_sees_the_load_that_it_did_not_start(policy: str) -> None:
    blocks: dict[str, str] = {}
    async with engines(1, blocks) as prefill, engines(2, blocks) as decode, stack() as client:
        decode[0].foreign = 3
        answers = decode[0].faults.until = decode[1].faults.until = asyncio.Event()
        urls = {"prefill": [prefill[0].url], "decode": [engine.url for engine in decode]}
        config, rng = load_config(None, urls), np.random.default_rng(0)
        policies = create_policy("jsq", rng=rng), create_policy(policy, rng=rng)
        async with running_app(config, Profiles(), lambda _: policies) as app, served(app, config) as url:

            async def ask() -> str:
                async with client.http.post(url + COMPLETIONS, json=PROMPT) as answer:
                    return answer.headers["x-eldr-decode-worker"]

            asked = [asyncio.create_task(ask()) for _ in range(5)]
            await until_running(*decode, count=5)
            answers.set()
            # 3 and 0 in flight: three go to the free one, and the rest are split.
            assert sorted([await one for one in asked]) == ["d0", "d1", "d1", "d1", "d1"]


async def test_engines_numbers_make_no_herd() -> None:
    async with stack() as s:
        s.decode[1].foreign = 50  # told after the start: never asked for
        assert await workers_of(s, 8) == ["d0"] * 4 + ["d1"] * 4
        await s.settled()


async def test_a_worker_that_comes_back_with_the_routers_own_requests_is_not_counted_twice() -> None:
    async with stack(health_interval_s=0.03, breaker={"open_s": 0.05}) as s:
        rest = s.decode[0].faults.rest_until = asyncio.Event()
        async with s.http.post(s.url + COMPLETIONS, json={**PROMPT, "stream": True}) as streaming:
            await streaming.content.readany()
            for up in (False, True):
                s.decode[0].healthy = up
                await s.until_metric("eldr_worker_up", up, worker="d0")
            # A worker whose breaker is half open takes one request at a time.
            await s.until_metric("eldr_worker_breaker_state", 0, worker="d0")
            assert await workers_of(s, 4) == ["d0", "d0", "d1", "d1"]  # counted twice, it would get one
            rest.set()
            await streaming.read()
        await s.settled()
