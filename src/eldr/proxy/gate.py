"""Backpressure: how many requests run, how many wait for their turn, and what their bodies may take up."""

import asyncio
from collections import deque
from collections.abc import Callable

from eldr.proxy.body import Body, TooLargeError
from eldr.proxy.request import Request
from eldr.proxy.room import NoRoomError, Room
from eldr.settings_front import LimitConfig

LARGE_BYTES = 1024 * 1024
"""A body above this is read in a thread."""


class TurnedAwayError(Exception):
    """The router does not take this request. fault: for metrics; kind: of OpenAI's error form."""

    def __init__(self, status: int, fault: str, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.fault, self.kind = status, fault, kind
        self.retry_after_s = None if status in (408, 413) else 1


class Gate:
    """Lets requests in, first come first served: as a context manager it holds a turn until the block ends.

    Entering raises TurnedAwayError: the queue is full, or the wait too long. Used from one event loop.
    """

    def __init__(self, limits: LimitConfig) -> None:
        self._limits = limits
        self._running = 0
        self._queue: deque[asyncio.Future[None]] = deque()
        self.waiting = 0
        self.room = Room(limits.bodies_bytes)
        self._one_large = asyncio.Lock()

    async def __aenter__(self) -> None:
        if self._running >= self._limits.in_flight:
            await self._wait()
        else:
            self._running += 1

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    def _leave(self) -> None:
        """Give a turn back: to who has waited longest, if anybody does."""
        while self._queue:
            next_one = self._queue.popleft()
            if not next_one.done():
                next_one.set_result(None)
                return
        self._running -= 1

    async def read(self, request: Request, take: Callable[[bytes], None]) -> None:
        """Give the body of a request to `take`.

        It counts in the gate's room until its `let_go`. Raises what `take` raises, MalformedBodyError, and
        TurnedAwayError: it is too large or too slow, or there is no room for it.
        """
        body, kind = request.body, "invalid_request_error"
        try:
            if body.complete:  # it came with the headers: nothing to wait for
                await body.arrive(self.room)
            else:
                async with asyncio.timeout(self._limits.body_timeout_s):
                    await body.arrive(self.room)
            if body.most_bytes > LARGE_BYTES:
                await self._read_large(body, take)
            else:
                data = body.take()
                if body.compressed:
                    body.count(len(data))
                take(data)
        except TimeoutError:
            text = f"the body did not arrive within {self._limits.body_timeout_s:g} s"
            raise TurnedAwayError(408, "slow_body", kind, text) from None
        except TooLargeError as error:
            raise TurnedAwayError(413, "large_body", kind, str(error)) from None
        except NoRoomError:
            text = "there is no room for the body beside those of other requests; try again"
            raise TurnedAwayError(503, "bodies_full", "overloaded", text) from None

    async def _read_large(self, body: Body, take: Callable[[bytes], None]) -> None:
        """Read it in a thread, since all streams would wait; and one at a time, since it is there twice."""
        async with self._one_large:
            body.count(body.most_bytes)
            data = await asyncio.to_thread(body.take)
            body.count(len(data))
            await asyncio.to_thread(take, data)

    async def _wait(self) -> None:
        limits = self._limits
        if self.waiting >= limits.queued:
            text = f"{limits.in_flight} requests run and {self.waiting} wait; try again"
            raise TurnedAwayError(429, "queue_full", "overloaded", text)
        self.waiting += 1
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            async with asyncio.timeout(limits.queue_timeout_s):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._leave()  # it was given just now
            else:
                self._queue.remove(turn)
            if not isinstance(error, TimeoutError):
                raise
            text = f"no turn within {limits.queue_timeout_s:g} s; try again"
            raise TurnedAwayError(503, "queue_timeout", "overloaded", text) from None
        finally:
            self.waiting -= 1
