"""The journal of a calibration run: finished requests on disk at once, so that an interrupted run continues.

JSON lines. The first names what the run measures; the others hold one observation each. A last line that a
crash cut short is dropped.
"""

import base64
import binascii
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from eldr.calibrate.observation import Observation
from eldr.errors import CalibrationError, ConfigError
from eldr.types import Counts


class Header(msgspec.Struct, frozen=True):
    """What the observations of a journal have in common; a run continues only a journal that measured the
    same.
    """

    model: str
    source: str
    max_tokens: int


class Entry(msgspec.Struct, frozen=True):
    """One observation. key: names the prompt; shape: [L, E]; counts: base64 of zlib of little-endian
    uint32.
    """

    key: str
    shape: tuple[int, int]
    top_k: int
    prompt_tokens: int
    output_tokens: int
    prefill: str
    decode: str


class Journal:
    """Opens or creates `path`, reads what it holds, appends to it. Close it, or use it as a context
    manager.

    Raises CalibrationError for a file that is damaged or of another run, which is left as it is, and
    ConfigError where the file cannot be written.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self.done: dict[str, Observation] = {}
        with _os_errors(path):
            if path.exists():
                self._read(header)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab")
        if self._file.tell() == 0:
            self._write_line(msgspec.json.encode(header))

    def append(self, key: str, observation: Observation) -> None:
        """Store one observation; it survives a crash of this process."""
        self._write_line(msgspec.json.encode(_pack_entry(key, observation)))
        self.done[key] = observation

    def close(self) -> None:
        with suppress(OSError):  # of a line that could not be written, which was said then
            self._file.close()

    def delete(self) -> None:
        """Close and remove the journal, once its observations are stored elsewhere."""
        self.close()
        self.path.unlink()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _write_line(self, line: bytes) -> None:
        with _os_errors(self.path):
            self._file.write(line + b"\n")
            self._file.flush()

    def _read(self, header: Header) -> None:
        whole, _, cut_short = self.path.read_bytes().rpartition(b"\n")
        if whole or not msgspec.json.encode(header).startswith(cut_short):
            self._read_lines(whole, header)
        os.truncate(self.path, len(whole) + len(b"\n") if whole else 0)

    def _read_lines(self, whole: bytes, header: Header) -> None:
        first, *rest = whole.split(b"\n")
        try:
            found = msgspec.json.decode(first, type=Header)
            entries = [msgspec.json.decode(line, type=Entry) for line in rest]
            self.done = {entry.key: _unpack_entry(entry) for entry in entries}
        except (msgspec.DecodeError, ValueError, binascii.Error, zlib.error) as error:
            raise CalibrationError(f"{self.path} is damaged ({error}); delete it to start over") from error
        if found != header:
            raise CalibrationError(
                f"{self.path} is of another run ({_differences(found, header)}); "
                "delete it or choose another output file"
            )


@contextmanager
def _os_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; choose another output file") from error


def _differences(found: Header, wanted: Header) -> str:
    pairs = {name: (getattr(found, name), getattr(wanted, name)) for name in Header.__struct_fields__}
    return ", ".join(f"{name} {a!r}, now {b!r}" for name, (a, b) in pairs.items() if a != b)


def _pack_entry(key: str, seen: Observation) -> Entry:
    layers, experts = seen.prefill.shape
    sizes: dict[str, Any] = {"prompt_tokens": seen.prompt_tokens, "output_tokens": seen.output_tokens}
    return Entry(
        key, (layers, experts), seen.top_k, **sizes, prefill=_pack(seen.prefill), decode=_pack(seen.decode)
    )


def _unpack_entry(entry: Entry) -> Observation:
    prefill, decode = (_unpack(packed, entry.shape) for packed in (entry.prefill, entry.decode))
    return Observation(prefill, decode, entry.top_k, entry.prompt_tokens, entry.output_tokens)


def _pack(counts: Counts) -> str:
    return base64.b64encode(zlib.compress(counts.astype("<u4").tobytes(), 1)).decode()


def _unpack(packed: str, shape: tuple[int, int]) -> Counts:
    raw = zlib.decompress(base64.b64decode(packed, validate=True))
    return np.frombuffer(raw, "<u4").reshape(shape).astype(np.uint32)
