"""Requests that run on workers but are not in the ledger: of this router before it restarted, or of others.

An engine is asked for its own numbers once, when it is let in. What they say above the ledger is added to the
worker's load, and fades: the requests end unseen. It is never refreshed, so that every choice is seen in the
ledger at once and no stale number draws a herd to one worker.
"""

import re
from dataclasses import replace

from eldr.clock import Clock
from eldr.errors import UpstreamError
from eldr.pool import Worker
from eldr.proxy.upstream import Upstream
from eldr.types import PoolView

HALF_LIFE_S = 30.0
_GAUGES = re.compile(rb"^vllm:num_requests_(?:running|waiting)(?:\{[^}]*\})? ([0-9.eE+]+)\s*$", re.M)


async def engine_load(upstream: Upstream, worker: Worker, timeout_s: float) -> float:
    """Requests that run or wait on an engine, by its own metrics; 0 where it does not tell."""
    try:
        status, body = await upstream.get(worker, "/metrics", timeout_s)
        return sum(float(value) for value in _GAUGES.findall(body)) if status == 200 else 0.0
    except (UpstreamError, ValueError):
        return 0.0


class LoadDrift:
    """What the ledger of one fleet does not know, by worker. Used from one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._noted: dict[str, tuple[float, float]] = {}

    def note(self, worker_id: str, requests: float) -> None:
        """Note how many requests more than the ledger's a worker has now; this replaces what was noted."""
        self.forget(worker_id)
        if requests > 0:
            self._noted[worker_id] = (requests, self._clock.now_s())

    def forget(self, worker_id: str) -> None:
        """Drop what is noted of a worker, if anything."""
        self._noted.pop(worker_id, None)

    def corrected(self, view: PoolView) -> PoolView:
        """The view with what has not faded yet in its in-flight counts."""
        if not self._noted:
            return view
        in_flight = view.in_flight.copy()
        for worker_id in tuple(self._noted):
            left = self._left(worker_id)
            if left < 0.5:
                self.forget(worker_id)
            elif worker_id in view.worker_ids:
                in_flight[view.worker_ids.index(worker_id)] += round(left)
        in_flight.setflags(write=False)
        return replace(view, in_flight=in_flight)

    def _left(self, worker_id: str) -> float:
        requests, noted_s = self._noted[worker_id]
        return float(requests * 0.5 ** ((self._clock.now_s() - noted_s) / HALF_LIFE_S))
