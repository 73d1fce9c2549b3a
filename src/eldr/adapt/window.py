"""What the router saw lately: requests with the expert counts of their prompts."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from eldr.metrics.records import RequestRecord
from eldr.types import ExpertCounts

SmallCounts = npt.NDArray[np.uint16]
"""Counts [L, E]; larger ones are cut to the largest that there is room for."""

GONE = -1
"""The worker of a request whose worker has left the pool."""


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """A request that has ended, and the expert counts of its prompt, or None without."""

    record: RequestRecord
    counts: SmallCounts | None

    @classmethod
    def of(cls, record: RequestRecord, counts: ExpertCounts | None) -> Self:
        """The request with its counts in half of their room."""
        if counts is None:
            return cls(record, None)
        return cls(record, np.minimum(counts.counts, np.iinfo(np.uint16).max).astype(np.uint16))


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """N requests that ended with a whole answer, in order of decision, as columns.

    worker_ids: the decode workers of now, which `worker` int64 [N] counts; GONE for one that has left.
    decided_s, first_token_s, finish_s: float64 [N], seconds of one clock; first_token_s is NaN for an answer
    that was not streamed. prompt_tokens, output_tokens: int64 [N], at least 1.
    counts: uint16 [N, L, E], of the prompts; zero for those without. top_k: experts of a token and layer.
    """

    worker_ids: tuple[str, ...]
    worker: npt.NDArray[np.int64]
    decided_s: npt.NDArray[np.float64]
    first_token_s: npt.NDArray[np.float64]
    finish_s: npt.NDArray[np.float64]
    prompt_tokens: npt.NDArray[np.int64]
    output_tokens: npt.NDArray[np.int64]
    counts: npt.NDArray[np.uint16]
    top_k: int

    def __len__(self) -> int:
        return len(self.worker)

    @property
    def counted(self) -> npt.NDArray[np.bool_]:
        """[N]: requests with counts."""
        return np.asarray(self.counts.any(axis=(1, 2)))

    @property
    def tpot_s(self) -> npt.NDArray[np.float64]:
        """[N]: (finish - first token) / (output tokens - 1), NaN where it is not known."""
        gaps = np.where(self.output_tokens > 1, self.output_tokens - 1.0, np.nan)
        tpot: npt.NDArray[np.float64] = (self.finish_s - self.first_token_s) / gaps
        return tpot

    @classmethod
    def of(
        cls, seen: Sequence[Seen], worker_ids: tuple[str, ...], shape: tuple[int, int], top_k: int
    ) -> Self:
        """Columns of what was seen. shape: [L, E], for those without counts."""
        ordered = sorted(seen, key=lambda one: one.record.decided_s or 0.0)
        records = [one.record for one in ordered]
        numbers = {name: number for number, name in enumerate(worker_ids)}
        nothing = np.zeros(shape, np.uint16)
        counts = [nothing if one.counts is None else one.counts for one in ordered]
        return cls(
            worker_ids=worker_ids,
            worker=np.array([numbers.get(r.decode_worker or "", GONE) for r in records], np.int64),
            decided_s=_times(r.decided_s for r in records),
            first_token_s=_times(r.first_token_s for r in records),
            finish_s=_times(r.finish_s for r in records),
            prompt_tokens=np.array([r.prompt_tokens or 1 for r in records], np.int64),
            output_tokens=np.array([r.output_tokens or 1 for r in records], np.int64),
            counts=np.stack(counts) if counts else np.zeros((0, *shape), np.uint16),
            top_k=top_k,
        )


class Recorder:
    """Keeps the latest requests that ended with a whole answer: `capacity` of them. For one event loop."""

    def __init__(self, capacity: int) -> None:
        self._seen: deque[Seen] = deque(maxlen=capacity)

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, seen: Seen) -> None:
        """Keep a request, unless it is of no use."""
        if seen.record.outcome == "ok" and seen.record.decided_s is not None:
            self._keep(seen)

    def seen(self) -> list[Seen]:
        """What is kept, oldest first."""
        return list(self._seen)

    def forget(self, before_s: float = np.inf) -> None:
        """Forget what was decided before a time, or all."""
        while self._seen and (self._seen[0].record.decided_s or 0.0) < before_s:
            self._seen.popleft()

    def _keep(self, seen: Seen) -> None:
        self._seen.append(seen)


class Sampler(Recorder):
    """Keeps only every n-th request with counts, n so that what is kept goes back for about `window_s`."""

    def __init__(self, capacity: int, window_s: float) -> None:
        super().__init__(capacity)
        self._window_s, self._every, self._passed = window_s, 1, 0

    def add(self, seen: Seen) -> None:
        self._passed += 1
        if seen.counts is not None and self._passed % self._every == 0:
            super().add(seen)

    @property
    def capacity(self) -> int:
        """Requests that it keeps, at most."""
        assert self._seen.maxlen is not None
        return self._seen.maxlen

    def hold(self, capacity: int) -> None:
        """Keep so many requests at most from now on, of those that are kept the latest."""
        if capacity != self.capacity:
            self._seen = deque(self._seen, capacity)

    def forget(self, before_s: float = np.inf) -> None:
        """As Recorder does. There is room then, so all is kept again until it is full."""
        super().forget(before_s)
        self._every = 1

    def _keep(self, seen: Seen) -> None:
        if len(self._seen) == self._seen.maxlen:
            span_s = seen.record.finish_s - self._seen[0].record.finish_s
            if span_s < self._window_s:
                self._every *= 2
                self._seen = deque(list(self._seen)[1::2], self._seen.maxlen)
            elif span_s > 2 * self._window_s and self._every > 1:
                self._every //= 2
        super()._keep(seen)


def _times(values: Iterable[float | None]) -> npt.NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in values], np.float64)
