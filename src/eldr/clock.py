"""Where time comes from, so that a live router and a replay run the same code."""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since some fixed moment; never runs backward."""

    def now_s(self) -> float: ...


class MonotonicClock:
    """The time of this machine."""

    now_s = staticmethod(time.monotonic)


class VirtualClock:
    """A time that moves only when told to."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        return self._now_s

    def advance_to(self, time_s: float) -> None:
        """Move on to `time_s`; raises ValueError for a time that has passed."""
        if not time_s >= self._now_s:
            raise ValueError(f"the clock stands at {self._now_s} s and cannot go back to {time_s} s")
        self._now_s = time_s
