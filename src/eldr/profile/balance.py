"""Balanced assignment: every row to a cluster, ceil(N / K) places a cluster, the largest sum of cosines.

This is the Hungarian method on a matrix whose K distinct columns are each repeated ceil(N / K) times, and
gives the sum that `scipy.optimize.linear_sum_assignment` gives there. Since repeated columns are alike, the
shortest augmenting paths run over K clusters instead of N places; and they start from capacity prices
(eldr.profile.prices), under which few rows are left to move.
"""

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from eldr.profile.prices import Labels, Prices, raise_prices, repair
from eldr.types import Matrix

Integers = npt.NDArray[np.int64]

_STEPS = 1 << 30  # cosines as whole numbers: path lengths are then exact, and equal on every machine
_FAR = np.iinfo(np.int64).max // 4


def assign_balanced(
    similarity: Matrix, prices: Prices | None = None, *, exact: bool = True
) -> tuple[Labels, Prices]:
    """Return a cluster for each row of cosines [N, K], at most ceil(N / K) rows each, and the prices [K].

    prices: float32 [K] from the assignment of similar cosines, or None; for an exact assignment they affect
    the time, not the sum. exact: the largest sum, or one that is near it and scales to more rows and clusters
    (how near: docs/calibration.md). A cluster that would stay empty gets the row that fits its own the
    least, from one that has several.
    """
    n, clusters = similarity.shape
    capacity = -(-n // clusters)
    start = np.zeros(clusters, np.float32) if prices is None else prices
    labels, prices = raise_prices(similarity, capacity, start)
    if exact:
        labels, prices = _assign_exactly(similarity, capacity, prices)
    else:
        labels = repair(similarity, capacity, labels)
    _fill_empty(labels, similarity)
    return labels, prices


def _assign_exactly(similarity: Matrix, capacity: int, prices: Prices) -> tuple[Labels, Prices]:
    n, clusters = similarity.shape
    gain = np.zeros((clusters * capacity, clusters), np.int64)  # rows beyond N fill the places left over
    gain[:n] = np.rint(similarity * np.float64(_STEPS))
    flow = _Flow(gain, (gain - np.rint(prices * np.float64(_STEPS)).astype(np.int64)).argmax(axis=1))
    while (flow.sizes != capacity).any():
        flow.move_one(capacity)
    return flow.labels[:n], (flow.prices() / _STEPS).astype(np.float32)


class _Flow:
    """An assignment that is the best for its own cluster sizes, and stays so when a row is moved.

    loss[a, b]: what moving one row from cluster a to b costs at the least; row[a, b]: the row it is.
    """

    def __init__(self, gain: Integers, labels: Integers) -> None:
        clusters = gain.shape[1]
        self._gain = gain
        self.labels = labels
        self.sizes = np.bincount(labels, minlength=clusters)
        self._loss = np.full((clusters, clusters), _FAR)
        self._row = np.zeros((clusters, clusters), np.int64)
        for cluster in range(clusters):
            self._measure(cluster)

    def move_one(self, capacity: int) -> None:
        """Bring an overfull cluster one row down and another up, along the cheapest chain of moves."""
        distance, before = self._shortest(np.where(self.sizes > capacity, 0, _FAR))
        chain = [int(np.where(self.sizes < capacity, distance, _FAR).argmin())]
        while before[chain[-1]] >= 0:
            chain.append(int(before[chain[-1]]))
        for to, out_of in pairwise(chain):
            self.labels[self._row[out_of, to]] = to
        self.sizes[chain[0]] += 1
        self.sizes[chain[-1]] -= 1
        for cluster in chain:
            self._measure(cluster)

    def prices(self) -> Integers:
        """Return prices under which every row is where its gain less the price is the largest."""
        distance, _ = self._shortest(np.zeros(len(self.sizes), np.int64))
        return -distance

    def _shortest(self, distance: Integers) -> tuple[Integers, Integers]:
        """Bellman-Ford from clusters at given distances: the distance of each, and the one before it."""
        before = np.full(len(distance), -1)
        while True:
            through = distance[:, None] + self._loss
            nearest = through.argmin(axis=0)
            shorter = through[nearest, np.arange(len(nearest))]
            better = shorter < distance
            if not better.any():
                return distance, before
            distance, before = np.where(better, shorter, distance), np.where(better, nearest, before)

    def _measure(self, cluster: int) -> None:
        rows = np.flatnonzero(self.labels == cluster)
        if not len(rows):
            self._loss[cluster] = _FAR
            return
        loss = self._gain[rows, cluster, None] - self._gain[rows]
        least = loss.argmin(axis=0)
        self._row[cluster] = rows[least]
        self._loss[cluster] = loss[least, np.arange(len(least))]


def _fill_empty(labels: Labels, similarity: Matrix) -> None:
    sizes = np.bincount(labels, minlength=similarity.shape[1])
    spare = len(labels) - np.count_nonzero(sizes)  # rows that are not alone
    for empty in np.flatnonzero(sizes == 0)[:spare]:
        fit = np.where(sizes[labels] > 1, similarity[np.arange(len(labels)), labels], np.inf)
        moved = int(fit.argmin())
        sizes[labels[moved]] -= 1
        sizes[empty] = 1
        labels[moved] = empty
