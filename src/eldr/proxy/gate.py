"""Backpressure: how many requests run, how many wait for their turn, and how slowly a body may come."""

import asyncio
from contextlib import AbstractAsyncContextManager

from eldr.proxy.body import TooLargeError
from eldr.proxy.request import Request
from eldr.settings_front import LimitConfig


class TurnedAwayError(Exception):
    """The router does not take this request. fault: for metrics; kind: of OpenAI's error form."""

    def __init__(self, status: int, fault: str, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.fault, self.kind = status, fault, kind
        self.retry_after_s = None if status in (408, 413) else 1


class Gate:
    """Lets requests in, first come first served. Used from one event loop."""

    def __init__(self, limits: LimitConfig) -> None:
        self._limits = limits
        self._turns = asyncio.Semaphore(limits.in_flight)
        self.waiting = 0

    def turn(self) -> AbstractAsyncContextManager[None]:
        """Hold a turn until the block ends. Raises TurnedAwayError: queue full, or too long a wait."""
        return _Turn(self)

    async def enter(self) -> None:
        """Take a turn, which `leave` gives back."""
        if self._turns.locked():
            await self._wait()
        else:
            await self._turns.acquire()

    def leave(self) -> None:
        self._turns.release()

    async def read(self, request: Request) -> bytes:
        """The body of a request. Raises TurnedAwayError when it is too large or takes too long."""
        body, kind = request.body, "invalid_request_error"
        try:
            if body.complete:  # it came with the headers: nothing to wait for
                return await body.read()
            async with asyncio.timeout(self._limits.body_timeout_s):
                return await body.read()
        except TimeoutError:
            text = f"the body did not arrive within {self._limits.body_timeout_s:g} s"
            raise TurnedAwayError(408, "slow_body", kind, text) from None
        except TooLargeError as error:
            raise TurnedAwayError(413, "large_body", kind, str(error)) from None

    async def _wait(self) -> None:
        limits = self._limits
        if self.waiting >= limits.queued:
            text = f"{limits.in_flight} requests run and {self.waiting} wait; try again"
            raise TurnedAwayError(429, "queue_full", "overloaded", text)
        self.waiting += 1
        try:
            async with asyncio.timeout(limits.queue_timeout_s):
                await self._turns.acquire()
        except TimeoutError:
            text = f"no turn within {limits.queue_timeout_s:g} s; try again"
            raise TurnedAwayError(503, "queue_timeout", "overloaded", text) from None
        finally:
            self.waiting -= 1


class _Turn(AbstractAsyncContextManager[None]):
    __slots__ = ("_gate",)

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def __aenter__(self) -> None:
        await self._gate.enter()

    async def __aexit__(self, *_: object) -> None:
        self._gate.leave()
