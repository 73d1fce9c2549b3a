"""Policies compared over several seeds: the same requests for all of them at each seed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from scipy import stats

from eldr.metrics.summary import Spread
from eldr.profile.artifact import Profile
from eldr.sim.cost import StepCost
from eldr.sim.records import SimResult
from eldr.sim.requests import Requests
from eldr.sim.simulation import simulate
from eldr.sim.spec import ClusterSpec


class Interval(msgspec.Struct, frozen=True):
    """A mean over seeds and its 95 % interval (Student's t); None for the ends where there is one seed."""

    mean: float
    low: float | None
    high: float | None


class PolicyRow(msgspec.Struct, frozen=True, kw_only=True):
    """One policy. Percentiles are over requests, then averaged over seeds; None where nothing was measured.

    busiest, idlest: requests of the decode worker with the most and the least, against the mean.
    tpot_change: median TPOT against `reference` at the same seed, as ratio - 1; None for itself.
    """

    policy: str
    outcomes: dict[str, int]
    tpot_p50_ms: Interval | None
    tpot_p99_ms: Interval | None
    ttft_p50_ms: Interval | None
    ttft_p99_ms: Interval | None
    active_experts: Interval | None
    mean_batch: Interval | None
    output_tokens_per_s: Interval | None
    busiest: Interval | None
    idlest: Interval | None
    reference: str | None = None
    tpot_change: Interval | None = None


class Figures(msgspec.Struct, frozen=True):
    """One run in numbers; names as in PolicyRow."""

    outcomes: dict[str, int]
    tpot_p50_ms: float | None
    tpot_p99_ms: float | None
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    active_experts: float | None
    mean_batch: float | None
    output_tokens_per_s: float | None
    busiest: float | None
    idlest: float | None


MEASURED = tuple(name for name in Figures.__struct_fields__ if name != "outcomes")

BASELINES = ("round_robin", "random", "jsq", "p2c")
"""Policies that know no experts."""


def compare(
    make: Callable[[int], Requests],
    cluster: ClusterSpec,
    policies: Mapping[str, Mapping[str, Any]],
    profile: Profile | None,
    cost: StepCost,
    seeds: Sequence[int],
    *,
    in_flight: int | None = None,
    advance: Callable[[], None] = lambda: None,
) -> list[PolicyRow]:
    """One row a policy (name -> options), in order. make: the requests of a seed."""
    runs: dict[str, list[Figures]] = {name: [] for name in policies}
    for seed in seeds:
        requests = make(seed)
        for name, options in policies.items():
            result = simulate(
                requests,
                cluster,
                name,
                profile,
                cost,
                seed,
                options=options,
                in_flight=in_flight,
                advance=advance,
            )
            runs[name].append(figures(result))
    best = reference(runs)
    return [_row(name, own, best, runs) for name, own in runs.items()]


def figures(result: SimResult) -> Figures:
    """The numbers of one run."""
    summary = result.summary
    shares = np.array(summary.per_worker) / max(1e-9, np.mean(summary.per_worker))
    return Figures(
        outcomes=summary.outcomes,
        tpot_p50_ms=_ms(summary.tpot_s, "p50"),
        tpot_p99_ms=_ms(summary.tpot_s, "p99"),
        ttft_p50_ms=_ms(summary.ttft_s, "p50"),
        ttft_p99_ms=_ms(summary.ttft_s, "p99"),
        active_experts=summary.active_experts,
        mean_batch=summary.mean_batch,
        output_tokens_per_s=summary.output_tokens_per_s,
        busiest=float(shares.max()),
        idlest=float(shares.min()),
    )


def reference(runs: Mapping[str, Sequence[Figures]]) -> str | None:
    """The policy to compare with: the baseline with the lowest median TPOT; None where none was run."""
    medians = {
        name: float(np.mean([run.tpot_p50_ms for run in own if run.tpot_p50_ms is not None]))
        for name, own in runs.items()
        if name in BASELINES and any(run.tpot_p50_ms is not None for run in own)
    }
    return min(medians, key=lambda name: medians[name]) if medians else None


def interval(values: Sequence[float | None]) -> Interval | None:
    """Mean and interval of what was measured; None without any."""
    sample = np.array([value for value in values if value is not None])
    if not len(sample):
        return None
    mean = float(sample.mean())
    if len(sample) == 1:
        return Interval(mean, None, None)
    half = float(stats.t.ppf(0.975, len(sample) - 1) * sample.std(ddof=1) / np.sqrt(len(sample)))
    return Interval(mean, mean - half, mean + half)


def _row(name: str, own: list[Figures], best: str | None, runs: Mapping[str, list[Figures]]) -> PolicyRow:
    outcomes: dict[str, int] = {}
    for run in own:
        outcomes = {key: outcomes.get(key, 0) + value for key, value in run.outcomes.items()}
    change = None
    if best is not None and best != name:
        pairs = zip(own, runs[best], strict=True)
        change = interval([_change(ours.tpot_p50_ms, theirs.tpot_p50_ms) for ours, theirs in pairs])
    measured = {field: interval([getattr(run, field) for run in own]) for field in MEASURED}
    return PolicyRow(policy=name, outcomes=outcomes, reference=best, tpot_change=change, **measured)


def _change(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or theirs is None else ours / theirs - 1


def _ms(spread: Spread | None, name: str) -> float | None:
    return None if spread is None else float(getattr(spread, name)) * 1e3
