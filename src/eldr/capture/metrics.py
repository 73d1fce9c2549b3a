"""Capture statistics on their way from the engine to its /metrics page, around those of the inner connector.

eldr_active_experts         histogram, one observation a decode step and MoE layer (label layer): distinct
                            experts
eldr_steps_total            steps by kind: decode, mixed, prefill; only decode steps are in the histogram
eldr_payloads_total         prompts by what their answer carried: complete, partial, missing
eldr_unseen_choices_total   expert choices that vLLM's hook did not report; above 0 capture is broken
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prometheus_client import Counter, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
    PromMetric,
    PromMetricT,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig

BUCKETS = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)


@dataclass
class EldrStats(KVConnectorStats):  # type: ignore[misc]
    """The tallies of some steps, and the inner connector's statistics (whose class is found again by its
    name).
    """

    inner: KVConnectorStats | None = None
    inner_name: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for the way to the front end."""
        inner = self.inner.to_dict() if self.inner is not None else None
        return {"inner": inner, "inner_name": self.inner_name, "eldr": self.tallies}

    @property
    def tallies(self) -> list[dict[str, Any]]:
        """The tallies collected so far."""
        return self.data.setdefault("eldr", [])  # type: ignore[no-any-return]

    def reset(self) -> None:
        """Forgets everything."""
        self.data: dict[str, Any] = {}
        self.inner = None

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Adds another worker's, or the scheduler's."""
        assert isinstance(other, EldrStats)
        self.tallies.extend(other.tallies)
        if self.inner is None:
            self.inner = other.inner
        elif other.inner is not None:
            self.inner = self.inner.aggregate(other.inner)
        return self

    def reduce(self) -> dict[str, int | float]:
        """What vLLM writes to its log."""
        inner = self.inner.reduce() if self.inner is not None and not self.inner.is_empty() else {}
        active = [value for tally in self.tallies for step in tally["active"] for value in step]
        if not active:
            return dict(inner)
        return {**inner, "Active experts per decode step and layer": round(sum(active) / len(active), 2)}

    def is_empty(self) -> bool:
        """Whether there is nothing to say."""
        return not self.tallies and (self.inner is None or self.inner.is_empty())


class EldrPromMetrics(KVConnectorPromMetrics):  # type: ignore[misc]
    """ELDR's metrics, and the inner connector's own."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[type[PromMetric], type[PromMetricT]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
        inner: KVConnectorPromMetrics | None,
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._inner = inner
        self._active = metric_types[Histogram](
            name="eldr_active_experts",
            documentation="Distinct experts that a decode step activates in a MoE layer.",
            buckets=BUCKETS,
            labelnames=[*labelnames, "layer"],
        )
        self._steps = self._counter(metric_types, labelnames, "steps", "Engine steps by kind.", "kind")
        self._payloads = self._counter(
            metric_types,
            labelnames,
            "payloads",
            "Prompts by what their answer carried of their counts.",
            "outcome",
        )
        self._unseen = metric_types[Counter](
            name="eldr_unseen_choices",
            documentation="Expert choices that the routing hook did not report; above 0 capture is broken.",
            labelnames=labelnames,
        )
        for values in per_engine_labelvalues.values():
            self._unseen.labels(*values)

    @staticmethod
    def _counter(metric_types: Any, labelnames: list[str], name: str, text: str, label: str) -> Any:
        return metric_types[Counter](name=f"eldr_{name}", documentation=text, labelnames=[*labelnames, label])

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Records what `EldrStats.to_dict` sent."""
        if self._inner is not None and transfer_stats_data["inner"] is not None:
            self._inner.observe(transfer_stats_data["inner"], engine_idx)
        labels = self.per_engine_labelvalues[engine_idx]
        for tally in transfer_stats_data["eldr"]:
            self._observe(tally, labels)

    def _observe(self, tally: dict[str, Any], labels: list[object]) -> None:
        for column, layer in enumerate(tally["layers"]):
            histogram = self._active.labels(*labels, layer)
            for step in tally["active"]:
                histogram.observe(step[column])
        for kind, count in tally["steps"].items():
            self._steps.labels(*labels, kind).inc(count)
        for outcome, count in tally["payloads"].items():
            self._payloads.labels(*labels, outcome).inc(count)
        self._unseen.labels(*labels).inc(tally["unseen"])
