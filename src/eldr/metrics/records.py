"""One record a request, from which every table and plot is made. Definitions: docs/metrics.md."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from eldr.errors import ConfigError
from eldr.metrics.lines import append_line, read_lines

Outcome = Literal[
    "ok",  # the client got a whole answer of status 200
    "refused",  # an engine or the router answered with an error status before any output
    "broken",  # the decode worker failed after output had been sent
    "cancelled",  # the client left
]


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One request, from its arrival at the router to the last byte of its answer.

    Times ending in _s are seconds of one monotonic clock (comparable within one process); `started_at` is the
    wall clock (Unix seconds) at arrival. Anything that was not reached or not measured is None.

    first_token_s: the first output event passed on; for an answer that is not streamed, None.
    output_tokens: as the engine's usage counts them.
    in_flight: requests on the decode worker before this one. Decision fields: see eldr.types.Decision.
    attempts: decode workers that were tried.
    """

    request_id: str
    path: str
    model: str | None = None
    stream: bool = False
    label: str | None = None
    started_at: float
    arrival_s: float
    prefill_done_s: float | None = None
    decided_s: float | None = None
    first_token_s: float | None = None
    finish_s: float
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    prefill_worker: str | None = None
    decode_worker: str | None = None
    policy: str | None = None
    similarity: float | None = None
    best_similarity: float | None = None
    band_size: int | None = None
    in_flight: int | None = None
    fallback: str | None = None
    attempts: int = 0
    status: int | None = None
    outcome: Outcome
    error: str | None = None

    @property
    def ttft_s(self) -> float | None:
        """Time to first token: arrival to first output."""
        return None if self.first_token_s is None else self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token: (finish - first token) / (output tokens - 1), None below two tokens."""
        if self.first_token_s is None or self.output_tokens is None or self.output_tokens < 2:
            return None
        return (self.finish_s - self.first_token_s) / (self.output_tokens - 1)

    @property
    def duration_s(self) -> float:
        """Arrival to last byte."""
        return self.finish_s - self.arrival_s


class RecordWriter:
    """Appends records to a file, one JSON line each, as requests end."""

    def __init__(self, path: str) -> None:
        """Open the file for appending. Raises ConfigError when that cannot be done."""
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise ConfigError(f"records: cannot write {path}: {error.strerror}") from None

    def write(self, record: RequestRecord) -> None:
        """Append one line. Raises OSError."""
        append_line(self._fd, msgspec.json.encode(record) + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def read_records(path: str | Path) -> Iterator[RequestRecord]:
    """The records of a file, without a last line that was cut off. Another bad line raises EldrError."""
    return read_lines(path, RequestRecord, "a request record")
