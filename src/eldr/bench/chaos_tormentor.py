"""Something that makes engines fail, come and go at random, for `make chaos`."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from eldr.bench.chaos_engine import FAULTY, ChaosEngine

FEWEST, MOST = 2, 7
"""Engines of a role, the dead ones too."""

PAUSE_S = 0.5
"""Mean time between two deeds."""

OUTAGE_S, OUTAGES = 1.0, 0.1
"""How long all engines of a role are dead at once, and how often that is done when it is its turn."""

GRACE_S = 10.0
"""An engine that has been well for so long must be known to be: by the settings in eldr.bench.chaos, a
request that hangs is given up after 3 s, breakers open for 4 s at most, and a check takes less than 2 s."""


@dataclass
class Tormentor:
    """Does something to an engine at random, again and again, until `stopping` is set.

    But for an outage, one engine of each role is left well. events: how often what was done.
    """

    engines: dict[str, list[ChaosEngine]]
    blocks: dict[str, str]
    admin: str
    admin_key: str
    http: aiohttp.ClientSession
    rng: random.Random
    events: Counter[str] = field(default_factory=Counter)
    stopping: bool = False

    async def run(self) -> None:
        """Return after `stopping`, once the last deed is done."""
        often = [self._kill, self._restart, self._spoil, self._cure]
        deeds = [self._outage, *2 * [self._add, self._remove], *4 * often]
        while not self.stopping:
            deed, role = self.rng.choice(deeds), self.rng.choice(list(self.engines))
            if await deed(role):
                self.events[deed.__name__.lstrip("_")] += 1
                await asyncio.sleep(self.rng.uniform(0, 2 * PAUSE_S))
            else:
                await asyncio.sleep(0.01)

    def served(self) -> bool:
        """Has an engine of each role been well for so long that the router must use it?"""
        return all(any(engine.well_s > GRACE_S for engine in role) for role in self.engines.values())

    async def calm(self) -> None:
        """Make all engines well."""
        for engine in self._all():
            engine.mode = "well"
            if not engine.alive:
                await engine.start()

    async def end(self) -> None:
        for engine in self._all():
            await engine.kill()

    async def running(self) -> int:
        """Requests that run on engines."""
        return sum(engine.running for engine in self._all())

    def _all(self) -> list[ChaosEngine]:
        return [engine for engines in self.engines.values() for engine in engines]

    def _pick(self, role: str, fits: Callable[[ChaosEngine], bool]) -> ChaosEngine | None:
        fitting = [engine for engine in self.engines[role] if fits(engine)]
        return self.rng.choice(fitting) if fitting else None

    def _victim(self, role: str) -> ChaosEngine | None:
        """An engine that lives, but not the one of its role that has been well for the longest time."""
        spared = max(self.engines[role], key=lambda engine: engine.well_s)
        return self._pick(role, lambda engine: engine.alive and engine is not spared)

    async def _outage(self, role: str) -> bool:
        """All engines of a role die, and come back. Rare."""
        if self.rng.random() > OUTAGES:
            return False
        engines = [engine for engine in self.engines[role] if engine.alive]
        for engine in engines:
            await engine.kill()
        await asyncio.sleep(OUTAGE_S)
        for engine in engines:
            await engine.start()
        return True

    async def _kill(self, role: str) -> bool:
        engine = self._victim(role)
        if engine is not None:
            await engine.kill()
        return engine is not None

    async def _restart(self, role: str) -> bool:
        engine = self._pick(role, lambda engine: not engine.alive)
        if engine is not None:
            await engine.start()
        return engine is not None

    async def _spoil(self, role: str) -> bool:
        engine = self._victim(role)
        if engine is not None:
            engine.mode = self.rng.choice(FAULTY)
            self.events[engine.mode] += 1
        return engine is not None

    async def _cure(self, role: str) -> bool:
        engine = self._pick(role, lambda engine: engine.mode != "well")
        if engine is not None:
            engine.mode = "well"
        return engine is not None

    async def _add(self, role: str) -> bool:
        if len(self.engines[role]) >= MOST:
            return False
        engine = await ChaosEngine(self.blocks).start()
        self.engines[role].append(engine)
        await self._ask("POST", "/workers", {"role": role, "url": engine.url})
        return True

    async def _remove(self, role: str) -> bool:
        """Drain a worker first or take it out as it is; the engine is killed after that."""
        engine = self._victim(role)
        if engine is None or len(self.engines[role]) <= FEWEST:
            return False
        self.engines[role].remove(engine)
        listed = (await self._ask("GET", "/workers"))["workers"]
        name = next(worker["name"] for worker in listed if worker["url"] == engine.url)
        if self.rng.random() < 0.5:
            await self._ask("POST", f"/workers/{name}/drain", {"limit_s": 1.0})
            await asyncio.sleep(2.0)
        else:
            await self._ask("DELETE", f"/workers/{name}")
        await engine.kill()
        return True

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        headers = {"Authorization": f"Bearer {self.admin_key}"}
        async with self.http.request(method, self.admin + path, json=body, headers=headers) as answer:
            text = await answer.text()
            answer.raise_for_status()
            return json.loads(text) if text else None
