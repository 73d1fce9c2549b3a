"""How long the router waits for a client: until a deadline, or while the client goes on reading."""

import asyncio
from collections.abc import Callable
from math import inf


class Deadline:
    """Calls `on_passed` once a time has come that may be moved. One timer serves many deadlines."""

    def __init__(self, on_passed: Callable[[], None]) -> None:
        self._on_passed = on_passed
        self._loop = asyncio.get_running_loop()
        self._at_s = inf
        self._timer: asyncio.TimerHandle | None = None

    def set(self, seconds: float) -> None:
        """Let it be so far from now."""
        self._at_s = self._loop.time() + seconds
        if self._timer is not None and self._timer.when() > self._at_s:
            self._stop()
        if self._timer is None:
            self._timer = self._loop.call_at(self._at_s, self._check)

    def lift(self) -> None:
        """Let there be none."""
        self._at_s = inf

    def close(self) -> None:
        """Call nobody any more."""
        self._stop()
        self._on_passed = _nobody

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer = None
        if self._loop.time() >= self._at_s:
            self._on_passed()
        elif self._at_s < inf:
            self._timer = self._loop.call_at(self._at_s, self._check)


class StallWatch:
    """Calls `on_stall` once nothing of what waits to be sent was sent within `limit_s`."""

    def __init__(
        self, transport: asyncio.WriteTransport, limit_s: float, on_stall: Callable[[], None]
    ) -> None:
        self._transport, self._limit_s, self._on_stall = transport, limit_s, on_stall
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self.stop()
        unsent = self._transport.get_write_buffer_size()
        self._timer = self._loop.call_later(self._limit_s, self._check, unsent)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Call nobody any more."""
        self.stop()
        self._on_stall = _nobody

    def _check(self, unsent_before: int) -> None:
        if self._transport.get_write_buffer_size() < unsent_before:
            self.start()
        else:
            self._on_stall()


def _nobody() -> None:
    """Who is called once there is nobody to call, so that nothing is kept."""
