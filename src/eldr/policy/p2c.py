"""P2C, power of two choices: the less loaded of two random workers."""

import numpy as np

from eldr.policy.base import POLICIES, available_workers, join_shortest_queue
from eldr.types import Decision, PoolView, RoutingRequest


@POLICIES.register("p2c")
class PowerOfTwoChoices:
    """Draws two different available workers and takes the less loaded one, the first drawn of equals."""

    name = "p2c"

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def select(self, request: RoutingRequest, pool: PoolView) -> Decision:  # noqa: ARG002
        workers = available_workers(pool)
        if len(workers) == 1:
            return join_shortest_queue(self.name, pool, workers)
        first = self._rng.integers(len(workers))
        other = self._rng.integers(len(workers) - 1)
        pair = workers[[first, other + (other >= first)]]
        return join_shortest_queue(self.name, pool, pair)
