"""Passing a decode worker's answer to the client, and noting on the way what metrics need.

Until the first piece of a stream has been passed on, errors are raised: the client can still get a real
status, and the router can still try again. After that a failure ends the stream with an error event and
without [DONE] (or the last event of its API).
"""

import aiohttp
import msgspec
from aiohttp import web
from multidict import CIMultiDict

from eldr.metrics.prometheus import RouterMetrics
from eldr.pool import Worker
from eldr.proxy import handoff, headers
from eldr.proxy.answers import error_event
from eldr.proxy.call import Call
from eldr.proxy.events import EventReader, read_answer
from eldr.proxy.fields import JSON_ERRORS
from eldr.proxy.upstream import BrokenOffError, read, read_chunk


class RefusalError(Exception):
    """An engine answered with an error before any output; the client gets that answer as it is."""

    def __init__(self, status: int, body: bytes, headers: CIMultiDict[str]) -> None:
        super().__init__(status, body)
        self.status, self.body, self.headers = status, body, headers


async def checked(worker: Worker, answer: aiohttp.ClientResponse) -> None:
    """Raise RefusalError for an answer that is not of status 200."""
    if answer.status != 200:
        raise RefusalError(answer.status, await read(worker, answer), headers.to_client(answer.headers))


async def relay(
    call: Call, worker: Worker, answer: aiohttp.ClientResponse, metrics: RouterMetrics
) -> web.StreamResponse:
    """Give the client the worker's answer. Raises RefusalError and BrokenOffError while nothing was sent."""
    await checked(worker, answer)
    if answer.content_type == "text/event-stream":
        return await _Stream(call, worker, answer, metrics).run()
    whole = read_answer(await read(worker, answer), call.cached_tokens)
    call.output_tokens = whole.output_tokens
    if call.prompt_tokens is None:
        call.prompt_tokens = whole.prompt_tokens
    passed = headers.to_client(answer.headers)
    passed.extend(call.answer_headers())
    return web.Response(status=200, body=whole.body, headers=passed)


async def pass_on(call: Call, worker: Worker, answer: aiohttp.ClientResponse) -> web.Response:
    """The answer of a worker that decoded nothing, as it is."""
    body = await read(worker, answer)
    passed = headers.to_client(answer.headers)
    passed.extend(call.answer_headers())
    return web.Response(status=200, body=body, headers=passed)


class _Stream:
    """One stream from a worker to a client."""

    def __init__(
        self, call: Call, worker: Worker, answer: aiohttp.ClientResponse, metrics: RouterMetrics
    ) -> None:
        self.call, self.worker, self.answer, self.metrics = call, worker, answer, metrics
        self.events = EventReader(
            hides_usage=handoff.hides_usage(call.body, call.dialect), cached_tokens=call.cached_tokens
        )
        self.last_output_s: float | None = None

    async def run(self) -> web.StreamResponse:
        first = await self._next()
        self._refuse_error_before_output()
        client = web.StreamResponse(headers=headers.to_client(self.answer.headers))
        client.headers.extend(self.call.answer_headers())
        await client.prepare(self.call.request)
        try:
            await client.write(first)
            while data := await self._next():
                await client.write(data)
        except BrokenOffError as error:
            await self._end_broken(client, error)
        self._note_end()
        await client.write_eof()
        return client

    async def _next(self) -> bytes:
        """The next whole events, b"" at the end of a stream that ended as it should."""
        while chunk := await read_chunk(self.worker, self.answer):
            tokens_before = self.events.token_events
            passed = self.events.feed(chunk)
            if self.events.token_events > tokens_before:
                self._note_output()
            if passed:
                return passed
        if not self.events.done:
            raise BrokenOffError(f"worker {self.worker.id} ({self.worker.url}) ended a stream too early")
        return b""

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
            self._broken(self.events.error.decode(errors="replace"))

    def _broken(self, error: str) -> None:
        self.call.ended("broken", 200, error)
        self.metrics.upstream_errors.labels("decode", self.worker.id, "mid_stream").inc()

    async def _end_broken(self, client: web.StreamResponse, error: BrokenOffError) -> None:
        self._broken(str(error))
        message = "the decode worker broke off; the text is incomplete"
        await client.write(error_event(502, message, "upstream_error", self.call.dialect.named_events))


def _status_of(error: bytes) -> int:
    """The status in an error event, 502 where it has none."""
    try:
        code = msgspec.json.decode(error)["error"]["code"]
    except (*JSON_ERRORS, KeyError, TypeError):
        return 502
    return code if type(code) is int and 400 <= code <= 599 else 502
