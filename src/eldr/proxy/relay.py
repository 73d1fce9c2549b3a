"""Passing a decode worker's answer to the client, and noting on the way what metrics need.

Until the first piece of a stream has been passed on, errors are raised: the client can still get a real
status, and the router can still try again. After that a failure ends the stream with an error event and
without [DONE] (or the last event of its API).
"""

import asyncio
from typing import cast

import msgspec
from aiohttp import HttpVersion11, web
from multidict import CIMultiDict

from eldr.metrics.prometheus import RouterMetrics
from eldr.pool import Worker
from eldr.proxy import handoff, headers
from eldr.proxy.answers import error_event
from eldr.proxy.call import Call
from eldr.proxy.connection import Answer, BrokenOffError
from eldr.proxy.events import EventReader, read_answer
from eldr.proxy.fields import JSON_ERRORS

MAX_PENDING = 16
"""Pieces of an answer that may wait for the client's headers to be sent, before the worker must wait."""


class RefusalError(Exception):
    """An engine answered with an error before any output; the client gets that answer as it is."""

    def __init__(self, status: int, body: bytes, headers: CIMultiDict[str]) -> None:
        super().__init__(status, body)
        self.status, self.body, self.headers = status, body, headers


async def checked(answer: Answer) -> None:
    """Raise RefusalError for an answer that is not of status 200."""
    if answer.status != 200:
        raise RefusalError(answer.status, await answer.read(), headers.to_client(answer.headers))


async def relay(call: Call, worker: Worker, answer: Answer, metrics: RouterMetrics) -> web.StreamResponse:
    """Give the client the worker's answer. Raises RefusalError and BrokenOffError while nothing was sent."""
    await checked(answer)
    if answer.content_type == "text/event-stream":
        return await _Stream(call, worker, answer, metrics).run()
    whole = read_answer(await answer.read(), call.cached_tokens)
    call.output_tokens = whole.output_tokens
    if call.prompt_tokens is None:
        call.prompt_tokens = whole.prompt_tokens
    passed = headers.to_client(answer.headers)
    passed.extend(call.answer_headers())
    return web.Response(status=200, body=whole.body, headers=passed)


async def pass_on(call: Call, answer: Answer) -> web.Response:
    """The answer of a worker that decoded nothing, as it is."""
    body = await answer.read()
    passed = headers.to_client(answer.headers)
    passed.extend(call.answer_headers())
    return web.Response(status=200, body=body, headers=passed)


class _Client(web.StreamResponse):
    """What a streaming client gets; its headers travel with the first output, in one system call."""

    _send_headers_immediately = False


class _Stream:
    """One stream from a worker to a client: the `Sink` of the worker's answer.

    Until the client's headers are sent, output waits in `_pending`; after that it goes from the worker's
    connection to the client's without a task between. A task only begins and ends the stream, and waits where
    the client reads more slowly than the worker writes.
    """

    def __init__(self, call: Call, worker: Worker, answer: Answer, metrics: RouterMetrics) -> None:
        self.call, self.worker, self.answer, self.metrics = call, worker, answer, metrics
        self.events = EventReader(
            hides_usage=handoff.hides_usage(call.body, call.dialect), cached_tokens=call.cached_tokens
        )
        self.last_output_s: float | None = None
        self._chunked = call.request.version >= HttpVersion11
        self._client, self._protocol = cast(asyncio.Transport | None, None), call.request.protocol
        self._pending: list[bytes] = []
        self._over, self._error = False, cast(BrokenOffError | None, None)
        self._news: asyncio.Future[None] | None = None

    async def run(self) -> web.StreamResponse:
        self.answer.pass_to(self)
        while not self._pending and not self._over:
            await self._wait()
        if not self._pending and self._error is not None:
            raise self._error
        self._refuse_error_before_output()
        client = _Client(headers=headers.to_client(self.answer.headers))
        client.headers.extend(self.call.answer_headers())
        if self._chunked:
            client.enable_chunked_encoding()
        await client.prepare(self.call.request)
        if not self._over:
            await self._pass_on(client)
        elif self._error is not None:
            await client.write(self._waiting())
        if self._error is not None:
            await self._end_broken(client, self._error)
        self._note_end()
        await client.write_eof(self._waiting())
        return client

    def take(self, data: bytes) -> None:
        """A piece of the worker's answer, from the event loop."""
        tokens_before = self.events.token_events
        passed = self.events.feed(data)
        if self.events.token_events > tokens_before:
            self._note_output()
        if not passed:
            return
        if self._client is None:
            self._pending.append(passed)
            if len(self._pending) >= MAX_PENDING:
                self.answer.pause()
            self._wake()
        else:
            self._write(passed)

    def end(self, error: BrokenOffError | None) -> None:
        """The worker's answer ended."""
        if error is None and not self.events.done:
            error = BrokenOffError(f"worker {self.worker.id} ({self.worker.url}) ended a stream too early")
        self._over, self._error = True, error
        self._wake()

    async def _pass_on(self, client: web.StreamResponse) -> None:
        """Let output flow until its end; while the client lags, nothing is read from the worker."""
        while self._pending:
            await client.write(self._waiting())
        self._client = self.call.request.transport
        if self._client is None:
            raise ConnectionResetError("the client left")
        writer = await client.prepare(self.call.request)  # made before; this is how to ask for it
        assert writer is not None
        while not self._over:
            if self.answer.paused:
                await writer.drain()
                self.answer.resume()
            else:
                await self._wait()

    def _waiting(self) -> bytes:
        data = b"".join(self._pending)
        self._pending.clear()
        return data

    def _write(self, data: bytes) -> None:
        assert self._client is not None
        if self._client.is_closing():
            return  # the request's task is about to be cancelled
        self._client.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        if self._protocol.writing_paused:
            self.answer.pause()
            self._wake()

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
        if self.last_output_s is None:
            self.call.first_token_s = now_s
        else:
            self.metrics.itl.observe(now_s - self.last_output_s)
        self.last_output_s = now_s

    def _note_end(self) -> None:
        self.call.output_tokens = self.events.output_tokens
        if self.call.prompt_tokens is None:
            self.call.prompt_tokens = self.events.prompt_tokens
        if self.events.error is not None and self.call.outcome == "ok":
            self.call.ended("broken", 200, self.events.error.decode(errors="replace"))

    async def _end_broken(self, client: web.StreamResponse, error: BrokenOffError) -> None:
        self.call.ended("broken", 200, str(error))
        message = "the decode worker broke off; the text is incomplete"
        await client.write(error_event(502, message, "upstream_error", self.call.dialect.named_events))


def _status_of(error: bytes) -> int:
    """The status in an error event, 502 where it has none."""
    try:
        code = msgspec.json.decode(error)["error"]["code"]
    except (*JSON_ERRORS, KeyError, TypeError):
        return 502
    return code if type(code) is int and 400 <= code <= 599 else 502
