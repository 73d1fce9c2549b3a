"""Remembers centroids @ signature, so that a policy's largest expense is paid once for each kind of request.

The product is the very one that the policy would compute, by the same call, so no decision changes.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from eldr.pool import WorkerPool
from eldr.types import Matrix, PoolView, Vector

MOST_BYTES = 512 << 20
"""Of remembered products; beyond that they are computed again."""


class Centroids(np.ndarray[Any, np.dtype[np.float32]]):
    """A matrix that remembers its products with vectors, which must not change, by their identity."""

    known: dict[int, tuple[Vector, Vector]]

    def __array_finalize__(self, source: object) -> None:
        """What is made from this matrix, such as a part of it, is another one and remembers nothing yet."""
        self.known = {}

    def __matmul__(self, signature: Any) -> Any:
        found = self.known.get(id(signature))
        if found is None:
            found = signature, self.view(np.ndarray) @ signature
            if len(self.known) * self.shape[0] * self.itemsize < MOST_BYTES:
                self.known[id(signature)] = found  # with the signature, so that its id stays its own
        return found[1]


class RememberedProducts:
    """Gives a pool its centroids, and its views ones that remember."""

    def __init__(self, pool: WorkerPool, centroids: Matrix | None) -> None:
        """Row i goes to the i-th worker; workers beyond the rows have none."""
        self._pool = pool
        self._centroids: Centroids | None = None
        if centroids is not None:
            rows = min(len(centroids), len(pool))
            self.give(centroids[:rows], [worker.id for worker in pool.workers[:rows]])

    def give(self, centroids: Matrix, worker_ids: Sequence[str]) -> None:
        """Row i goes to the i-th of these workers; the others have none from now on."""
        self._pool.set_centroids(centroids, worker_ids)
        matrix = self._pool.view().centroids
        assert matrix is not None
        self._centroids = matrix.view(Centroids)

    def attach(self, view: PoolView) -> PoolView:
        return view if self._centroids is None else replace(view, centroids=self._centroids)
