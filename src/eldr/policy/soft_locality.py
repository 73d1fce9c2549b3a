"""Locality against load, in one price: the worker whose recent requests are alike, unless it is too full."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from eldr.policy.base import POLICIES, available_workers, decide, join_shortest_queue, no_similarity
from eldr.policy.stays import Stays
from eldr.types import Decision, Matrix, PoolView, RoutingRequest, Vector

LOAD_WEIGHT = 0.7
"""Twice the mean load costs as much as 0.7 of what two workers differ by on average.

This and CROWD_WEIGHT were chosen on other seeds than those that docs/policies.md shows; they are nothing for
an operator to set.
"""

CROWD_WEIGHT = 2.0
"""Of a request that is too many on a worker, beside what it costs as load."""

LEAST_DIFFERENCE = 1e-3
"""Of workers that are all alike, so that rounding is not taken for a difference."""

Floats = npt.NDArray[np.float64]


@POLICIES.register("soft_locality")
class SoftLocality:
    """Takes the worker with the least cost:

        min(distance, LOAD_WEIGHT) + LOAD_WEIGHT x (excess load + CROWD_WEIGHT x crowd)

    distance: (likeness* - likeness) / difference. likeness: mean cosine of the request to the requests that
    the worker got lately, about as many as it has in flight; before it got any, to its centroid. likeness*
    is the best of the available workers'. difference: 1 - cosine of two centroids, mean over all pairs, so
    that models with alike domains and with different ones are treated the same.

    excess load: (load - mean) / mean, where load is requests in flight over the root of how long they stay
    (see Stays): where many short requests pass, a request more slows many. crowd: requests in flight above
    their mean and its root, which is what chance alone scatters, over the mean.

    Being unlike costs at most LOAD_WEIGHT, so that no worker is idle while the most alike one has more than
    the mean. A worker without a centroid and without requests counts as the most alike. Equal costs go by
    worker order.

    Goes by load alone, and says so in `fallback`, as locality_band does. A decision's similarities are
    likenesses; None for a worker of which nothing is known yet.
    """

    name = "soft_locality"
    needs_profile = keeps_signatures = True

    def __init__(self, rng: np.random.Generator) -> None:  # noqa: ARG002 - nothing is random here
        self._recent = _Recent.nothing()

    def select(self, request: RoutingRequest, pool: PoolView) -> Decision:
        workers = available_workers(pool)
        if reason := no_similarity(request, pool):
            return join_shortest_queue(self.name, pool, workers, reason)
        assert request.signature is not None
        assert pool.centroids is not None
        recent = self._recent = self._recent.of(pool)
        recent.stays.see(pool.in_flight)
        likeness = recent.likeness(request.signature, workers)
        best = likeness.max()
        cost = np.minimum((best - likeness) / recent.difference, LOAD_WEIGHT)
        cost += load_cost(pool.in_flight[workers], recent.stays.relative()[workers])
        chosen = cost.argmin()
        worker = int(workers[chosen])
        known = recent.known[worker]
        recent.add(worker, request.signature, int(pool.in_flight[worker]))
        return decide(
            self.name,
            pool,
            worker,
            band_size=len(workers),
            similarity=float(likeness[chosen]) if known else None,
            best_similarity=float(best),
        )


def load_cost(in_flight: npt.NDArray[np.int64], stays: Floats) -> Floats:
    """What the load of each worker costs; of means below 1, as of 1: nearly idle workers are not full.

    in_flight: requests [n]; stays: how long they stay [n], at most 1, which is the mean.
    """
    load = in_flight / np.sqrt(stays)
    middle = float(load.sum()) / len(load)
    mean = max(int(in_flight.sum()) / len(load), 1.0)
    crowd = np.maximum(in_flight - (mean + mean**0.5), 0)
    crowd *= LOAD_WEIGHT * CROWD_WEIGHT / mean
    load -= middle
    load *= LOAD_WEIGHT / max(middle, 1.0)
    cost: Floats = load + crowd
    return cost


@dataclass(slots=True)
class _Recent:
    """What each worker of a pool got lately. mean: float32 [K, D], a decaying mean of signatures.

    known: bool [K], False where there is neither a centroid nor a request yet. difference: see SoftLocality.
    stays: how long requests stay on each.
    """

    worker_ids: tuple[str, ...]
    centroids: Matrix | None
    mean: Matrix
    known: npt.NDArray[np.bool_]
    difference: float
    stays: Stays
    all_known: bool = False

    @classmethod
    def nothing(cls) -> Self:
        return cls((), None, np.zeros((0, 0), np.float32), np.zeros(0, np.bool_), 1.0, Stays(0))

    def of(self, pool: PoolView) -> "_Recent":
        """Itself while the pool has the same workers and centroids; else one that starts from the centroids,
        and keeps what it knows of workers whose own centroid is the same."""
        assert pool.centroids is not None
        if pool.centroids is self.centroids and pool.worker_ids == self.worker_ids:
            return self
        start = np.array(pool.centroids, np.float32)
        new = _Recent(
            pool.worker_ids,
            pool.centroids,
            start,
            pool.has_centroid.copy(),
            _difference(start[pool.has_centroid]),
            Stays(len(start)),
        )
        new._know_stays(self)
        if self.centroids is not None and self.centroids.shape[1] == start.shape[1]:
            for row, worker in enumerate(self.worker_ids):
                if worker in new.worker_ids:
                    new._keep(new.worker_ids.index(worker), self, row)
        new.all_known = bool(new.known.all())
        return new

    def likeness(self, signature: Vector, workers: npt.NDArray[np.intp]) -> Floats:
        """Of each of `workers`, of which one is known at least; who is not known is like the best of them."""
        likeness: Floats = (self.mean @ signature).astype(np.float64)[workers]
        if not self.all_known:
            known = self.known[workers]
            likeness[~known] = likeness[known].max()
        return likeness

    def add(self, worker: int, signature: Vector, in_flight: int) -> None:
        """Count a request in: with the weight of one of as many as the worker then has."""
        mean = self.mean[worker]
        step = signature - mean
        step /= np.float32(in_flight + 1)
        mean += step
        self.stays.add(worker)
        if not self.all_known:
            self.known[worker] = True
            self.all_known = bool(self.known.all())

    def _know_stays(self, other: "_Recent") -> None:
        both = [worker for worker in other.worker_ids if worker in self.worker_ids]
        rows, old = ([ids.index(worker) for worker in both] for ids in (self.worker_ids, other.worker_ids))
        self.stays.take(rows, other.stays, old)

    def _keep(self, row: int, other: "_Recent", old: int) -> None:
        assert self.centroids is not None
        assert other.centroids is not None
        if np.array_equal(self.centroids[row], other.centroids[old]):
            self.mean[row], self.known[row] = other.mean[old], other.known[old]


def _difference(centroids: Matrix) -> float:
    """1 - cosine, mean over all pairs of these rows; 1 where there is no pair."""
    count = len(centroids)
    if count < 2:
        return 1.0
    total = float(centroids.sum(axis=0) @ centroids.sum(axis=0))  # all cosines, each row's own being 1
    return max(1 - (total - count) / (count * (count - 1)), LEAST_DIFFERENCE)
