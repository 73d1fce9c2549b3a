"""The router's Prometheus metrics. Names, labels and definitions: docs/metrics.md."""

import math
from bisect import bisect_left
from collections import Counter as Counts
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric

from eldr.metrics.records import RequestRecord
from eldr.metrics.shared import MergedMetrics
from eldr.types import Decision

# vLLM's own buckets (0.32), so that histograms of router and engines can be drawn over each other; for gaps
# between tokens with finer ones below its first, 10 ms.
TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0),
    *(80.0, 160.0, 640.0, 2560.0),
)
ITL_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.0075),
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0),
    80.0,
)
LATENCY_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0),
    *(960.0, 1920.0, 7680.0),
)
DECISION_BUCKETS = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 5e-2)
BAND_BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1024)
SIMILARITY_BUCKETS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)


COUNTED_AT_ONCE = 256
"""Values of a histogram, or requests, after which what was noted is counted, if nobody has read it."""


class QuickCounter(Counter):
    """A counter that trusts who counts, which requests would feel."""

    def inc(self, amount: float = 1, exemplar: dict[str, str] | None = None) -> None:  # noqa: ARG002
        """Count. Exemplars are not kept."""
        self._value.inc(amount)


class QuickHistogram(Histogram):
    """A histogram without labels whose values are noted, and counted many at a time, which takes a fraction.

    note: takes one value; whoever reads the histogram has what was noted counted first.
    """

    def __init__(self, name: str, text: str, buckets: tuple[float, ...], registry: CollectorRegistry) -> None:
        self._noted: list[float] = []
        self.note = self._noted.append
        super().__init__(name, text, buckets=buckets, registry=registry)

    def note_gaps(self, times_s: Sequence[float]) -> None:
        """Note the gaps between times that follow each other."""
        self._noted += [late - early for early, late in pairwise(times_s)]
        if len(self._noted) >= COUNTED_AT_ONCE:
            self.count()

    def count(self) -> None:
        """Count what was noted."""
        if self._noted:
            counts = Counts([bisect_left(self._upper_bounds, value) for value in self._noted])
            for bucket, values_in_it in counts.items():
                self._buckets[bucket].inc(values_in_it)
            self._sum.inc(sum(self._noted))
            self._noted.clear()

    def collect(self) -> Iterable[Metric]:
        self.count()
        return super().collect()


