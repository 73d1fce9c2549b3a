"""Follows the decode workers of a running router: those that are up, or not down for long."""

import numpy as np

from eldr.adapt.seats import Seats
from eldr.clock import Clock
from eldr.proxy.fleet import Fleet


class PoolWatch:
    """Follows the decode workers of a fleet. lost_s: after so long a worker that is down counts as gone."""

    def __init__(self, fleet: Fleet, clock: Clock, lost_s: float) -> None:
        self._fleet, self._clock, self._lost_s = fleet, clock, lost_s
        self._up_s: dict[str, float] = {}
        self._workers: tuple[str, ...] = ()
        self._changed_s = clock.now_s()

    def seats(self) -> Seats:
        """The workers and centroids of now."""
        view, now_s = self._fleet.pool.view(), self._clock.now_s()
        for name, up in zip(view.worker_ids, view.available, strict=True):
            if up or name not in self._up_s:
                self._up_s[name] = now_s
        here = np.array([now_s - self._up_s[name] < self._lost_s for name in view.worker_ids], bool)
        workers = tuple(name for name, is_here in zip(view.worker_ids, here, strict=True) if is_here)
        if workers != self._workers:
            self._workers, self._changed_s = workers, now_s
            self._up_s = {name: self._up_s[name] for name in view.worker_ids}
        if view.centroids is None:
            return Seats(workers, None, view.has_centroid[here], None)
        free = self._fleet.free_centroids()
        lost = view.centroids[~here & view.has_centroid]
        left = lost if free is None else np.concatenate([free, lost])
        return Seats(workers, view.centroids[here], view.has_centroid[here], left)

    @property
    def calm_s(self) -> float:
        """How long the workers have been the same."""
        return self._clock.now_s() - self._changed_s
