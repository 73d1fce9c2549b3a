"""A worker's answer, parsed as it comes in.

A body that streams is not read by a task: whoever wants it gives a `Sink`, which is called from within the
event loop's read. That spares every chunk a queue, a copy and a task switch (docs/adr/0006-data-path.md).
"""

import asyncio
import os
import zlib
from collections.abc import Callable
from typing import Protocol

import httptools
from multidict import CIMultiDict, CIMultiDictProxy

from eldr.errors import UpstreamError
from eldr.pool import Worker

MAX_HEAD_BYTES = 64 * 1024
_INFLATED = ("gzip", "x-gzip", "deflate")
_ANY_WRAPPER = 32 + zlib.MAX_WBITS
"""zlib or gzip, whichever the data begins with."""


class BrokenOffError(UpstreamError):
    """The connection broke or fell silent after the request was sent: the worker may have started on it."""


class Sink(Protocol):
    """Takes the body of an answer. Called from the event loop: must neither block nor raise."""

    def take_chunk(self, data: bytes, now_s: float) -> bool:
        """Take what was received, framing and all, if it can go on as it is: one whole chunk. Else leave it.

        now_s: when it was received, by `time.monotonic`.
        """

    def take(self, data: bytes) -> None:
        """The next piece of the body."""

    def end(self, error: BrokenOffError | None) -> None:
        """The body ended, as it should or with an error. Called once."""


class Answer:
    """A worker's answer. status and headers are there once `head` has returned.

    express: takes what comes before `feed` does, by the parser, which stands between chunks; None elsewhere.
    """

    def __init__(self, worker: Worker, transport: asyncio.Transport) -> None:
        self.status = 0
        self.complete, self.reusable, self.paused = False, False, False
        self.express: Callable[[bytes, float], bool] | None = None
        self._worker, self._transport = worker, transport
        self._fields: CIMultiDict[str] = CIMultiDict()
        self.headers = CIMultiDictProxy(self._fields)
        self._parser = httptools.HttpResponseParser(self)
        self._head_bytes, self._head_done, self._until_close = 0, False, False
        self._chunk_ended, self._between_chunks, self._whole = False, False, False
        self._inflater: zlib._Decompress | None = None
        self._parts: list[bytes] = []
        self._sink: Sink | None = None
        self._error: BrokenOffError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def content_type(self) -> str:
        """The media type, without its parameters."""
        return self._fields.get("Content-Type", "").partition(";")[0].strip().lower()

    async def head(self) -> None:
        """Wait for status and headers. Raises BrokenOffError."""
        while not self._head_done:
            await self._news()

    async def read(self) -> bytes:
        """The whole body. Raises BrokenOffError."""
        while not self.complete:
            await self._news()
        return b"".join(self._parts)

    def pass_to(self, sink: Sink) -> None:
        """Give the body to `sink`, what has come already at once."""
        self._sink = sink
        self._deliver(sink)
        self.express = sink.take_chunk if self._between_chunks else None
        if self.complete or self._error is not None:
            sink.end(self._error)

    def pause(self) -> None:
        """Let the worker wait: read nothing more until `resume`."""
        if not self.paused and not self._transport.is_closing():
            self.paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on. A connection that is closing has nothing to read, and its answer ends at once."""
        if self.paused:
            self.paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def feed(self, data: bytes) -> None:
        """Bytes from the worker that `express`, if there is one, has not taken."""
        self._chunk_ended, malformed = False, None
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            malformed = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
        self._between_chunks = self._chunk_ended and self._inflater is None and data.endswith(b"\r\n")
        if self._sink is not None:
            self._deliver(self._sink)
            self.express = self._sink.take_chunk if self._between_chunks else None
        if self._whole:
            self.reusable = self.reusable and malformed is None
            self._completed()
        elif malformed is not None:
            self.fail(f"its answer is malformed: {malformed}")
        elif not self._head_done:  # only now, since the body may have come with the headers
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.fail(f"sent more than {MAX_HEAD_BYTES} bytes of headers")

    def let_go(self) -> None:
        """Forget who reads it, and its parser, once nothing more will come.

        They know each other, and only the garbage collector could tell that nobody knows them: it would have
        to stop the router for it.
        """
        del self._parser
        self._sink = self.express = None

    def lost(self, error: Exception | None) -> None:
        """The connection is gone: the end of an answer that lasts until then, else a failure."""
        if self._until_close and self._head_done and error is None and not self.complete:
            self._completed()
        else:
            number = getattr(error, "errno", None)
            closed = str(error or "it closed the connection")
            self.fail(os.strerror(number) if isinstance(number, int) and number > 0 else closed)

    def fail(self, reason: str) -> None:
        """End the answer with an error, unless it has ended."""
        if self.complete or self._error is not None:
            return
        self._error = BrokenOffError(f"worker {self._worker.id} ({self._worker.url}) broke off: {reason}")
        self._transport.abort()
        self._ended()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.add(name.decode("latin-1"), value.decode("utf-8", "surrogateescape"))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # an interim answer; the real one follows
            self._fields.clear()
            return
        self.status, self._head_done = status, True
        chunked = "chunked" in self._fields.get("Transfer-Encoding", "").lower()
        self._until_close = not chunked and "Content-Length" not in self._fields
        encoding = self._fields.get("Content-Encoding", "identity").strip().lower()
        if encoding in _INFLATED:
            self._inflater = zlib.decompressobj(_ANY_WRAPPER)
        elif encoding != "identity":
            raise ValueError(f"content encoding {encoding!r}, which was not asked for")
        self._wake()

    def on_body(self, data: bytes) -> None:
        self._parts.append(data if self._inflater is None else self._inflater.decompress(data))

    def on_chunk_header(self) -> None:
        self._chunk_ended = False

    def on_chunk_complete(self) -> None:
        self._chunk_ended = True

    def on_message_begin(self) -> None:
        if self._whole:
            raise ValueError("more than one answer")

    def on_message_complete(self) -> None:
        if self._head_done:
            self.reusable = self._parser.should_keep_alive() and not self._until_close
            self._whole = True

    def _deliver(self, sink: Sink) -> None:
        """Give what has come in one piece, so that the client gets it in one."""
        if self._parts:
            data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._parts.clear()
            sink.take(data)

    def _completed(self) -> None:
        if self._inflater is not None and not self._inflater.eof:
            self.fail("its compressed answer is cut off")
            return
        self.complete = True
        self._ended()

    def _ended(self) -> None:
        if self._sink is not None:
            self._sink.end(self._error)
        self._wake()

    async def _news(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        if self._error is not None:
            raise self._error

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