class RouterMetrics:
    """All metrics of one router, in a registry of its own.

    shared: the folder of `count_in_files`, where this is one of several processes.
    """

    def __init__(self, shared: Path | None = None) -> None:
        self.registry = CollectorRegistry()
        self._shared = shared
        self._histograms: list[QuickHistogram] = []
        # Other processes read this one's files, which nobody asks to be brought up to date.
        self._at_once, self._uncounted = COUNTED_AT_ONCE if shared is None else 1, 0
        self.requests = self._counter("eldr_requests", "Requests by outcome.", "outcome")
        self.worker_requests = self._counter(
            "eldr_worker_requests", "Requests sent to each worker.", "role", "worker"
        )
        self.fallbacks = self._counter(
            "eldr_fallbacks", "Requests not routed by the policy's own rule, by reason.", "reason"
        )
        self.upstream_errors = self._counter(
            "eldr_upstream_errors", "Failures of workers, by kind.", "role", "worker", "kind"
        )
        self.retries = self._counter("eldr_retries", "Second tries of a leg, by kind.", "kind")
        self.retries_denied = self._counter(
            "eldr_retries_denied", "Second tries that the budget did not allow, by kind.", "kind"
        )
        self.client_faults = self._counter(
            "eldr_client_faults", "Requests and connections that the router turned away, by kind.", "kind"
        )
        self.lost_lines = self._counter(
            "eldr_lost_lines", "Lines that could not be written, by file.", "file"
        )
        self.queued = self._gauge("eldr_queued_requests", "Requests that wait for their turn.")
        self.body_bytes = self._gauge("eldr_held_body_bytes", "Bodies of requests that are held in memory.")
        self.in_flight = self._gauge(
            "eldr_in_flight_requests", "Requests from selection to last byte.", "role", "worker"
        )
        self.worker_up = self._gauge("eldr_worker_up", "1 while the worker may be chosen.", "role", "worker")
        self.breaker_state = self._gauge(
            "eldr_worker_breaker_state", "0 closed, 1 half-open, 2 open.", "role", "worker"
        )
        self.discovery_updates = self._counter(
            "eldr_discovery_updates", "Sets of workers of each source, and failures.", "source", "result"
        )
        self._add_learning()
        self._add_histograms()
        self._ended = cache(self.requests.labels)

    def _add_learning(self) -> None:
        """What eldr.adapt tells."""
        self.refits = self._counter("eldr_refits", "New centroids from live requests, by result.", "result")
        self.drift_alarms = self._counter("eldr_drift_alarms", "Times that what is asked changed.")
        self.drift_p_value = self._gauge("eldr_drift_p_value", "Chance of such a difference without drift.")
        self.learned_from = self._gauge("eldr_learned_from_requests", "Live requests kept to learn from.")
        self.learning_cpu_s = self._counter("eldr_learning_cpu_seconds", "CPU time spent on learning.")
        self.policy_changes = self._counter(
            "eldr_policy_changes", "Times that tuning changed the policy, by the new one.", "policy"
        )
        self.saving = self._gauge(
            "eldr_estimated_tpot_saving_ratio", "1 - mean TPOT / that of JSQ on the same requests, estimated."
        )
        self.saving_low, self.saving_high = (
            self._gauge(f"eldr_estimated_tpot_saving_ratio_{end}", f"The {end} end of its 95 % interval.")
            for end in ("low", "high")
        )
        self.saving_error = self._gauge(
            "eldr_estimated_tpot_error_ratio", "Estimated mean TPOT / the real one - 1, of the same requests."
        )
        savings = (self.saving, self.saving_low, self.saving_high, self.saving_error)
        for estimate in (self.drift_p_value, *savings):
            estimate.set(math.nan)  # not known yet

    def _add_histograms(self) -> None:
        self._ttft = self._histogram(
            "eldr_time_to_first_token_seconds", "Arrival to first output.", TTFT_BUCKETS
        )
        self._tpot = self._histogram(
            "eldr_request_time_per_output_token_seconds", "TPOT of each request.", ITL_BUCKETS
        )
        self.itl = self._histogram(
            "eldr_inter_token_latency_seconds", "Gaps between output events.", ITL_BUCKETS
        )
        self._latency = self._histogram(
            "eldr_e2e_request_latency_seconds", "Arrival to last byte.", LATENCY_BUCKETS
        )
        self._prefill = self._histogram(
            "eldr_prefill_seconds", "Arrival to the prefill worker's answer.", TTFT_BUCKETS
        )
        self._decision = self._histogram(
            "eldr_decision_seconds",
            "Prefill answer to chosen worker: counts, signature, policy.",
            DECISION_BUCKETS,
        )
        self._band = self._histogram("eldr_band_size", "Workers that the policy chose between.", BAND_BUCKETS)
        self._similarity = self._histogram(
            "eldr_similarity", "Similarity of request and chosen worker, as compared.", SIMILARITY_BUCKETS
        )

    def decided(self, decision: Decision, seconds: float) -> None:
        """Count a decision, which took `seconds` from the prefill answer on."""
        self._decision.note(seconds)
        self._band.note(decision.band_size)
        if decision.similarity is not None:
            self._similarity.note(decision.similarity)

    def finished(self, record: RequestRecord) -> None:
        """Count a request that ended."""
        self._ended(record.outcome).inc()
        if record.fallback is not None:
            self.fallbacks.labels(record.fallback).inc()
        if record.prefill_done_s is not None:
            self._prefill.note(record.prefill_done_s - record.arrival_s)
        if record.outcome == "ok":
            self._latency.note(record.duration_s)
        if record.first_token_s is not None:
            self._ttft.note(record.first_token_s - record.arrival_s)
            if (tpot_s := record.tpot_s) is not None:
                self._tpot.note(tpot_s)
        self._uncounted += 1
        if self._uncounted >= self._at_once:
            self._uncounted = 0
            for histogram in self._histograms:
                histogram.count()

    def forget_worker(self, role: str, worker: str) -> None:
        """Drop all samples of a worker that has left, so that workers which come and go do not pile up."""
        by_worker = (self.worker_requests, self.upstream_errors, self.in_flight, self.worker_up)
        for metric in (*by_worker, self.breaker_state):
            metric.remove_by_labels({"role": role, "worker": worker})

    def exposition(self) -> bytes:
        """The text that Prometheus scrapes: of all processes, whichever is asked."""
        shared = self._shared
        return generate_latest(self.registry if shared is None else MergedMetrics(self.registry, shared))

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return QuickCounter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> QuickHistogram:
        made = QuickHistogram(name, text, buckets, self.registry)
        self._histograms.append(made)
        return made
