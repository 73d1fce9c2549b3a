"""Clients of `make chaos`: they read every byte and say how each request ended."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp

from eldr.bench.chaos_engine import word
from eldr.bench.chaos_lag import Overload

HANG_S = 60.0
"""No request takes longer unless it hangs: the slowest engine needs 20 s for the longest text, and may be
the second one that is tried. Time that the clients' own event loop lost does not count."""

HUNG, WRONG, CUT_OFF, NEEDLESS = "hung", "wrong text", "cut off", "needless 503"
VIOLATIONS = (HUNG, WRONG, CUT_OFF, NEEDLESS)
"""Ends that no failure of an engine excuses. cut off: neither [DONE] nor an error event. needless 503: none
is available, said the router, while an engine of each role had long been well."""

OVERLOADED = "503, overloaded machine"
"""A needless 503 where the machine was overloaded lately."""


@dataclass
class Clients:
    """Some clients, each of which sends one streamed request after the other until `stopping` is set.

    served: is there an engine of each role that has been well for so long that the router must know it?
    ends: requests by how they ended: whole, broken (an error event), left (the client went), a status,
    or one of VIOLATIONS. late: those that took longer than hang_s by the clock, but not without the lag.
    """

    url: str
    rng: random.Random
    overload: Overload
    served: Callable[[], bool]
    hang_s: float = HANG_S
    ends: Counter[str] = field(default_factory=Counter)
    late: int = 0
    longest_s: float = 0.0
    stopping: bool = False
    _numbers: int = 0

    async def run(self, count: int) -> None:
        """Return when all clients have ended, which is after `stopping`."""
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(None)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
            await asyncio.gather(*(self._client(http) for _ in range(count)))

    async def _client(self, http: aiohttp.ClientSession) -> None:
        while not self.stopping:
            end = await self.ask(http, patient=self.rng.random() > 0.1)
            self.ends[end] += 1
            if not end.isalpha():
                await asyncio.sleep(0.5)

    async def ask(self, http: aiohttp.ClientSession, *, patient: bool = True) -> str:
        """How one request ended. One that is not patient leaves within 3 s."""
        self._numbers += 1
        prompt, count = f"{self.rng.randrange(4)} request {self._numbers}", self.rng.randint(10, 40)
        loop = asyncio.get_running_loop()
        before_s = loop.time()
        try:
            async with self.overload.limit(self.hang_s if patient else self.rng.uniform(0, 3)):
                return await self._read(http, prompt, count)
        except TimeoutError:
            return HUNG if patient else "left"
        finally:
            took_s = loop.time() - before_s
            self.longest_s = max(self.longest_s, took_s)
            self.late += took_s > self.hang_s

    async def _read(self, http: aiohttp.ClientSession, prompt: str, count: int) -> str:
        body = {"model": "chaos", "prompt": prompt, "max_tokens": count, "stream": True}
        served_before = self.served()
        try:
            async with http.post(f"{self.url}/v1/completions", json=body) as answer:
                data = await answer.read()
        except aiohttp.ClientError:
            return CUT_OFF
        if answer.status == 503 and served_before and self.served():
            return OVERLOADED if self.overload.lately() else NEEDLESS
        return judge(data, prompt, count) if answer.status == 200 else str(answer.status)


def judge(data: bytes, prompt: str, count: int) -> str:
    """How a stream of status 200 ended, by all that the client got."""
    events = [event.removeprefix(b"data: ") for event in data.split(b"\n\n") if event]
    done = bool(events) and events[-1] == b"[DONE]"
    try:
        parsed = [json.loads(event) for event in events if event != b"[DONE]"]
    except ValueError:
        return CUT_OFF
    words = [choice["text"] for event in parsed for choice in event.get("choices", ())]
    if words != [word(prompt, index) for index in range(len(words))] or len(words) > count:
        return WRONG
    if done:
        return "whole" if len(words) == count else CUT_OFF
    return "broken" if parsed and "error" in parsed[-1] else CUT_OFF
