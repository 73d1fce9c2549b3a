"""After a router restarts, engines still run what the ledger has forgotten."""

import asyncio

import numpy as np
import pytest

from eldr.config import load_config
from eldr.policy import create_policy
from eldr.proxy.profiles import Profiles
from eldr.proxy.running import running_app
from support.mock_engine import engines
from support.stack import COMPLETIONS, served, stack

PROMPT = {"prompt": "hello world", "max_tokens": 4}


@pytest.mark.parametrize("policy", ["jsq", "locality_band"])
async def test_a_restarted_router_sees_the_load_that_it_did_not_start(policy: str) -> None:
    blocks: dict[str, str] = {}
    async with engines(1, blocks) as prefill, engines(2, blocks) as decode, stack() as client:
        decode[0].foreign = 3
        for engine in decode:
            engine.faults.delay_s = 0.5
        urls = {"prefill": [prefill[0].url], "decode": [engine.url for engine in decode]}
        config, rng = load_config(None, urls), np.random.default_rng(0)
        policies = create_policy("jsq", rng=rng), create_policy(policy, rng=rng)
        async with running_app(config, Profiles(), lambda _: policies) as app, served(app, config) as url:

            async def ask() -> str:
                async with client.http.post(url + COMPLETIONS, json=PROMPT) as answer:
                    return answer.headers["x-eldr-decode-worker"]

            workers = await asyncio.gather(*(ask() for _ in range(5)))
            # 3 and 0 in flight: three go to the free one, and the rest are split.
            assert sorted(workers) == ["d0", "d1", "d1", "d1", "d1"]


async def test_engines_numbers_make_no_herd() -> None:
    async with stack() as s:
        for engine in s.decode:
            engine.faults.delay_s = 0.3
        s.decode[1].foreign = 50  # told after the start: never asked for
        replies = await asyncio.gather(*(s.post(**PROMPT) for _ in range(8)))
        assert sorted(str(reply.decode_worker) for reply in replies) == ["d0"] * 4 + ["d1"] * 4
        await s.settled()


async def test_a_worker_that_comes_back_with_the_routers_own_requests_is_not_counted_twice() -> None:
    async with stack(health_interval_s=0.03, breaker={"open_s": 0.05}) as s:
        s.decode[0].faults.chunk_delay_s = 0.3
        async with s.http.post(s.url + COMPLETIONS, json={**PROMPT, "stream": True}) as streaming:
            await streaming.content.readany()
            for up in (False, True):
                s.decode[0].healthy = up
                while await s.metric("eldr_worker_up", worker="d0") != up:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            s.decode[1].faults.delay_s = 0.3
            replies = await asyncio.gather(*(s.post(**PROMPT) for _ in range(3)))
            assert sorted(str(reply.decode_worker) for reply in replies) == ["d0", "d1", "d1"]
            await streaming.read()
        await s.settled()
