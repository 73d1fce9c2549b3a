"""JSQ, join the shortest queue: the worker with the fewest requests in flight."""

import numpy as np

from eldr.policy.base import POLICIES, available_workers, join_shortest_queue
from eldr.types import Decision, PoolView, RoutingRequest


@POLICIES.register("jsq")
class JoinShortestQueue:
    """Takes the least loaded available worker, the first of equals."""

    name = "jsq"

    def __init__(self, rng: np.random.Generator) -> None:
        """Takes the generator as every policy does; nothing is random here."""

    def select(self, request: RoutingRequest, pool: PoolView) -> Decision:  # noqa: ARG002
        return join_shortest_queue(self.name, pool, available_workers(pool))
