"""A rule that knows where experts lie: what a request adds to a worker's busiest rank. Not registered.

As soft_locality, with another likeness: not the cosine of prompts' counts but the expected active experts, of
the busiest rank or of all, that the request adds to what a worker got lately.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from eldr.paper.beyond.candidates import NEIGHBOURS, Costs, Rule, excess_load
from eldr.paper.beyond.worlds import World
from eldr.policy.soft_locality import LEAST_DIFFERENCE, LOAD_WEIGHT
from eldr.sim import Placement
from eldr.sim.placement import busiest
from eldr.types import PoolView, RoutingRequest

Floats = npt.NDArray[np.float32]

SLOWLY = 0.01
"""How fast the unit of differences follows them, a request."""


class AddedExperts(Rule):
    """Takes the worker with the least added / difference + LOAD_WEIGHT x excess load.

    placement: None adds to all experts, wherever they are. known: by the decode's own rates, not as foretold
    by the nearest calibration requests. A worker with fewer requests than the mean counts as if it had as
    many as that: otherwise an empty one looks dear to all.
    """

    def __init__(self, world: World, placement: Placement | None, *, known: bool = False) -> None:
        super().__init__(world)
        rates, centroids = world.calibration_rates, world.profile.centroids
        nearest = (world.calibration_signatures @ centroids.T).argmax(axis=1)
        own = [rates[nearest == k] if (nearest == k).any() else rates for k in range(len(centroids))]
        self._mean: Floats = np.stack([part.mean(axis=0) for part in own]).astype(np.float32)
        self._placement, self._known, self._unit = placement, known, 0.0
        self._foretold: dict[int, Floats] = {}

    def costs(self, request: RoutingRequest, pool: PoolView) -> Costs:
        load = pool.in_flight.astype(np.float64)
        copies = 1 if self._placement is None else self._placement.replicas
        chance = self._chance(request) / copies
        others = np.maximum(load, max(float(load.mean()), 1.0))[:, None, None].astype(np.float32)
        idle = np.exp(others * np.log1p(-np.minimum(self._mean / copies, np.float32(1 - 1e-6))))
        added = self._active(1 - idle * (1 - chance)) - self._active(1 - idle)
        distance = (added - added.min()) / self._difference(added)
        empty = load == 0
        distance[empty] = distance[empty].clip(max=LOAD_WEIGHT)
        return np.asarray(distance + LOAD_WEIGHT * excess_load(load), np.float64)

    def chosen(self, request: RoutingRequest, worker: int, in_flight: int) -> None:
        self._mean[worker] += (self._chance(request) - self._mean[worker]) / np.float32(in_flight + 1)

    def _active(self, chance: npt.NDArray[Any]) -> Costs:
        """[K, L, E] -> [K], mean over layers."""
        if self._placement is None:
            return np.asarray(chance.sum(axis=2).mean(axis=1), np.float64)
        return np.asarray(busiest(self._placement.by_rank(chance)).mean(axis=1), np.float64)

    def _difference(self, added: Costs) -> float:
        """Of the mean worker from the best, over the last requests: as soft_locality's unit."""
        now = float(added.mean() - added.min())
        self._unit += (SLOWLY if self._unit else 1.0) * (now - self._unit)
        return max(self._unit, LEAST_DIFFERENCE)

    def _chance(self, request: RoutingRequest) -> Floats:
        """[L, E], that a token of the request uses an expert."""
        kind = int(self.cluster.requests.kind[int(request.request_id)])
        if self._known:
            known: Floats = self.world.rates[kind]
            return known
        if kind not in self._foretold:
            assert request.signature is not None
            near = np.argpartition(-(self.world.calibration_signatures @ request.signature), NEIGHBOURS)
            self._foretold[kind] = self.world.calibration_rates[near[:NEIGHBOURS]].mean(axis=0)
        return self._foretold[kind]
