"""Which decode worker serves which centroid of the profile, as workers come and go."""

from collections.abc import Sequence

from eldr.pool import WorkerPool
from eldr.types import Matrix


class CentroidSeats:
    """Row i of the profile's centroids [n, D] goes to the i-th worker.

    A worker that leaves frees its row. One that joins takes the row that it had before, if it is free, or
    else the first free one, so that each cluster of requests keeps a worker; with none free it has none.
    """

    def __init__(self, pool: WorkerPool, centroids: Matrix, owners: Sequence[str] | None = None) -> None:
        """owners: of each row, whether they are in the pool or not; None for the pool's order."""
        self._pool, self._centroids = pool, centroids
        self._rows: dict[str, int] = {}
        self._earlier = {} if owners is None else {name: row for row, name in enumerate(owners)}
        for worker in sorted(pool.workers, key=lambda worker: worker.id not in self._earlier):
            self._seat(worker.id)
        self._publish()

    def free(self) -> Matrix:
        """The centroids [n, D] that no worker of the pool has."""
        taken = set(self._rows.values())
        return self._centroids[[row for row in range(len(self._centroids)) if row not in taken]]

    def joined(self, worker_id: str) -> None:
        """Give a worker that has been added to the pool its row."""
        self._seat(worker_id)
        self._publish()

    def left(self, worker_id: str) -> None:
        """Free the row of a worker that has been removed from the pool."""
        row = self._rows.pop(worker_id, None)
        if row is not None:
            self._earlier = {name: old for name, old in self._earlier.items() if old != row} | {
                worker_id: row
            }

    def _seat(self, worker_id: str) -> None:
        free = set(range(len(self._centroids))) - set(self._rows.values())
        earlier = self._earlier.get(worker_id)
        if free:
            self._rows[worker_id] = earlier if earlier in free else min(free)

    def _publish(self) -> None:
        names = list(self._rows)
        self._pool.set_centroids(self._centroids[[self._rows[name] for name in names]], names)
