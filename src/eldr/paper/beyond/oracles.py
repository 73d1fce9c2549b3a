"""Rules that know what no router can: the experts of the decode to come, and its length."""

from typing import Any

import numpy as np
import numpy.typing as npt

from eldr.paper.beyond.candidates import Costs, Recent, Rule
from eldr.paper.beyond.worlds import World
from eldr.profile.kmeans import BalancedKMeans
from eldr.types import Decision, PoolView, RoutingRequest

USED = 0.02
"""An expert that fewer of a request's tokens use does not count as used, for the IDF of decode rates."""


class InFlight:
    """The requests that are decoded or wait for it, by the simulation's own records."""

    def __init__(self, rule: Rule) -> None:
        self._rule, self.numbers = rule, np.zeros(0, np.int64)

    def update(self) -> npt.NDArray[np.int64]:
        """Forget what has ended; returns the numbers of those that did."""
        here = np.isnan(self._rule.cluster.records.finish_s[self.numbers])
        ended: npt.NDArray[np.int64] = self.numbers[~here]
        self.numbers = self.numbers[here]
        return ended

    def add(self, number: int) -> None:
        """Count a request in."""
        self.numbers = np.append(self.numbers, number)

    @property
    def workers(self) -> npt.NDArray[np.int32]:
        """The worker of each."""
        return self._rule.cluster.records.decode_worker[self.numbers]

    def tokens_out(self, step_s: Costs) -> Costs:
        """About how many tokens of each are out, where a step of worker k takes step_s[k]."""
        since_s = self._rule.cluster.loop.now_s - self._rule.cluster.records.first_token_s[self.numbers]
        tokens: Costs = np.maximum(np.nan_to_num(since_s), 0.0) / step_s[self.workers]
        return tokens


class DecodeExperts(Recent):
    """soft_locality with the decode's own expert rates, IDF-weighted, in place of the prompt's counts."""

    def __init__(self, world: World) -> None:
        rates = world.calibration_rates.reshape(len(world.calibration_rates), -1)
        self._idf = np.log((len(rates) + 1) / ((rates > USED).sum(axis=0) + 1))
        self._known, self._calibrated = self._unit_rows(world.rates), self._unit_rows(world.calibration_rates)
        super().__init__(world)

    def start(self) -> npt.NDArray[Any]:
        workers = len(self.world.profile.centroids)
        return BalancedKMeans(workers, seed=0).fit(self._calibrated).centroids_

    def vector(self, request: RoutingRequest) -> npt.NDArray[Any]:
        row: npt.NDArray[Any] = self._known[self.cluster.requests.kind[int(request.request_id)]]
        return row

    def _unit_rows(self, rates: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        rows = rates.reshape(len(rates), -1) * self._idf
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        unit: npt.NDArray[np.float32] = rows.astype(np.float32)
        return unit


class RemainingTokens(Recent):
    """soft_locality whose load is, in part, the tokens still to come, in units of half an average request.

    share: of that part, 0 to 1. known: by the true output lengths; else as foretold, label-free: the mean
    output of the calibration requests that are nearest to the same centroid, less what came out so far, and
    never below a tenth of it.
    """

    def __init__(self, world: World, *, known: bool, share: float) -> None:
        super().__init__(world)
        centroids, tokens = world.profile.centroids, world.calibration_tokens.astype(np.float64)
        nearest = (world.calibration_signatures @ centroids.T).argmax(axis=1)
        of_cluster = [tokens[nearest == k] if (nearest == k).any() else tokens for k in range(len(centroids))]
        self._by_cluster = np.array([own.mean() for own in of_cluster])
        assert world.served.signatures is not None
        self._by_kind = self._by_cluster[(world.served.signatures @ centroids.T).argmax(axis=1)]
        self._mean_tokens, self._lengths_known, self._share = float(tokens.mean()), known, share
        self._here = InFlight(self)

    def load(self, pool: PoolView) -> Costs:
        self._here.update()
        numbers, requests = self._here.numbers, self.cluster.requests
        coming = (
            requests.output_tokens[numbers] if self._lengths_known else self._by_kind[requests.kind[numbers]]
        )
        left = np.maximum(coming - self._here.tokens_out(self._step_s(pool)), 0.1 * coming)
        tokens = np.bincount(self._here.workers, weights=left, minlength=len(pool.in_flight))
        return (1 - self._share) * pool.in_flight + self._share * tokens / (self._mean_tokens / 2)

    def chosen(self, request: RoutingRequest, worker: int, in_flight: int) -> None:
        super().chosen(request, worker, in_flight)
        self._here.add(int(request.request_id))

    def _step_s(self, pool: PoolView) -> Costs:
        """About what steps take now, were half of the experts active."""
        cost = self.world.cost
        step_s = cost.step_s(cost.experts / cost.ranks / 2, max(1, int(pool.in_flight.mean())), 0.0)
        return np.full(len(pool.in_flight), step_s)


class StepCosts(Rule):
    """The least sum of all TPOTs, counting what is in flight now: exact experts, lengths and step costs.

    A request costs its own steps, and what it adds to the steps of those that it decodes together with, each
    in proportion to how much of their output is still to come.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        flat = world.rates.reshape(len(world.rates), -1).astype(np.float32)
        self._chance, self._idle = flat, np.log(np.maximum(1 - flat, 1e-6))
        workers = len(world.profile.centroids)
        self._sum = np.zeros((workers, flat.shape[1]), np.float32)
        self._here, self._layers = InFlight(self), world.rates.shape[1]

    def select(self, request: RoutingRequest, pool: PoolView) -> Decision:
        records = self.cluster.records
        for number in self._here.update():
            self._sum[records.decode_worker[number]] -= self._idle[records.requests.kind[number]]
        return super().select(request, pool)

    def costs(self, request: RoutingRequest, pool: PoolView) -> Costs:
        number, cost = int(request.request_id), self.world.cost
        kind = self.cluster.requests.kind[number]
        idle = np.exp(self._sum)
        load = pool.in_flight.astype(np.float64)
        added = cost.active_s * (idle @ self._chance[kind]) / self._layers + cost.sequence_s
        active = (1 - idle).sum(axis=1) / self._layers
        step = cost.fixed_s + cost.active_s * active + cost.sequence_s * load
        return np.asarray(step + added + added * self._shares(number, step), np.float64)

    def chosen(self, request: RoutingRequest, worker: int, in_flight: int) -> None:  # noqa: ARG002
        number = int(request.request_id)
        self._here.add(number)
        self._sum[worker] += self._idle[self.cluster.requests.kind[number]]

    def _shares(self, number: int, step_s: Costs) -> Costs:
        """[K]: of the outputs of those in flight, the share that is decoded together with this request."""
        whole = self.cluster.requests.output_tokens
        output = whole[self._here.numbers]
        left = np.maximum(output - self._here.tokens_out(step_s), 1.0)
        together = np.minimum(left, whole[number]) / output
        return np.bincount(self._here.workers, together, len(step_s)).astype(np.float64)
