"""Chunks of a stream that can go on to the client as they came, framing and all, without any parser.

Nearly all of a stream is chunks (RFC 9112, 7.1) in vLLM's form that hold one event of output each:

    f3\r\n                                                  the size, as `%x` writes it
    data: {"id":"cmpl-1", ... "usage":null}\n\n             one line: one event, neither an error nor an end
    \r\n

A few comparisons tell them, so that a token costs little (docs/adr/0009-lean-paths.md). Whatever differs in a
byte of its framing, or may be anything else, goes through the parsers.
"""

LONGEST = 4096
"""Bytes of the longest chunk that is told this way."""

_TAIL = b"}\n\n\r\n"
_NO_USAGE = b'"usage":null' + _TAIL


def _head(length: int) -> bytes:
    """How a chunk of this many bytes in all begins; where there is none, something that begins no chunk."""
    for digits in range(1, 4):
        size = length - digits - len("\r\n\r\n")
        if size > 0 and len(framed := b"%x\r\n" % size) == digits + 2:
            return framed + b'data: {"id":'
    return b"\r"


_HEADS = tuple(_head(length) for length in range(LONGEST))


def is_output(data: bytes) -> bool:
    """Whether these bytes are exactly one whole chunk, with one whole event of output and no usage in it."""
    length = len(data)
    return (
        length < LONGEST
        and data.startswith(_HEADS[length])
        and data.find(b"\n", 8) == length - 4  # the first line end after the size ends the event
        and (data.endswith(_NO_USAGE) or (data.endswith(_TAIL) and b'"usage":' not in data))
    )
