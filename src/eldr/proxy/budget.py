"""A budget for second tries across requests, so that an outage makes no retry storm.

A token bucket: each request puts a share of a token in, each second a little more, each retry takes one out.
In the long run at most `share` of the requests, plus `least_per_s`, run twice, however many of them fail.
"""

from eldr.clock import Clock
from eldr.settings_fleet import RetryConfig


class RetryBudget:
    """Begins full. Used from one event loop."""

    def __init__(self, config: RetryConfig, clock: Clock) -> None:
        self._config, self._clock = config, clock
        self._tokens = float(config.burst)
        self._filled_s = clock.now_s()

    def earn(self) -> None:
        """Note a request of a client."""
        self._put(self._config.share)

    def spend(self) -> bool:
        """Take one retry out of the budget; False when there is none left."""
        now_s = self._clock.now_s()
        self._put((now_s - self._filled_s) * self._config.least_per_s)
        self._filled_s = now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _put(self, tokens: float) -> None:
        self._tokens = min(self._tokens + tokens, float(self._config.burst))
