"""The workers of one role as the router uses them: chosen by a policy, counted, out while they are down."""

from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from eldr.config import WorkerConfig
from eldr.errors import NoWorkerError
from eldr.metrics.prometheus import RouterMetrics
from eldr.policy import Policy
from eldr.pool import Worker, WorkerPool
from eldr.types import Decision, PoolView, RoutingRequest

NOBODY: Set[str] = frozenset()


class Fleet:
    """A pool, the policy that chooses from it, and their metrics. Used from one event loop."""

    def __init__(
        self, role: str, workers: Sequence[WorkerConfig], policy: Policy, metrics: RouterMetrics
    ) -> None:
        self.role = role
        self.policy = policy
        self.pool = WorkerPool(Worker(worker.name, worker.url) for worker in workers)
        self._metrics = metrics
        for worker in self.pool.workers:
            self._publish(worker.id)

    def choose(
        self, request: RoutingRequest, refused: Set[str] = NOBODY, avoided: Set[str] = NOBODY
    ) -> Decision:
        """Choose a worker that has not refused this request, and one of `avoided` only if there is no other.

        Raises NoWorkerError when none is available.
        """
        view = self.pool.view()
        allowed = _without(view, view.available, refused)
        if not allowed.any():
            raise NoWorkerError(self._nobody())
        preferred = _without(view, allowed, avoided)
        return self.policy.select(request, replace(view, available=preferred if preferred.any() else allowed))

    def require_worker(self) -> None:
        """Raise NoWorkerError when no worker is available."""
        if not self.pool.view().available.any():
            raise NoWorkerError(self._nobody())

    @contextmanager
    def reserve(self, decision: Decision, tokens: float) -> Iterator[Worker]:
        """Count a request of `tokens` on the chosen worker until the block ends, however it ends."""
        self._metrics.worker_requests.labels(self.role, decision.worker_id).inc()
        with self.pool.reserve(decision.worker_id, tokens) as reservation:
            yield reservation.worker

    def mark(self, worker_id: str, up: bool) -> None:
        """Let the worker be chosen, or not."""
        self.pool.set_available(worker_id, up)

    def failed(self, worker_id: str, kind: str) -> None:
        """Count a failure of the worker; a refused connection also takes it out until it is healthy again."""
        self._metrics.upstream_errors.labels(self.role, worker_id, kind).inc()
        if kind == "refused":
            self.mark(worker_id, up=False)

    def _nobody(self) -> str:
        return f"none of {len(self.pool)} {self.role} workers is available"

    def _publish(self, worker_id: str) -> None:
        """Gauges read the ledger itself, so they cannot differ from what policies see."""
        in_flight = self._metrics.in_flight.labels(self.role, worker_id)
        in_flight.set_function(lambda: float(self.pool.in_flight(worker_id)))
        up = self._metrics.worker_up.labels(self.role, worker_id)
        up.set_function(lambda: float(self.pool.available(worker_id)))
        self._metrics.worker_requests.labels(self.role, worker_id)


def _without(view: PoolView, workers: npt.NDArray[np.bool_], left_out: Set[str]) -> npt.NDArray[np.bool_]:
    return workers & ~np.isin(view.worker_ids, list(left_out)) if left_out else workers
