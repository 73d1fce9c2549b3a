"""Rules that were tried beside the one that won, to be shown with their numbers. None is registered.

Each is written for the suite alone: all workers are available and have a centroid.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from eldr.paper.beyond.worlds import World
from eldr.policy.base import decide
from eldr.policy.soft_locality import CROWD_WEIGHT, LOAD_WEIGHT
from eldr.policy.stays import LEAST, Stays
from eldr.sim.cluster import Cluster
from eldr.types import Decision, PoolView, RoutingRequest

Costs = npt.NDArray[np.float64]


class Rule:
    """Takes the worker of least cost; the first of equals."""

    name = "candidate"

    def __init__(self, world: World) -> None:
        self.world = world

    def attach(self, cluster: Cluster) -> None:
        """Told once, before the run, which cluster it serves."""
        self.cluster = cluster

    def costs(self, request: RoutingRequest, pool: PoolView) -> Costs:
        """The cost [K] of each worker."""
        raise NotImplementedError

    def chosen(self, request: RoutingRequest, worker: int, in_flight: int) -> None:
        """Told which worker got the request, and how many that had."""

    def select(self, request: RoutingRequest, pool: PoolView) -> Decision:
        worker = int(self.costs(request, pool).argmin())
        self.chosen(request, worker, int(pool.in_flight[worker]))
        return decide(self.name, pool, worker, band_size=len(pool.worker_ids))


def cosines(request: RoutingRequest, pool: PoolView) -> Costs:
    """[K], of the request to the centroids."""
    assert pool.centroids is not None
    assert request.signature is not None
    similarity: Costs = (pool.centroids @ request.signature).astype(np.float64)
    return similarity


def difference(centroids: npt.NDArray[Any]) -> float:
    """1 - cosine of two of these rows, mean over all pairs."""
    rows = np.asarray(centroids)
    count = len(rows)
    total = float(rows.sum(axis=0) @ rows.sum(axis=0))
    return 1 - (total - count) / (count * (count - 1))


def above_least(load: Costs) -> Costs:
    """How much more load each worker has than the least loaded, in units of the mean."""
    above: Costs = (load - load.min()) / max(float(load.mean()), 1.0)
    return above


def excess_load(load: Costs) -> Costs:
    """How much more load each worker has than the mean, in units of it."""
    excess: Costs = (load - load.mean()) / max(float(load.mean()), 1.0)
    return excess


class Relative(Rule):
    """(s* - s) + kappa x (load - least) / mean: where the work on this began."""

    def __init__(self, world: World, kappa: float) -> None:
        super().__init__(world)
        self._kappa = kappa

    def costs(self, request: RoutingRequest, pool: PoolView) -> Costs:
        load = pool.in_flight.astype(np.float64)
        return -cosines(request, pool) + self._kappa * above_least(load)


class Bounded(Rule):
    """The nearest of those with at most `most` times the mean load."""

    def __init__(self, world: World, most: float) -> None:
        super().__init__(world)
        self._most = most

    def costs(self, request: RoutingRequest, pool: PoolView) -> Costs:
        load = pool.in_flight.astype(np.float64)
        full = load >= max(self._most * load.mean(), 1.0)
        return np.where(full, 1e3 + load, -cosines(request, pool))


class Fixed(Rule):
    """`Even` with the profile's centroids instead of what workers got lately."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._unit = difference(world.profile.centroids)

    def costs(self, request: RoutingRequest, pool: PoolView) -> Costs:
        load = pool.in_flight.astype(np.float64)
        return -cosines(request, pool) / self._unit + LOAD_WEIGHT * excess_load(load)


