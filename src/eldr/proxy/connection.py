"""One HTTP/1.1 connection to a worker: a request out, an answer in, then the next."""

import asyncio
from time import monotonic
from typing import cast

from eldr.pool import Worker
from eldr.proxy.handoff import Parts
from eldr.proxy.worker_answer import Answer
from eldr.proxy.worker_answer import BrokenOffError as BrokenOffError


class Connection(asyncio.Protocol):
    """A connection that takes one request after another. Closed once an answer did not end as it should."""

    _transport: asyncio.Transport

    def __init__(self, idle_timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._idle_timeout_s = idle_timeout_s
        self._answer: Answer | None = None
        self._heard_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, request: Parts, worker: Worker) -> Answer:
        """Send a request, which may be in parts; its answer is still to come."""
        answer = self._answer = Answer(worker, self._transport)
        self._heard_s = monotonic()
        if self._timer is None:
            self._timer = self._loop.call_later(self._idle_timeout_s, self._check_silence)
        if self._lost:
            answer.lost(None)
        else:
            for part in request:
                self._transport.write(part)
        return answer

    def finish(self) -> bool:
        """End an exchange; whether the connection can take another one. If not, it is closed: a cancel."""
        answer, self._answer = self._answer, None
        reusable = answer is not None and answer.complete and answer.reusable and self.usable
        if answer is not None:
            if reusable:
                answer.resume()
            answer.let_go()
        if not reusable:
            self.close()
        return reusable

    @property
    def usable(self) -> bool:
        return not self._lost and not self._transport.is_closing()

    def close(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._heard_s = now_s = monotonic()
        answer = self._answer
        if answer is None or answer.complete:
            self.close()  # nobody asked for it
        elif answer.express is None or not answer.express(data, now_s):
            answer.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        if self._timer is not None:
            self._timer.cancel()
        if self._answer is not None:
            self._answer.lost(exc)

    def _check_silence(self) -> None:
        """Fail an answer that is silent for too long. One timer serves many requests."""
        self._timer = None
        if self._answer is None:
            return
        if self._answer.paused:
            self._heard_s = monotonic()  # it is the client who lags
        left_s = self._heard_s + self._idle_timeout_s - monotonic()
        if left_s <= 0:
            self._answer.fail(f"it sent nothing for {self._idle_timeout_s:g} s")
        else:
            self._timer = self._loop.call_later(left_s, self._check_silence)
