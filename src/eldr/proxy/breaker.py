"""A circuit breaker for one worker: a small state machine on a clock, without I/O.

closed: requests pass. Some failures in a row, or one refused connection, open it.
open: none pass, for a time that doubles with every opening, so that a worker that flaps is left alone longer.
half_open: one request at a time is let through, and another one where that takes longer than the breaker was
open: a request that hangs, or a long answer that is not streamed, must not keep a worker out that came back.
A good answer closes the breaker, and so does a passed check if it was not requests that failed. It is then on
probation: until one request has ended whole, the next failure opens it again. A failure opens it at once.

What counts is in docs/operations.md, "Health": answers of status 4xx, 429 and 503 never do.
"""

import math
from typing import Literal

from eldr.clock import Clock
from eldr.settings_fleet import BreakerConfig

State = Literal["closed", "half_open", "open"]

STATE_VALUES: dict[State, int] = {"closed": 0, "half_open": 1, "open": 2}
"""What the metric `eldr_worker_breaker_state` shows."""

MOST_DOUBLINGS = 30  # of the open time, which has a limit of its own


class Breaker:
    """Not shared between threads.

    Verdicts name the opening that they belong to (`generation`, as it was when their request began): what a
    request learned before the breaker opened says nothing of the worker as it is now, and is ignored.
    """

    def __init__(self, config: BreakerConfig, clock: Clock) -> None:
        self._config, self._clock = config, clock
        self.generation = 0
        self.answered_s = -math.inf
        """When a good answer began last."""
        self._failures = self._doubts = 0
        self._doubted_s = 0.0
        self._openings = 0
        self._open = False
        self._unreachable = False
        self._open_s = self._until_s = self._tried_s = 0.0
        self._trials = 0

    @property
    def state(self) -> State:
        if not self._open:
            return "closed"
        return "open" if self._clock.now_s() < self._until_s else "half_open"

    @property
    def remaining_s(self) -> float:
        """Seconds until a request may be tried; 0 unless open."""
        return max(0.0, self._until_s - self._clock.now_s()) if self._open else 0.0

    def allows(self) -> bool:
        """May a request be sent now?"""
        state = self.state
        if state != "half_open":
            return state == "closed"
        return self._trials == 0 or self._clock.now_s() - self._tried_s >= self._open_s

    def begin(self) -> int:
        """Note that a request is sent; returns the generation to give to its verdicts and to `end`."""
        if self._open:
            self._trials, self._tried_s = self._trials + 1, self._clock.now_s()
        return self.generation

    def end(self, generation: int) -> None:
        """Note that a request is over, whatever came of it, so that a half-open breaker may try the next."""
        if generation == self.generation and self._trials:
            self._trials -= 1

    def answered(self, generation: int) -> None:
        """The worker began to answer well: a half-open breaker closes, on probation."""
        self.answered_s = self._clock.now_s()
        if generation != self.generation:
            return
        self._doubts = 0
        if self._open:
            self._close()

    def reached(self) -> None:
        """The worker passed a check: all that a half-open breaker waits for which `trip` had opened.

        A trial would tell no more, and a long answer that is not streamed tells it only at its end.
        """
        if self._unreachable and self.state == "half_open":
            self._close()

    def succeeded(self, generation: int) -> None:
        """A request ended whole."""
        if generation == self.generation and not self._open:
            self._failures = 0

    def failed(self, generation: int) -> None:
        """A request failed by the worker's fault."""
        if generation != self.generation:
            return
        self._failures += 1
        if self._open or self._failures >= self._config.failures:
            self._open_up(unreachable=False)

    def doubted(self, generation: int) -> None:
        """A request failed by this worker's fault or by that of another, whose KV cache it was to pull.

        When a prefill worker dies, hundreds of transfers may fail at once on each decode worker. So what
        comes within `open_s` counts once, and a good answer ends the row: as many as `failures` open it.
        """
        now_s = self._clock.now_s()
        if generation != self.generation or (self._doubts and now_s - self._doubted_s < self._config.open_s):
            return
        self._doubts, self._doubted_s = self._doubts + 1, now_s
        if self._doubts >= self._config.failures:
            self._open_up(unreachable=False)

    @property
    def shut_until_s(self) -> float:
        """For other processes: until when no request is sent because some failed; 0 unless that is so."""
        return self._until_s if self.state == "open" and not self._unreachable else 0.0

    def follow(self, until_s: float) -> bool:
        """Open until then, as another process's breaker of this worker is; was it news?"""
        now_s = self._clock.now_s()
        if until_s <= max(now_s, self._until_s):
            return False
        self._opened(until_s - now_s, unreachable=False)
        return True

    def trip(self) -> None:
        """Open now: the worker refuses connections or fails its checks. An open breaker stays as it is."""
        self._open_up(unreachable=True)

    def _close(self) -> None:
        self._open, self._trials = False, 0
        self._failures = self._config.failures - 1

    def _open_up(self, *, unreachable: bool) -> None:
        if self.state == "open":
            return
        now_s, config = self._clock.now_s(), self._config
        if now_s - self._until_s > config.calm_s:
            self._openings = 0
        doubled = 2.0 ** min(self._openings, MOST_DOUBLINGS)
        self._opened(min(config.open_s * doubled, config.longest_open_s), unreachable=unreachable)

    def _opened(self, open_s: float, *, unreachable: bool) -> None:
        self._openings += 1
        self._open, self._unreachable = True, unreachable
        self._open_s, self._until_s = open_s, self._clock.now_s() + open_s
        self._failures = self._doubts = self._trials = 0
        self.generation += 1
