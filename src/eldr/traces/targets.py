"""What the synthetic MoE's statistics are fitted to: numbers of the paper, and of recorded real models.

A statistic is a function of one draw of the model; its target is a band, and where the source gives one
number the band is that number with a tolerance.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eldr.traces import statistics
from eldr.traces.base import ExpertTraces
from eldr.traces.recorded import QwenCounts
from eldr.traces.statistics import by_label, independent_active, shares

PAPER_LANGUAGES = ("en", "zh", "ru", "fr", "pt", "es")
"""The languages that the paper names; the others of its mix are "other"."""

DOMAIN_SHARE = (0.54, 0.69)
"""Of GPT-OSS-20B's fields of knowledge and of ESFT's tasks (`statistics.domain_share`)."""


@dataclass(frozen=True, slots=True)
class Target:
    """low, high: the band; slack: how far outside of it counts as much as one standard error."""

    name: str
    low: float
    high: float
    slack: float
    source: str
    measure: Callable[[ExpertTraces], float]

    def residual(self, value: float) -> float:
        """Distance to the band in slacks, 0 inside; a little pull to the middle makes the fit unique."""
        outside = max(self.low - value, value - self.high, 0.0)
        return (outside + 0.05 * (value - (self.low + self.high) / 2)) / self.slack


def tasks(counts: QwenCounts) -> list[Target]:
    """For the workload `tasks`."""
    return [
        *(_active(f"active experts, {batch} tokens", counts.decode, batch) for batch in (16, 32, 64)),
        *_figures("Fig. 4, tasks", 0.17, 0.21, None),
        Target(
            "16 balanced clusters against mixed, batch 32",
            -0.26,
            -0.22,
            0.01,
            "Fig. 13: -22 % live, and live routing keeps most of what grouping gives",
            lambda traces: statistics.cluster_change(traces, 16, 32),
        ),
    ]


def languages(counts: QwenCounts) -> list[Target]:
    """For the workload `languages`."""
    known = list(counts.languages)
    rates = np.stack([counts.languages[name] for name in known])
    cosines = statistics.layer_cosines(rates)[np.triu_indices(len(known), 1)]

    def mean_cosine(traces: ExpertTraces) -> float:
        return float(language_cosines(traces, known)[np.triu_indices(len(known), 1)].mean())

    return [
        *(_active(f"active experts, {batch} tokens", rates.mean(axis=0), batch) for batch in (16, 32, 64)),
        _band("cosine between languages", float(cosines.mean()), 0.01, "Qwen3-30B-A3B on MGSM", mean_cosine),
        *_figures("Fig. 4, languages", 0.03, 0.10, PAPER_LANGUAGES),
    ]


def language_cosines(traces: ExpertTraces, names: list[str]) -> npt.NDArray[np.float64]:
    """[D, D] of the languages' prefill activation, as the recorded counts are of prefill."""
    prefill = shares(traces.prefill)
    return statistics.layer_cosines(np.stack([prefill[traces.label == name].mean(axis=0) for name in names]))


def _active(name: str, rates: npt.NDArray[np.float64], batch: int) -> Target:
    def measure(traces: ExpertTraces) -> float:
        return independent_active(by_label(traces.decode_rates(), traces.label).mean(axis=0), batch)

    wanted = independent_active(rates, batch)
    return _band(name, wanted, 0.02 * wanted, "Qwen3-30B-A3B's recorded counts", measure)


def _figures(figure: str, low: float, high: float, labels: tuple[str, ...] | None) -> list[Target]:
    """Fig. 3 and Fig. 4, and how much of a request its domain explains."""

    def change(batch: int) -> Callable[[ExpertTraces], float]:
        def measure(traces: ExpertTraces) -> float:
            chosen = traces if labels is None else traces.rows(np.isin(traces.label, labels))
            return statistics.grouping_change(chosen.decode_rates(), chosen.label, batch)[2]

        return measure

    both = "Fig. 3: 0.70 to 0.92"
    share = "between ESFT on four tasks and GPT-OSS-20B on fields of knowledge"
    return [
        *(
            Target(f"one domain against mixed, batch {b}", -high, -low, 0.01, figure, change(b))
            for b in (32, 64, 128)
        ),
        Target("prefill and decode of a domain", 0.70, 0.92, 0.03, both, statistics.domain_correlation),
        Target("prefill and decode of a request", 0.70, 0.92, 0.03, both, statistics.request_correlation),
        Target("share of a request that its domain has", *DOMAIN_SHARE, 0.05, share, statistics.domain_share),
    ]


def _band(
    name: str, value: float, tolerance: float, source: str, measure: Callable[[ExpertTraces], float]
) -> Target:
    return Target(name, value - tolerance, value + tolerance, tolerance, source, measure)
