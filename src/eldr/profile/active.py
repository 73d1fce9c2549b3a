"""How many experts a decode batch is expected to activate, from the requests' decode counts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

BATCHES = 64
"""Batches that are drawn for each figure."""


@dataclass(frozen=True, slots=True)
class ActiveExperts:
    """Expected distinct experts a decode step and layer, for one batch size.

    mixed: batches drawn from all requests; by_cluster: each from one cluster; None where none is so large.
    """

    batch: int
    mixed: float | None
    by_cluster: float | None


def activation_rates(decode_counts: npt.NDArray[np.uint32], top_k: int) -> npt.NDArray[np.float32]:
    """Return the probability [N, L, E] that one decoded token of a request activates an expert."""
    rates = decode_counts.astype(np.float32)
    tokens = rates.sum(axis=2, keepdims=True) / top_k
    np.divide(rates, tokens, out=rates, where=tokens > 0)
    return rates


def expected_active(rates: npt.NDArray[np.float32]) -> float:
    """Return the distinct experts that a batch [B, L, E] activates in a step, mean over layers.

    Requests choose independently: the sum over experts of 1 - prod(1 - rate).
    """
    idle = np.prod(1 - rates, axis=0, dtype=np.float64)
    return float((1 - idle).sum(axis=1).mean())


def compare_grouping(
    rates: npt.NDArray[np.float32],
    labels: npt.NDArray[np.int64],
    batches: Sequence[int],
    *,
    seed: int = 0,
) -> tuple[ActiveExperts, ...]:
    """Compare batches of requests drawn from all with batches of one cluster each, drawn by cluster size.

    rates: [N, L, E]; labels: int64 [N], the cluster of each request, -1 for none.
    """
    everything = [np.arange(len(rates))]
    clusters = [np.flatnonzero(labels == label) for label in np.unique(labels[labels >= 0])]
    rng = np.random.default_rng(seed)
    return tuple(
        ActiveExperts(b, _mean_active(rates, everything, b, rng), _mean_active(rates, clusters, b, rng))
        for b in batches
    )


def _mean_active(
    rates: npt.NDArray[np.float32],
    groups: Sequence[npt.NDArray[np.intp]],
    batch: int,
    rng: np.random.Generator,
) -> float | None:
    large = [group for group in groups if len(group) >= batch]
    if not large:
        return None
    share = np.array([len(group) for group in large], np.float64)
    drawn = rng.choice(len(large), BATCHES, p=share / share.sum())
    members = (rng.choice(large[group], batch, replace=False) for group in drawn)
    return float(np.mean([expected_active(rates[rows]) for rows in members]))
