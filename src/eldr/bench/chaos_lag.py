"""How far an overloaded machine holds up engines, clients and router, so that it is not taken for a fault.

Engines and clients of `make chaos` share one event loop. While that lags, engines answer late, checks of
healthy engines time out, and answers take longer. So they do while a process waits for a CPU, as the
kernel tells. A router that keeps itself busy, or waits for something else, gets no excuse.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from eldr.bench.usage import process_tree

STEP_S, DELAY_STEP_S = 0.05, 1.0
"""How often the loop and the waits for a CPU are looked at."""

WINDOW_S = 15.0
"""How far back `overloaded` looks: as long as a router's verdict on an engine may last."""

WORST_LAG_S, WORST_WAIT = 0.25, 0.2
"""A lag of the loop, or a share of a second in which processes waited for a CPU, that may make a healthy
engine miss its checks (of 1 s, which take several turns of both loops)."""


class Overload:
    """Watches the running loop, this process and its children, the router's, while `run` runs.

    lost_s, worst_s: lag of the loop in all, and the longest one. waited_s: for a CPU, of these processes.
    """

    def __init__(self) -> None:
        self.lost_s = self.worst_s = self.watched_s = self.waited_s = 0.0
        self._last_bad_s = -WINDOW_S
        self._limits: set[asyncio.Timeout] = set()

    async def run(self) -> None:
        """Watch until cancelled."""
        loop = asyncio.get_running_loop()
        began_s = before_s = looked_s = loop.time()
        waited_s = cpu_wait_s()
        while True:
            await asyncio.sleep(STEP_S)
            now_s = loop.time()
            self.lagged(now_s, max(0.0, now_s - before_s - STEP_S))
            before_s, self.watched_s = now_s, now_s - began_s
            if now_s - looked_s >= DELAY_STEP_S:
                in_all_s = cpu_wait_s()
                self.waited(now_s, in_all_s - waited_s, now_s - looked_s)
                looked_s, waited_s = now_s, in_all_s

    def lagged(self, now_s: float, lag_s: float) -> None:
        """Note a lag of the loop; whoever waits with a limit is given that much longer."""
        self.lost_s += lag_s
        self.worst_s = max(self.worst_s, lag_s)
        self._last_bad_s = now_s if lag_s > WORST_LAG_S else self._last_bad_s
        for limit in self._limits:
            when_s = limit.when()
            if when_s is not None and not limit.expired():
                limit.reschedule(when_s + lag_s)

    def waited(self, now_s: float, waited_s: float, of_s: float) -> None:
        """Note how long the processes waited for a CPU."""
        self.waited_s += waited_s
        self._last_bad_s = now_s if waited_s > WORST_WAIT * of_s else self._last_bad_s

    def lately(self) -> bool:
        """Was the machine overloaded within WINDOW_S?"""
        return asyncio.get_running_loop().time() - self._last_bad_s < WINDOW_S

    @asynccontextmanager
    async def limit(self, seconds: float) -> AsyncIterator[None]:
        """Like asyncio.timeout, but the time that the loop lost does not count."""
        async with asyncio.timeout(seconds) as limit:
            self._limits.add(limit)
            try:
                yield
            finally:
                self._limits.discard(limit)

    def report(self) -> dict[str, Any]:
        """The loop's worst lag, and the shares of the time that the loop lost and the processes waited."""
        watched_s = self.watched_s or 1.0
        return {
            "worst_lag_s": round(self.worst_s, 3),
            "lost_by_clients": round(self.lost_s / watched_s, 4),
            "waited_for_cpu": round(self.waited_s / watched_s, 4),
        }


def cpu_wait_s() -> float:
    """How long this process and its children have in all been ready to run, without a CPU (main threads)."""
    waited_ns = 0
    for each in process_tree(os.getpid()):
        with suppress(OSError, IndexError):  # it may just have ended
            waited_ns += int(Path(f"/proc/{each}/schedstat").read_text().split()[1])
    return waited_ns / 1e9
