"""Files of JSON lines that are appended to while others may read them."""

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
