"""Engines that fail at random under load: no wrong text, no client left hanging, nothing left counted."""

import asyncio
import json
import random
from collections import Counter
from typing import Any

from support.mock_engine import Faults, MockEngine
from support.stack import COMPLETIONS, Stack, right_text, stack
from support.waiting import HANG_S, until

FAULTS: list[dict[str, Any]] = [
    {},
    {"delay_s": 0.05},
    {"chunk_delay_s": 0.01},
    {"reset_before_answer": True},
    {"die_after_chunks": 2},
    {"die_in_body": True},
    {"end_early": True},
    {"hang": True},
    {"no_kv_params": True},
    {"no_counts": True},
    {"status": (500, b"{}", "application/json")},
]
DURATION_S = 2.0


async def torment(engine: MockEngine, rng: random.Random) -> None:
    """Change what the engine does wrong, and now and then restart it at its address."""
    while True:
        engine.faults = Faults(**rng.choice(FAULTS))
        await asyncio.sleep(rng.uniform(0.05, 0.3))
        if rng.random() < 0.2:
            await engine.stop()
            await asyncio.sleep(rng.uniform(0, 0.2))
            await engine.start()


async def ask(s: Stack, rng: random.Random) -> str:
    """How a request ended: a status, "left", "whole" or "broken". Fails for a text that is not its own."""
    body = {"prompt": f"p{rng.random()}", "max_tokens": 4, "stream": rng.random() < 0.5}
    leaves = rng.random() < 0.1
    try:
        async with asyncio.timeout(0.03 if leaves else HANG_S):
            async with s.http.post(s.url + COMPLETIONS, json=body) as answer:
                data = await answer.read()
    except TimeoutError:
        assert leaves, "the client was left hanging"
        return "left"
    if answer.status != 200:
        return str(answer.status)
    if not body["stream"]:
        assert json.loads(data)["choices"][0]["text"] == right_text(body, 4)
        return "whole"
    events = [event.removeprefix(b"data: ") for event in data.split(b"\n\n") if event]
    texts = [json.loads(event)["choices"][0]["text"] for event in events[:-1]]
    assert right_text(body, 4).startswith("".join(texts))
    assert events[-1] == b"[DONE]" or b'"error"' in events[-1]
    assert (events[-1] == b"[DONE]") == (len(texts) == 4) or b'"error"' in events[-1]
    return "whole" if events[-1] == b"[DONE]" else "broken"


async def is_whole(s: Stack) -> bool:
    return await ask(s, random.Random(1)) == "whole"


async def test_engines_that_fail_at_random() -> None:
    rng, ends = random.Random(0), Counter[str]()
    often = {"health_interval_s": 0.05, "idle_timeout_s": 0.3, "breaker": {"longest_open_s": 1}}
    async with stack(prefill=2, decode=3, **often) as s:
        end_s = asyncio.get_running_loop().time() + DURATION_S

        async def client() -> None:
            while asyncio.get_running_loop().time() < end_s or not (ends["whole"] and set(ends) - {"whole"}):
                ends[await ask(s, rng)] += 1

        tormentors = [asyncio.create_task(torment(engine, rng)) for engine in (*s.prefill, *s.decode)]
        async with asyncio.timeout(HANG_S):
            await asyncio.gather(*(client() for _ in range(20)))
        for task in tormentors:
            task.cancel()
        await asyncio.gather(*tormentors, return_exceptions=True)
        for engine in (*s.prefill, *s.decode):
            engine.faults = Faults()
            await engine.stop()
            await engine.start()
        await s.settled()
        await until(lambda: is_whole(s))
