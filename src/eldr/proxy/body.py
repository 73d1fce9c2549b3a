"""The body of a client's request: without its chunks and its compression, and within limits."""

import asyncio
import re
import zlib
from collections.abc import Callable
from io import BytesIO

from eldr.proxy.room import NoRoomError, Room

MAX_LINE_BYTES = 8 * 1024
"""Of the size of a chunk with its extensions, and of a trailer."""

MAX_TRAILERS = 128
MAX_PARTS = 64
"""Of a compressed body."""

MAX_RATIO = 50
"""Of a body to its compressed form: far above that of text, far below the 1000 of one made to fill memory."""

ALWAYS_INFLATED_BYTES = 1024 * 1024
"""Of a body that may compress as well as it likes."""

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_QUOTED = rb'"(?:[\t !#-[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*"'
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;%b(?:=(?:%b|%b))?)*" % (_TOKEN, _TOKEN, _QUOTED))
_TRAILER = re.compile(rb"%b:[\t -~\x80-\xff]*" % _TOKEN)
_WRAPPERS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_BARE = -zlib.MAX_WBITS
"""Deflate without its header, which some clients send in spite of RFC 9110, 8.4.1.2."""


class MalformedBodyError(Exception):
    """The body is not framed or compressed as it must be. The message quotes nothing of it."""


class TooLargeError(Exception):
    """The body is larger than the limit."""

    def __init__(self, limit_bytes: int, why: str = "") -> None:
        super().__init__(f"the body is larger than {limit_bytes} bytes{why}")


class Body:
    """A body as it comes in; kept until it is taken, or dropped where it cannot be.

    complete: its end has come. malformed: it never will. compressed: in a way that is known here.
    on_wanted: called when somebody waits for it.
    Once it is waited for it counts in a room, until `let_go`.
    """

    __slots__ = (
        *("_chunks", "_counted", "_data", "_encoding", "_error", "_left", "_limit", "_room", "_size"),
        *("_waiter", "complete", "compressed", "malformed", "on_wanted"),
    )

    def __init__(self, length: int | None, limit_bytes: int, encoding: str = "") -> None:
        self.complete, self.malformed = length == 0, False
        self.on_wanted: Callable[[], None] | None = None
        self._left, self._limit, self._encoding = length or 0, limit_bytes, encoding.strip().lower()
        self.compressed = self._encoding in _WRAPPERS
        self._chunks = Chunks() if length is None else None
        self._data: bytes | BytesIO = b""
        self._size = self._counted = 0
        self._room: Room | None = None
        self._error: Exception | None = TooLargeError(limit_bytes) if self._left > limit_bytes else None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def held_bytes(self) -> int:
        """What waits for somebody to take it; 0 while somebody does."""
        return 0 if self._waiter is not None or self._error is not None else self._size

    @property
    def most_bytes(self) -> int:
        """What it can become without its compression."""
        return _most(self._size, self._limit) if self.compressed else self._size

    def feed(self, data: bytes) -> bytes:
        """Take what belongs to the body; return what comes after its end."""
        if self._chunks is None:
            part, rest = data[: self._left], data[self._left :]
            self._left -= len(part)
            self.complete = self._left == 0
        else:
            try:
                part, rest = self._chunks.feed(data)
            except MalformedBodyError as error:
                self.malformed = True
                self._fail(error)
                return b""
            self.complete = self._chunks.complete
        self._keep(part)
        if self.complete:
            self._wake()
        return rest

    def drop(self) -> None:
        """Keep nothing: nobody will read it."""
        self._fail(TooLargeError(self._limit))

    async def arrive(self, room: Room) -> None:
        """Wait for its end. Raises MalformedBodyError, TooLargeError and NoRoomError, as soon as may be."""
        self._room = room
        self.count(self._size)
        if not self.complete:
            room.check(self._left, self._size + self._left)
        while self._error is None and not self.complete:
            self._waiter = asyncio.get_running_loop().create_future()
            if self.on_wanted is not None:
                self.on_wanted()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._error is not None:
            raise self._error

    def take(self) -> bytes:
        """All that has arrived, without its compression. Raises MalformedBodyError and TooLargeError."""
        kept, self._data = self._data, b""
        data = kept if isinstance(kept, bytes) else kept.getvalue()  # which is no copy
        return _decompressed(data, self._encoding, self._limit) if self.compressed else data

    def count(self, size: int) -> None:
        """Have it count as so large. Raises NoRoomError."""
        if self._room is not None:
            self._room.take(size - self._counted, size)
            self._counted = size

    def let_go(self) -> None:
        """Count it no more: nobody holds what was taken."""
        if self._room is not None:
            self._room.give_back(self._counted)
            self._room, self._counted = None, 0

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._limit:
            self._fail(TooLargeError(self._limit))
        if self._error is not None:
            return
        try:
            self.count(self._size)
        except NoRoomError as error:
            self._fail(error)
            return
        if not self._data:
            self._data = part
        elif part:
            if isinstance(self._data, bytes):
                first, self._data = self._data, BytesIO()
                self._data.write(first)
            self._data.write(part)

    def _fail(self, error: Exception) -> None:
        self._error, self._data = self._error or error, b""
        self.let_go()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Chunks:
    """Takes the framing off a body in chunks (RFC 9112, 7.1); extensions and trailers are dropped."""

    def __init__(self) -> None:
        self.complete = False
        self._rest = b""  # of a line that has not ended
        self._left = 0  # bytes of the chunk that are still to come
        self._ends_chunk = False  # the next line is the empty one after a chunk
        self._trailers: int | None = None  # lines of them so far, once the last chunk has come

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """The part of the body in these bytes, and what comes after its end. Raises MalformedBodyError."""
        data, at, parts = self._rest + data, 0, []
        while not self.complete:
            if self._left:
                part = data[at : at + self._left]
                parts.append(part)
                at += len(part)
                self._left -= len(part)
            if self._ends_chunk and not b"\r\n".startswith(data[at : at + 2]):
                raise MalformedBodyError("a chunk is not as long as it says")
            end = data.find(b"\r\n", at)
            if self._left or end < 0:
                break
            self._take_line(data[at:end])
            at = end + 2
        rest = data[at:]
        if self.complete:
            return b"".join(parts), rest
        _check_length(rest)
        self._rest = rest
        return b"".join(parts), b""

    def _take_line(self, line: bytes) -> None:
        _check_length(line)
        if self._ends_chunk:
            self._ends_chunk = False
        elif self._trailers is None:
            size = _SIZE.fullmatch(line)
            if size is None:
                raise MalformedBodyError("the size of a chunk is no number")
            self._left = int(size[1], 16)
            self._ends_chunk = self._left > 0
            self._trailers = None if self._left else 0
        elif not line:
            self.complete = True
        else:
            self._trailers += 1
            if self._trailers > MAX_TRAILERS or _TRAILER.fullmatch(line) is None:
                raise MalformedBodyError("a trailer is no header, or there are too many")


