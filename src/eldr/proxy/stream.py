"""One stream from a decode worker to the client, and what metrics need of it.

Until the first piece of a stream has been passed on, errors are raised: the client can still get a real
status, and the router can still try again. After that a failure ends the stream with an error event and
without [DONE] (or the last event of its API).
"""

import asyncio
from collections.abc import Callable
from typing import cast

import msgspec
from multidict import CIMultiDict

from eldr.metrics.prometheus import RouterMetrics
from eldr.pool import Worker
from eldr.proxy import headers
from eldr.proxy.answers import error_event
from eldr.proxy.call import Call
from eldr.proxy.chunks import is_output
from eldr.proxy.events import EventReader
from eldr.proxy.fields import JSON_ERRORS
from eldr.proxy.response import CHUNKS_END, Response, chunk, stream_head
from eldr.proxy.worker_answer import Answer, BrokenOffError

MAX_PENDING = 16
"""Pieces of an answer that may wait for the client's headers to be sent, before the worker must wait."""

GAPS_AT_ONCE = 64
"""Outputs whose times are kept until their gaps are counted together."""


class RefusalError(Exception):
    """An engine answered with an error before any output; the client gets that answer as it is."""

    def __init__(self, status: int, body: bytes, headers: CIMultiDict[str]) -> None:
        super().__init__(status, body)
        self.status, self.body, self.headers = status, body, headers


class Stream:
    """One stream from a worker to a client: the `Sink` of the worker's answer.

    Until the client's headers are sent, output waits in `_pending`; after that it goes from the worker's
    connection to the client's without a task between. A task only begins and ends the stream, and waits where
    the client reads more slowly than the worker writes.
    """

    def __init__(self, call: Call, worker: Worker, answer: Answer, metrics: RouterMetrics) -> None:
        self.call, self.worker, self.answer, self.metrics = call, worker, answer, metrics
        self.events = EventReader(hides_usage=call.hides_usage, cached_tokens=call.cached_tokens)
        self._output_s: list[float] = []
        self._connection, self._chunked = call.request.connection, call.request.knows_chunks
        self._write: Callable[[bytes], None] | None = None
        self._as_it_comes = False
        self._pending: list[bytes] = []
        self._over, self._error = False, cast(BrokenOffError | None, None)
        self._news: asyncio.Future[None] | None = None

    async def run(self) -> Response:
        self.answer.pass_to(self)
        while not self._pending and not self._over:
            await self._wait()
        if not self._pending and self._error is not None:
            raise self._error
        self._refuse_error_before_output()
        self.call.let_go_of_body()
        answer_headers = headers.to_client(self.answer.headers)
        answer_headers.extend(self.call.answer_headers())
        begin = stream_head(200, answer_headers, self.call.request) + self._framed(self._waiting())
        try:
            if not self._over:
                self._connection.write(begin)
                begin = b""
                await self._pass_on()
        finally:
            self._count_gaps()
        self._connection.write(begin + self._end())
        await self._connection.drain()
        return Response(200, headers=answer_headers, sent=True)

    def take_chunk(self, data: bytes, now_s: float) -> bool:
        """A chunk that the client can get as it is. Runs for nearly every token, so it does nothing else."""
        if not (self._as_it_comes and is_output(data)):
            return False
        assert self._write is not None
        self._write(data)
        self._output_s.append(now_s)
        if len(self._output_s) == GAPS_AT_ONCE:
            self._count_gaps()
        return True

    def take(self, data: bytes) -> None:
        """A piece of the worker's answer, from the event loop."""
        tokens_before = self.events.token_events
        passed = self.events.feed(data)
        if self.events.token_events > tokens_before:
            self._note_output()
        if passed:
            self._give(passed)
        self._note_course()

    def end(self, error: BrokenOffError | None) -> None:
        """The worker's answer ended. One that was whole stays so, however its connection ended."""
        if self.events.done:
            error = None
        elif error is None:
            error = BrokenOffError(f"worker {self.worker.id} ({self.worker.url}) ended a stream too early")
        self._over, self._error = True, error
        self._wake()

    async def _pass_on(self) -> None:
        """Let output flow until its end; while the client lags, nothing is read from the worker."""
        self._write, self._connection.listener = self._connection.write, self
        self._note_course()
        if self._connection.lags:
            self.client_lags()
        try:
            while not self._over:
                if self.answer.paused:
                    await self._connection.drain()
                    self.answer.resume()
                else:
                    await self._wait()
        finally:
            self._connection.listener = None

    def _give(self, passed: bytes) -> None:
        if self._write is not None:
            self._write(self._framed(passed))
            return
        self._pending.append(passed)
        if len(self._pending) >= MAX_PENDING:
            self.answer.pause()
        self._wake()

    def _waiting(self) -> bytes:
        data = b"".join(self._pending)
        self._pending.clear()
        return data

    def _framed(self, data: bytes) -> bytes:
        return chunk(data) if self._chunked and data else data

    def client_lags(self) -> None:
        """The client reads more slowly than the worker writes, so the worker must wait."""
        self.answer.pause()
        self._wake()

    def client_left(self) -> None:
        """The client's connection is gone; the request's task is about to be cancelled."""
        self._write, self._as_it_comes = None, False

    async def _wait(self) -> None:
        self._news = asyncio.get_running_loop().create_future()
        await self._news

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _refuse_error_before_output(self) -> None:
        """A stream that begins with an error becomes an answer of that status."""
        if self.events.error is not None and self.events.token_events == 0:
            kind = CIMultiDict({"Content-Type": "application/json"})
            raise RefusalError(_status_of(self.events.error), self.events.error, kind)

    def _note_output(self) -> None:
        now_s = self.call.clock.now_s()
        if not self._output_s:
            self.call.first_token_s = now_s
        self._output_s.append(now_s)

    def _note_course(self) -> None:
        """Chunks may go on as they come while the client's connection is there and no event is unfinished."""
        self._as_it_comes = self._write is not None and self._chunked and self.events.in_output

    def _count_gaps(self) -> None:
        """Count the gaps between outputs so far: many at once, since each alone costs much of a token."""
        self.metrics.itl.note_gaps(self._output_s)
        del self._output_s[:-1]

    def _note_end(self) -> None:
        self.call.output_tokens = self.events.output_tokens
        if self.call.prompt_tokens is None:
            self.call.prompt_tokens = self.events.prompt_tokens
        if self.events.error is not None and self.call.outcome == "ok":
            self.call.ended("broken", 200, self.events.error.decode(errors="replace"))

    def _end(self) -> bytes:
        """How the answer ends: as the worker's did, or with an error event where that broke off."""
        data = self._framed(self._waiting())
        if self._error is not None:
            self.call.ended("broken", 200, str(self._error))
            message = "the decode worker broke off; the text is incomplete"
            event = error_event(502, message, "upstream_error", self.call.dialect.named_events)
            data += self._framed(event)
        self._note_end()
        return data + CHUNKS_END if self._chunked else data


def _status_of(error: bytes) -> int:
    """The status in an error event, 502 where it has none."""
    try:
        code = msgspec.json.decode(error)["error"]["code"]
    except (*JSON_ERRORS, KeyError, TypeError):
        return 502
    return code if type(code) is int and 400 <= code <= 599 else 502
