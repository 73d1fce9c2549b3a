"""What a comparison measured, and the numbers made from it."""

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from eldr.bench.load import Reply
from eldr.bench.scrape import Sample, Steps

BASELINES = ("round_robin", "random", "jsq", "p2c")


class PolicyRun(msgspec.Struct, frozen=True):
    """One run of one policy. steps: what each worker's counters grew by."""

    policy: str
    repeat: int
    replies: list[Reply]
    steps: dict[str, Steps]
    samples: list[Sample]


class Summary(msgspec.Struct, frozen=True):
    """One policy in numbers, over its repeats.

    active_experts: mean distinct experts a decode step and layer, over the steps of all workers.
    mean_batch: requests a decode step. tpot_p50_ms, ...: over requests; None where nothing was measured.
    per_worker: requests that each worker decoded. spread_*: of the repeats, largest minus smallest.
    """

    policy: str
    repeats: int
    requests: int
    active_experts: float
    mean_batch: float
    tpot_p50_ms: float | None
    tpot_p99_ms: float | None
    ttft_p50_ms: float | None
    per_worker: dict[str, int]
    active_by_repeat: list[float]
    tpot_p50_by_repeat: list[float | None]


def active_experts(run: PolicyRun) -> float:
    """Mean active experts a step and layer over all workers of a run."""
    return sum(s.active_sum for s in run.steps.values()) / sum(s.active_count for s in run.steps.values())


def mean_batch(runs: Sequence[PolicyRun], num_moe_layers: int) -> float:
    """Output tokens a decode step."""
    steps = [s for run in runs for s in run.steps.values()]
    return sum(s.tokens for s in steps) / (sum(s.active_count for s in steps) / num_moe_layers)


def summarize(runs: Sequence[PolicyRun], num_moe_layers: int) -> Summary:
    """The runs of one policy as a row of the table."""
    replies = [reply for run in runs for reply in run.replies]
    steps = [s for run in runs for s in run.steps.values()]
    workers = sorted({worker for run in runs for worker in run.steps})
    counts = Counter(reply.worker for reply in replies)
    return Summary(
        policy=runs[0].policy,
        repeats=len(runs),
        requests=len(replies),
        active_experts=sum(s.active_sum for s in steps) / sum(s.active_count for s in steps),
        mean_batch=mean_batch(runs, num_moe_layers),
        tpot_p50_ms=_percentile_ms([reply.tpot_s for reply in replies], 50),
        tpot_p99_ms=_percentile_ms([reply.tpot_s for reply in replies], 99),
        ttft_p50_ms=_percentile_ms([reply.ttft_s for reply in replies], 50),
        per_worker={worker: counts[worker] for worker in workers},
        active_by_repeat=[active_experts(run) for run in runs],
        tpot_p50_by_repeat=[_percentile_ms([reply.tpot_s for reply in run.replies], 50) for run in runs],
    )


def best_baseline(summaries: Sequence[Summary], field: str) -> Summary | None:
    """The baseline with the lowest value of `field`; None without a measured baseline."""
    measured = [s for s in summaries if s.policy in BASELINES and getattr(s, field) is not None]
    return min(measured, key=lambda s: float(getattr(s, field)), default=None)


def change(summaries: Sequence[Summary], summary: Summary, field: str) -> float | None:
    """`field` of a policy against the best baseline's, as a ratio minus 1; None where one is missing."""
    best, value = best_baseline(summaries, field), getattr(summary, field)
    return None if best is None or value is None else float(value / getattr(best, field) - 1.0)


def _percentile_ms(values_s: Sequence[float | None], q: float) -> float | None:
    measured = [value for value in values_s if value is not None]
    return float(np.percentile(measured, q) * 1e3) if measured else None