class Recent(Rule):
    """soft_locality's rule over any load and any vectors of requests. Subclasses say which, or weigh load
    otherwise.

    stays: whether short stays count. crowd: CROWD_WEIGHT. room: roots of the mean that are no crowd.
    """

    def __init__(
        self, world: World, *, stays: bool = True, crowd: float = CROWD_WEIGHT, room: float = 1.0
    ) -> None:
        super().__init__(world)
        self.mean = np.array(self.start(), np.float32)
        self.unit, self._crowd, self._room = difference(self.mean), crowd, room
        self.stays = Stays(len(self.mean)) if stays else None

    def start(self) -> npt.NDArray[Any]:
        """Vectors [K, D] that workers begin with."""
        return self.world.profile.centroids

    def vector(self, request: RoutingRequest) -> npt.NDArray[Any]:
        """The vector [D] of a request."""
        assert request.signature is not None
        return request.signature

    def load(self, pool: PoolView) -> Costs:
        """[K], in requests."""
        return pool.in_flight.astype(np.float64)

    def distance(self, request: RoutingRequest) -> Costs:
        """[K], from the most alike, in units of `unit`."""
        likeness = (self.mean @ self.vector(request)).astype(np.float64)
        return np.asarray((likeness.max() - likeness) / self.unit, np.float64)

    def costs(self, request: RoutingRequest, pool: PoolView) -> Costs:
        load, relative = self.load(pool), np.ones(len(pool.in_flight))
        if self.stays is not None:
            self.stays.see(pool.in_flight)
            relative = self.relative(self.stays)
        mean = max(float(load.mean()), 1.0)
        crowd = np.maximum(load - mean - self._room * np.sqrt(mean), 0) / mean
        price = excess_load(load / np.sqrt(relative)) + self._crowd * crowd
        cost: Costs = np.minimum(self.distance(request), LOAD_WEIGHT) + LOAD_WEIGHT * price
        return cost

    def relative(self, stays: Stays) -> Costs:
        """The stay on each worker [K], in units of the mean."""
        return stays.relative()

    def chosen(self, request: RoutingRequest, worker: int, in_flight: int) -> None:
        self.mean[worker] += np.float32(1 / (in_flight + 1)) * (self.vector(request) - self.mean[worker])
        if self.stays is not None:
            self.stays.add(worker)


class Even(Recent):
    """Distance and excess load alone: no stays, no crowd, and only idle workers may be however unlike."""

    def __init__(self, world: World, *, weight: float = LOAD_WEIGHT) -> None:
        super().__init__(world, stays=False)
        self._weight = weight

    def costs(self, request: RoutingRequest, pool: PoolView) -> Costs:
        distance, idle = self.distance(request), pool.in_flight == 0
        distance[idle] = distance[idle].clip(max=self._weight)
        return np.asarray(distance + self._weight * excess_load(self.load(pool)), np.float64)


class LongStays(Recent):
    """Workers whose requests stay long may hold more than the mean, as those of short ones hold less."""

    def relative(self, stays: Stays) -> Costs:
        mean = max(float(stays.held.sum()), 1.0) / max(float(stays.sent.sum()), 1.0)
        return np.asarray(((stays.held + mean) / ((stays.sent + 1) * mean)).clip(LEAST, 1 / LEAST))


NEIGHBOURS = 16
"""Calibration requests whose decode choices foretell a request's."""


class ExpectedUnion(Rule):
    """What a request adds to all steps that it takes part in, in seconds, by the step costs.

    Each worker's batch is taken for requests of its cluster, the request for the mean of its nearest
    calibration requests. A request costs its own step, and what it adds to the steps of the others: as many
    as the worker has now; with `lasting`, as many as all have on average where it has fewer.
    """

    def __init__(self, world: World, *, lasting: bool) -> None:
        super().__init__(world)
        rates, centroids = world.calibration_rates, world.profile.centroids
        nearest = (world.calibration_signatures @ centroids.T).argmax(axis=1)
        own = [rates[nearest == k] if (nearest == k).any() else rates for k in range(len(centroids))]
        chance = np.stack([part.mean(axis=0) for part in own]).reshape(len(own), -1)
        self._layers, self._lasting = rates.shape[1], lasting
        self._idle = np.log(np.maximum(1 - chance, 1e-6)).astype(np.float32)
        self._rates = rates.reshape(len(rates), -1)

    def costs(self, request: RoutingRequest, pool: PoolView) -> Costs:
        assert request.signature is not None
        load, cost = pool.in_flight.astype(np.float64), self.world.cost
        nearest = np.argpartition(-(self.world.calibration_signatures @ request.signature), NEIGHBOURS)
        chance = self._rates[nearest[:NEIGHBOURS]].mean(axis=0)
        others = np.maximum(load, load.mean()) if self._lasting else load
        idle, usual = (np.exp(self._idle * n[:, None].astype(np.float32)) for n in (load, others))
        added = cost.active_s * (usual @ chance) / self._layers + cost.sequence_s
        step = cost.active_s * (1 - idle).sum(axis=1) / self._layers + cost.sequence_s * load
        return np.asarray(others * added + step, np.float64)
