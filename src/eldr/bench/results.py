"""What a comparison measured, and the numbers made from it."""

from collections.abc import Callable, Sequence

import msgspec

from eldr.bench.load import Reply
from eldr.bench.scrape import Steps
from eldr.bench.steplog import Step
from eldr.metrics.summary import Summary, summarize

BASELINES = ("round_robin", "random", "jsq", "p2c")
COMPARED = (*BASELINES, "locality_band", "soft_locality")
"""The baselines, the paper's policy, and the router's default."""


class PolicyRun(msgspec.Struct, frozen=True):
    """One run of one policy. steps: what each worker's counters grew by; log: every decode step."""

    policy: str
    repeat: int
    replies: list[Reply]
    steps: dict[str, Steps]
    log: list[Step]

    @property
    def total(self) -> Steps:
        """The counters added up over workers."""
        return sum(self.steps.values(), Steps())

    @property
    def active_experts(self) -> float:
        """Mean distinct experts a decode step and layer, over the steps of all workers."""
        return self.total.active_experts

    @property
    def summary(self) -> Summary:
        return summarize([reply.record for reply in self.replies])

    @property
    def tpot_p50_ms(self) -> float:
        tpot = self.summary.tpot_s
        assert tpot is not None, "a run without a single answer of two tokens"
        return tpot.p50 * 1e3


class Row(msgspec.Struct, frozen=True):
    """One policy in numbers, over all its repeats.

    active_experts: mean distinct experts a decode step and layer, over the steps of all workers.
    mean_batch: output tokens a decode step. Percentiles are over requests.
    per_worker: requests that each worker decoded. *_by_repeat: the same number for each repeat alone.
    """

    policy: str
    repeats: int
    requests: int
    active_experts: float
    mean_batch: float
    tpot_p50_ms: float
    tpot_p99_ms: float
    ttft_p50_ms: float
    per_worker: dict[str, int]
    active_experts_by_repeat: list[float]
    tpot_p50_ms_by_repeat: list[float]


def row(runs: Sequence[PolicyRun]) -> Row:
    """The runs of one policy as a row of the table."""
    total = sum((run.total for run in runs), Steps())
    everything = summarize([reply.record for run in runs for reply in run.replies])
    tpot, ttft = everything.tpot_s, everything.ttft_s
    assert tpot is not None, "a run without a single answer of two tokens"
    assert ttft is not None
    return Row(
        policy=runs[0].policy,
        repeats=len(runs),
        requests=everything.requests,
        active_experts=total.active_experts,
        mean_batch=total.mean_batch,
        tpot_p50_ms=tpot.p50 * 1e3,
        tpot_p99_ms=tpot.p99 * 1e3,
        ttft_p50_ms=ttft.p50 * 1e3,
        per_worker={worker: everything.per_worker.get(worker, 0) for worker in runs[0].steps},
        active_experts_by_repeat=[run.active_experts for run in runs],
        tpot_p50_ms_by_repeat=[run.tpot_p50_ms for run in runs],
    )


def rows(runs: Sequence[PolicyRun]) -> list[Row]:
    """One row a policy, in order of first appearance."""
    policies = dict.fromkeys(run.policy for run in runs)
    return [row([run for run in runs if run.policy == policy]) for policy in policies]


class Change(msgspec.Struct, frozen=True):
    """A policy's number against the best baseline's: ratio - 1, negative when it is lower (better)."""

    policy: str
    baseline: str
    ratio: float


def change(table: Sequence[Row], policy: str, value: Callable[[Row], float]) -> Change | None:
    """`policy` against the baseline with the lowest value; None where the table lacks one of them."""
    own = [entry for entry in table if entry.policy == policy]
    baselines = [entry for entry in table if entry.policy in BASELINES]
    if not own or not baselines:
        return None
    best = min(baselines, key=value)
    return Change(policy, best.policy, value(own[0]) / value(best) - 1.0)
