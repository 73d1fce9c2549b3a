"""Random: every available worker is as likely, whatever its load."""

import numpy as np

from eldr.policy.base import POLICIES, available_workers, decide
from eldr.types import Decision, PoolView, RoutingRequest


@POLICIES.register("random")
class Random:
    """Draws one of the available workers."""

    name = "random"

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def select(self, request: RoutingRequest, pool: PoolView) -> Decision:  # noqa: ARG002
        workers = available_workers(pool)
        worker = int(workers[self._rng.integers(len(workers))])
        return decide(self.name, pool, worker, band_size=len(workers))
