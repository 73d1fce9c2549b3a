"""Who decoded with whom: the batch of each worker over time, from the times of its requests."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from eldr.adapt.window import Window
from eldr.sim.cost import StepCost
from eldr.sim.experts import Rates

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]

LAYERS = 12
"""So many layers stand for all, evenly spaced: a quarter of a large model's, in a quarter of the time."""


@dataclass(frozen=True, slots=True, eq=False)
class Batches:
    """What requests saw on average while they decoded, [N] each, NaN where that is not known.

    active: expected distinct experts a step and layer. batch: requests a step.
    """

    active: Floats
    batch: Floats


def prompt_rates(window: Window) -> npt.NDArray[np.float32]:
    """[N, at most LAYERS, E]: chance that a token of a request's prompt uses an expert.

    Requests without counts, and layers without, get the mean of the others. Zero where there are no counts.
    """
    layers = window.counts.shape[1]
    thin = np.unique(np.linspace(0, layers - 1, min(LAYERS, layers)).round().astype(np.intp))
    rates = window.counts[:, thin].astype(np.float32)
    tokens = rates.sum(axis=2, keepdims=True) / window.top_k
    known = tokens > 0
    np.divide(rates, tokens, out=rates, where=known)
    mean = rates.sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    np.copyto(rates, mean, where=~known)
    return np.minimum(rates, 1, out=rates)


def batches(window: Window, rates: npt.NDArray[np.float32], cost: StepCost | None = None) -> Batches:
    """What each request saw between its first token and its end.

    A request is in the batch from one step before its first token, or from its decision where that token
    is not known. Those whose worker has left are unknown. cost: for means over steps, of which fewer fit in
    the same time where they are slow; None: over time.
    """
    seen = Batches(*(np.full(len(window), np.nan) for _ in range(2)))
    use = Rates(rates)
    for rows in _by_worker(window):
        line = _Line.of(window, rows, use)
        timed = rows[np.isfinite(window.first_token_s[rows])]
        times = window.first_token_s[timed], window.finish_s[timed]
        seen.active[timed], seen.batch[timed] = line.means(*times, cost)
    return seen


@dataclass(frozen=True, slots=True, eq=False)
class _Line:
    """One worker: from times_s[i] to times_s[i + 1] its batch has batch[i] requests and active[i] experts."""

    times_s: Floats
    active: Floats
    batch: Floats

    @classmethod
    def of(cls, window: Window, rows: Indices, use: Rates) -> Self:
        experts, size = use.open(), 0
        times_s, row, joins = _changes(window, rows)
        active, batch = (np.zeros(len(times_s)) for _ in range(2))
        for i, (request, joined) in enumerate(zip(row.tolist(), joins.tolist(), strict=True)):
            (experts.add if joined else experts.remove)(request, request)
            size += 1 if joined else -1
            active[i], batch[i] = experts.active(1) if size else 0.0, size
        return cls(times_s, active[:-1], batch[:-1])

    def means(self, start_s: Floats, end_s: Floats, cost: StepCost | None) -> tuple[Floats, Floats]:
        """Mean active experts and batch from each start to each end; NaN where nothing is between them."""
        weight = np.diff(self.times_s)
        if cost is not None:
            step_s = cost.fixed_s + cost.active_s * self.active + cost.sequence_s * self.batch
            np.divide(weight, step_s, out=weight, where=self.batch > 0)
        sums = [self._between(start_s, end_s, weight * x) for x in (1.0, self.active, self.batch)]
        whole = np.where(sums[0] > 0, sums[0], np.nan)
        return sums[1] / whole, sums[2] / whole

    def _between(self, start_s: Floats, end_s: Floats, parts: Floats) -> Floats:
        total = np.concatenate([[0.0], parts.cumsum()])
        between: Floats = np.interp(end_s, self.times_s, total) - np.interp(start_s, self.times_s, total)
        return between


def _by_worker(window: Window) -> Iterator[Indices]:
    for worker in range(len(window.worker_ids)):
        rows = np.flatnonzero(window.worker == worker)
        if len(rows):
            yield rows


def _changes(window: Window, rows: Indices) -> tuple[Floats, Indices, npt.NDArray[np.bool_]]:
    """When requests join and leave, in order of time, who does, and whether it joins."""
    step_s = np.nan_to_num(window.tpot_s[rows])
    begin_s = np.fmax(window.first_token_s[rows] - step_s, window.decided_s[rows])
    times_s = np.concatenate([begin_s, window.finish_s[rows]])
    order = np.argsort(times_s, kind="stable")  # who begins and ends at one moment begins first
    return times_s[order], np.tile(rows, 2)[order], order < len(rows)
