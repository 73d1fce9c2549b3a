"""What happens when: events in order of time, then priority, then the order in which they were planned."""

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any

BATCH_END, PREFILL_END, TRANSFER_END, ARRIVAL, CHANGE, BATCH_BEGIN = range(6)
"""Priorities. At one moment what ends is counted off before what arrives is decided, and an idle
worker begins once all are here."""


class EventLoop:
    """Runs actions at their times. `now_s` is the time of the action that runs."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = count()

    def at(self, time_s: float, priority: int, action: Callable[..., None], *arguments: Any) -> None:
        """Plan `action(*arguments)`. time_s must not have passed."""
        heapq.heappush(self._events, (time_s, priority, next(self._sequence), action, arguments))

    def run(self) -> None:
        """Run until nothing is planned."""
        while self._events:
            self.now_s, _, _, action, arguments = heapq.heappop(self._events)
            action(*arguments)
