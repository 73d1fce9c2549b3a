"""Which decode worker has which centroid in a run whose pool changes."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from eldr.adapt.refit import refit
from eldr.sim.cluster import Cluster
from eldr.types import Matrix

WINDOW = 1024
"""Requests that new centroids are made of: the last ones before the change."""


class Seats:
    """The live workers' centroids, and by how much each change of the pool moves requests.

    refitted: new ones are made for the live pool at once; else a worker that is away keeps its own for its
    return, and one that joins has none. moved: of each change, the share of WINDOW whose nearest centroid of
    an available worker is another worker's than before.
    """

    def __init__(self, centroids: Matrix, *, refitted: bool) -> None:
        self._first, self._refitted = centroids, refitted
        self._now = dict(enumerate(centroids))
        self.moved: list[float] = []

    def attach(self, cluster: Cluster) -> None:
        """Told once, before the run, which cluster it is for."""
        self._cluster = cluster

    def change(self, there: Sequence[int]) -> tuple[Matrix, Sequence[int]] | None:
        """Centroids [n, D] after a change of the pool, and whose they are; None: as they were."""
        lately, before = self._lately(), self._now
        if self._refitted:
            self._now = self._remade(lately, there)
        else:
            self._now = {worker: row for worker, row in enumerate(self._first) if worker in there}
        self.moved.append(float((_nearest(lately, before) != _nearest(lately, self._now)).mean()))
        return (np.stack(list(self._now.values())), list(self._now)) if self._refitted else None

    def _remade(self, lately: Matrix, there: Sequence[int]) -> dict[int, Matrix]:
        nothing = np.zeros(lately.shape[1], np.float32)
        today = np.stack([self._now.get(worker, nothing) for worker in there])
        has_one = np.array([worker in self._now for worker in there])
        left = [row for worker, row in self._now.items() if worker not in there]
        gone = np.stack(left) if left else np.zeros((0, lately.shape[1]), np.float32)
        return dict(zip(there, refit(lately, today, has_one, gone).centroids, strict=True))

    def _lately(self) -> Matrix:
        """Signatures of the requests that were decided last."""
        records = self._cluster.records
        decided = np.flatnonzero(~np.isnan(records.decided_s))
        last = decided[np.argsort(records.decided_s[decided], kind="stable")][-WINDOW:]
        signatures = records.requests.kinds.signatures
        assert signatures is not None
        rows: Matrix = signatures[records.requests.kind[last]]
        return rows


def _nearest(rows: Matrix, centroids: dict[int, Matrix]) -> npt.NDArray[np.int64]:
    workers = np.array(list(centroids), np.int64)
    cosines = rows @ np.stack(list(centroids.values())).T
    return np.asarray(workers[cosines.argmax(axis=1)], np.int64)
