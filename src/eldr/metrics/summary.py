"""Summaries of request records: the numbers of a table's row."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from eldr.metrics.records import RequestRecord


@dataclass(frozen=True, slots=True)
class Spread:
    """A sample's size, mean and percentiles, in the unit of the sample."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class Summary:
    """Some requests in numbers. Times in seconds, over requests of outcome "ok" only; None without any.

    duration_s: first arrival to last finish.
    per_worker: requests that each decode worker finished or began. fallbacks: requests by reason.
    """

    requests: int
    outcomes: dict[str, int]
    duration_s: float
    output_tokens: int
    ttft_s: Spread | None
    tpot_s: Spread | None
    per_worker: dict[str, int]
    fallbacks: dict[str, int]


def spread(values: Iterable[float | None]) -> Spread | None:
    """Spread of the values that are not None; None when there are none. Percentiles interpolate linearly."""
    sample = np.array([value for value in values if value is not None], dtype=np.float64)
    if sample.size == 0:
        return None
    p50, p90, p99 = np.percentile(sample, [50, 90, 99]).tolist()
    return Spread(count=sample.size, mean=float(sample.mean()), p50=p50, p90=p90, p99=p99)


def summarize(records: Sequence[RequestRecord]) -> Summary:
    """Sum records up."""
    ok = [record for record in records if record.outcome == "ok"]
    return Summary(
        requests=len(records),
        outcomes=_counted(record.outcome for record in records),
        duration_s=_duration_s(records),
        output_tokens=sum(record.output_tokens or 0 for record in ok),
        ttft_s=spread(record.ttft_s for record in ok),
        tpot_s=spread(record.tpot_s for record in ok),
        per_worker=_counted(record.decode_worker for record in records),
        fallbacks=_counted(record.fallback for record in records),
    )


def _duration_s(records: Sequence[RequestRecord]) -> float:
    if not records:
        return 0.0
    return max(record.finish_s for record in records) - min(record.arrival_s for record in records)


def _counted(names: Iterable[str | None]) -> dict[str, int]:
    counts = Counter(name for name in names if name is not None)
    return dict(sorted(counts.items()))
