"""Round robin: the workers take turns, whatever their load."""

import numpy as np

from eldr.policy.base import POLICIES, available_workers, decide
from eldr.types import Decision, PoolView, RoutingRequest


@POLICIES.register("round_robin")
class RoundRobin:
    """Takes the next available worker after the last one taken."""

    name = "round_robin"

    def __init__(self, rng: np.random.Generator) -> None:  # noqa: ARG002 - nothing is random here
        self._next = 0

    def select(self, request: RoutingRequest, pool: PoolView) -> Decision:  # noqa: ARG002
        workers = available_workers(pool)
        turn = np.searchsorted(workers, self._next) % len(workers)
        worker = int(workers[turn])
        self._next = worker + 1
        return decide(self.name, pool, worker, band_size=1)
