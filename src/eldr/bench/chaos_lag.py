"""How far an event loop lags behind the clock, so that an overloaded machine is not taken for a fault.

Engines and clients of `make chaos` share one loop. While that gets no CPU, engines answer late, checks of
healthy engines time out, and answers take longer; none of that is the router's doing.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

STEP_S = 0.05
WINDOW_S = 15.0
"""How far back `recent_s` looks: as long as a router's verdict on an engine may last."""


class LoopLag:
    """Measures the running loop while `run` runs. lost_s, worst_s: lag in all, and the longest one."""

    def __init__(self) -> None:
        self.lost_s, self.worst_s, self.watched_s = 0.0, 0.0, 0.0
        self._recent: deque[tuple[float, float]] = deque()
        self._limits: set[asyncio.Timeout] = set()

    async def run(self) -> None:
        """Measure until cancelled."""
        loop = asyncio.get_running_loop()
        before_s = loop.time()
        while True:
            await asyncio.sleep(STEP_S)
            now_s = loop.time()
            self.note(now_s, max(0.0, now_s - before_s - STEP_S))
            self.watched_s += now_s - before_s
            before_s = now_s

    def note(self, now_s: float, lag_s: float) -> None:
        """Note a lag; whoever waits with a limit is given that much longer."""
        self.lost_s += lag_s
        self.worst_s = max(self.worst_s, lag_s)
        self._recent.append((now_s, lag_s))
        while self._recent[0][0] < now_s - WINDOW_S:
            self._recent.popleft()
        for limit in self._limits:
            when_s = limit.when()
            if when_s is not None:
                limit.reschedule(when_s + lag_s)

    def recent_s(self) -> float:
        """The longest lag of the last WINDOW_S."""
        return max((lag_s for _, lag_s in self._recent), default=0.0)

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
        """The worst lag, and the share of the time that was lost."""
        share = self.lost_s / self.watched_s if self.watched_s else 0.0
        return {"worst_s": round(self.worst_s, 3), "share_of_time_lost": round(share, 4)}
