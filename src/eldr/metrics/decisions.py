"""The decision log: everything that is needed to take the router's decisions again, another way.

One JSON line a decision, written when its request ends, in files that are rotated by size. Fields:
docs/metrics.md, "Decision log".
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from eldr.errors import ConfigError
from eldr.metrics.lines import append_line, read_lines
from eldr.metrics.records import RequestRecord
from eldr.types import Decision, PoolView, RoutingRequest


class DecisionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One decision: what the policy saw, what it chose, and what came of it.

    Lists are in the order of `worker_ids` and as of just before the decision. Times as in RequestRecord;
    `time` is the wall clock (Unix seconds) of the decision.
    similarities: cosine of the signature and each centroid, null for a worker without one; None where there
    was no signature.
    attempt: 1, or more where earlier choices failed; only the last one has an end.
    """

    time: float
    request_id: str
    attempt: int
    arrival_s: float
    decided_s: float
    worker_ids: tuple[str, ...]
    available: list[bool]
    in_flight: list[int]
    in_flight_tokens: list[float]
    similarities: list[float | None] | None
    label: str | None
    prompt_tokens: int | None
    max_tokens: int | None
    policy: str
    decode_worker: str
    band_size: int
    fallback: str | None
    outcome: str | None = None
    first_token_s: float | None = None
    finish_s: float | None = None
    output_tokens: int | None = None


class Decided(msgspec.Struct, frozen=True):
    """A decision that waits for the end of its request."""

    at_s: float
    request: RoutingRequest
    decision: Decision
    view: PoolView
    fallback: str | None


def explain(end: RequestRecord, attempt: int, decided: Decided, *, last: bool) -> DecisionRecord:
    """The line of one decision of a request that has ended."""
    view, decision = decided.view, decided.decision
    return DecisionRecord(
        time=end.started_at + decided.at_s - end.arrival_s,
        request_id=end.request_id,
        attempt=attempt,
        arrival_s=end.arrival_s,
        decided_s=decided.at_s,
        worker_ids=view.worker_ids,
        available=view.available.tolist(),
        in_flight=view.in_flight.tolist(),
        in_flight_tokens=view.in_flight_tokens.tolist(),
        similarities=_similarities(decided),
        label=end.label,
        prompt_tokens=decided.request.prompt_tokens,
        max_tokens=decided.request.max_tokens,
        policy=decision.policy,
        decode_worker=decision.worker_id,
        band_size=decision.band_size,
        fallback=decided.fallback,
        outcome=end.outcome if last else None,
        first_token_s=end.first_token_s if last else None,
        finish_s=end.finish_s if last else None,
        output_tokens=end.output_tokens if last else None,
    )


class DecisionLog:
    """Appends lines to `path`; a full file becomes `path.1`, that one `path.2`, and so on up to `files`."""

    def __init__(self, path: str, limit_bytes: int, files: int) -> None:
        """Open the file for appending. Raises ConfigError when that cannot be done."""
        self._path, self._limit_bytes, self._files = Path(path), limit_bytes, files
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = _open(self._path)
            self._size = os.fstat(self._fd).st_size
        except OSError as error:
            raise ConfigError(f"decision_log: cannot write {path}: {error.strerror}") from None

    def write(self, end: RequestRecord, decisions: Sequence[Decided]) -> None:
        """Append the decisions of a request that has ended. Raises OSError."""
        for attempt, decided in enumerate(decisions, 1):
            self._append(explain(end, attempt, decided, last=attempt == len(decisions)))

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _append(self, record: DecisionRecord) -> None:
        line = msgspec.json.encode(record) + b"\n"
        if self._size and self._size + len(line) > self._limit_bytes:
            self._rotate()
        append_line(self._fd, line)
        self._size += len(line)

    def _rotate(self) -> None:
        """Put a new file in place, after older ones made room: a reader finds whole files, each line in one.

        What fails leaves all lines where they are, to be tried again.
        """
        fresh_path = self._path.with_name(f".{self._path.name}.new")
        fresh = _open(fresh_path)
        try:
            for number in range(self._free_number(), 0, -1):
                _numbered(self._path, number - 1).replace(_numbered(self._path, number))
            fresh_path.replace(self._path)
        except OSError:
            os.close(fresh)
            raise
        os.close(self._fd)
        self._fd, self._size = fresh, 0

    def _free_number(self) -> int:
        """Of the file that the youngest ones move up to: one that is missing, or the oldest that is kept."""
        numbers = range(self._files - 1)
        return next((n for n in numbers if not _numbered(self._path, n).exists()), self._files - 1)


def read_decisions(path: str | Path) -> Iterator[DecisionRecord]:
    """The decisions of one file, without a last line that was cut off. Another bad line raises EldrError."""
    return read_lines(path, DecisionRecord, "a decision")


def _similarities(decided: Decided) -> list[float | None] | None:
    """Cosine with each centroid; computed here where the policy did not, so that it can be replayed."""
    signature, view, cosines = decided.request.signature, decided.view, decided.decision.similarities
    if cosines is None:
        if signature is None or view.centroids is None or view.centroids.shape[1] != len(signature):
            return None
        cosines = (view.centroids @ signature).astype(np.float64)
    rounded = np.round(cosines, 5).tolist()
    return [cosine if has else None for cosine, has in zip(rounded, view.has_centroid, strict=True)]


def _numbered(path: Path, number: int) -> Path:
    return path if number == 0 else path.with_name(f"{path.name}.{number}")


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
