"""Files of JSON lines that are appended to while others may read them."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from eldr.errors import EldrError

T = TypeVar("T", bound=msgspec.Struct)


def read_lines(path: str | Path, kind: type[T], what: str) -> Iterator[T]:
    """The lines of a file, without a last one that was cut off. Another bad line raises EldrError.

    what: the kind in words, for the error.
    """
    decoder = msgspec.json.Decoder(kind)
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield decoder.decode(line)
            except msgspec.DecodeError as error:
                raise EldrError(f"{path}, line {number}: not {what}: {error}") from None


def append_line(file: int, line: bytes) -> None:
    """Append to a file that was opened with O_APPEND: the whole line or nothing of it. Raises OSError.

    In one write, so that lines of several processes do not mix.
    """
    written = os.write(file, line)
    if written < len(line):  # the disk has become full in the middle
        end = os.lseek(file, 0, os.SEEK_CUR)
        if os.fstat(file).st_size == end:
            os.ftruncate(file, end - written)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