def _check_length(line: bytes) -> None:
    if len(line) > MAX_LINE_BYTES:
        raise MalformedBodyError("the size of a chunk, or a trailer, is too long")


def _most(size: int, limit_bytes: int) -> int:
    """What a compressed body of this size may become."""
    return min(limit_bytes, max(ALWAYS_INFLATED_BYTES, MAX_RATIO * size))


def _decompressed(data: bytes, encoding: str, limit_bytes: int) -> bytes:
    """The body without its compression. Raises MalformedBodyError and TooLargeError."""
    bare = encoding == "deflate" and data and data[0] & 0xF != zlib.DEFLATED
    wrapper = _BARE if bare else _WRAPPERS[encoding]
    most = left = _most(len(data), limit_bytes)
    parts: list[bytes] = []
    while data or not parts:  # gzip may come in several, one after the other
        if len(parts) == MAX_PARTS:
            raise MalformedBodyError(f"its {encoding} has more than {MAX_PARTS} parts")
        inflater = zlib.decompressobj(wrapper)
        try:
            parts.append(inflater.decompress(data, left + 1))
        except zlib.error:
            raise MalformedBodyError(f"it is not compressed by {encoding}") from None
        left -= len(parts[-1])
        if left < 0:
            why = "" if most == limit_bytes else f" and {MAX_RATIO} times its compressed form"
            raise TooLargeError(most, why)
        if not inflater.eof:
            raise MalformedBodyError(f"its {encoding} is cut off")
        data = inflater.unused_data
    return b"".join(parts)
