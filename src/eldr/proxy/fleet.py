"""The workers of one role as the router uses them: chosen by a policy, counted, out while they are down."""

import logging
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

import numpy as np
from prometheus_client import Counter

from eldr.clock import Clock
from eldr.config import WorkerConfig
from eldr.errors import NoWorkerError
from eldr.ledger import Ledger
from eldr.metrics.prometheus import RouterMetrics
from eldr.policy import Policy
from eldr.pool import Worker, WorkerPool
from eldr.proxy.attempt import Attempt
from eldr.proxy.breaker import STATE_VALUES, Breaker, State
from eldr.proxy.centroids import CentroidSeats
from eldr.proxy.drift import LoadDrift
from eldr.settings_fleet import BreakerConfig
from eldr.types import Decision, Matrix, PoolView, RoutingRequest

log = logging.getLogger(__name__)

NOBODY: Set[str] = frozenset()


@dataclass(slots=True, eq=False)
class _Member:
    """What the router knows of a worker besides its load: its checks (up), and its requests (breaker)."""

    breaker: Breaker
    requests: Counter
    up: bool = True
    draining: bool = False


class Fleet:
    """A pool, the policy that chooses from it, and their metrics. Used from one event loop."""

    def __init__(
        self,
        role: str,
        workers: Sequence[WorkerConfig],
        policy: Policy,
        metrics: RouterMetrics,
        clock: Clock,
        breaker: BreakerConfig,
        ledger: Ledger | None = None,
        check_interval_s: float = 0.0,
    ) -> None:
        self.role = role
        self.policy = policy
        self.pool = WorkerPool((Worker(worker.name, worker.url) for worker in workers), ledger)
        self._metrics, self._clock, self._breaker_config = metrics, clock, breaker
        self._check_interval_s = check_interval_s
        self._members: dict[str, _Member] = {}
        self._tripped: dict[str, Breaker] = {}
        self._seats: CentroidSeats | None = None
        self.drift = LoadDrift(clock)
        for worker in self.pool.workers:
            self._members[worker.id] = self._member(worker.id)
            self._publish(worker.id)

    def set_centroids(self, centroids: Matrix, *, one_each: bool = True) -> None:
        """Give the i-th worker the i-th row of `centroids` [n, D]; those that join later take what is free.

        one_each: raise ProfileError unless there are as many rows as workers.
        """
        if one_each:
            self.pool.set_centroids(centroids)
        self._seats = CentroidSeats(self.pool, centroids)

    def reseat(self, centroids: Matrix, owners: Sequence[str]) -> None:
        """Give the workers named `owners` the rows of other centroids [n, D], all at once.

        Rows of workers that have left meanwhile go to those that joined.
        """
        self._seats = CentroidSeats(self.pool, centroids, owners)

    def free_centroids(self) -> Matrix | None:
        """The centroids [n, D] that no worker has, since theirs left; None without a profile."""
        return None if self._seats is None else self._seats.free()

    def add(self, worker: Worker) -> None:
        """Add a worker, out until its first check. Raises ConfigError when its name or URL is there."""
        self.pool.add(worker)
        self._members[worker.id] = self._member(worker.id)
        self.mark(worker.id, up=None)
        if self._seats is not None:
            self._seats.joined(worker.id)
        self._publish(worker.id)

    def remove(self, worker_id: str) -> None:
        """Take a worker out, and its metrics. Requests on it run on, uncounted."""
        self.pool.remove(worker_id)
        del self._members[worker_id]
        self._tripped.pop(worker_id, None)
        self.drift.forget(worker_id)
        if self._seats is not None:
            self._seats.left(worker_id)
        self._metrics.forget_worker(self.role, worker_id)

    def has(self, worker: Worker) -> bool:
        """Is this worker there, and not another that took its name?"""
        return worker.id in self.pool and self.pool[worker.id] == worker

    def set_draining(self, worker_id: str, draining: bool) -> None:
        """Choose the worker no more, or again."""
        member = self._members[worker_id]
        member.draining = draining
        self.mark(worker_id, member.up)

    def view(self) -> PoolView:
        """The pool as policies see it: available is who is up and let through by its breaker."""
        for worker_id, until_s in self.pool.shut_elsewhere().items():
            if self._members[worker_id].breaker.follow(until_s):
                self._note(worker_id)
        view = self.drift.corrected(self.pool.view())
        if not self._tripped:
            return view
        blocked = {worker_id for worker_id, breaker in self._tripped.items() if not breaker.allows()}
        return _without(view, blocked)

    def choose(
        self, request: RoutingRequest, refused: Set[str] = NOBODY, avoided: Set[str] = NOBODY
    ) -> tuple[Decision, PoolView]:
        """Choose a worker that has not refused this request, and one of `avoided` only if there is no other.

        Also returns the pool as the policy saw it. Raises NoWorkerError when none is available.
        """
        view = self.view()
        if refused:
            view = _without(view, refused)
        if avoided and (preferred := _without(view, avoided)).available.any():
            view = preferred
        try:
            return self.policy.select(request, view), view
        except NoWorkerError:
            raise self._nobody() from None

    def require_worker(self) -> None:
        """Raise NoWorkerError when no worker is available."""
        if not self.has_worker():
            raise self._nobody()

    def has_worker(self) -> bool:
        """May any worker be chosen now?"""
        if self._tripped or self.pool.shut_elsewhere():
            return bool(self.view().available.any())
        return self.pool.has_available()

    def take(
        self, request: RoutingRequest, tokens: float, refused: Set[str] = NOBODY, avoided: Set[str] = NOBODY
    ) -> Attempt:
        """Choose a worker (see `choose`) and count a request of `tokens` on it until the block ends.

        How the block ended is what the worker's breaker goes by. Raises NoWorkerError when none is available.
        """
        with self.pool.exclusive():
            decision, view = self.choose(request, refused, avoided)
            reservation = self.pool.reserve(decision.worker_id, tokens)
        member = self._members[decision.worker_id]
        member.requests.inc()
        return Attempt(reservation, decision, view, member.breaker, self.ended)

    def ended(self, attempt: Attempt, error: BaseException | None) -> None:
        """Judge a worker by how a request on it ended."""
        attempt.ended(error)
        if attempt.broke_midway:
            self.failed(attempt.worker.id, "mid_stream")
        self._note(attempt.worker.id)

    def is_up(self, worker_id: str) -> bool:
        """Did the worker pass its last checks?"""
        return self._members[worker_id].up

    def breaker_state(self, worker_id: str) -> State:
        return self._members[worker_id].breaker.state

    def may_choose(self, worker_id: str) -> bool:
        """May the worker be chosen now?"""
        return self.pool.available(worker_id) and self._members[worker_id].breaker.allows()

    def mark(self, worker_id: str, up: bool | None) -> None:
        """Let the worker be chosen, or not; None for one that has not been checked yet."""
        member = self._members[worker_id]
        member.up = bool(up)
        self.pool.set_available(worker_id, up and not member.draining)

    def answered_within(self, worker_id: str, seconds: float) -> bool:
        """Did a good answer of the worker to a request begin within the last `seconds`?"""
        return self._clock.now_s() - self._members[worker_id].breaker.answered_s <= seconds

    def reached(self, worker_id: str) -> None:
        """Note that the worker passed a check."""
        self._members[worker_id].breaker.reached()
        self._note(worker_id)

    def refused(self, attempt: Attempt) -> None:
        """Count a refused connection, which takes the worker out unless it was out meanwhile.

        A connection attempt may take seconds to fail: it says nothing of a worker that has come back since.
        """
        is_news = attempt.is_news and self.has(attempt.worker)
        self.failed(attempt.worker.id, "refused", takes_out=is_news)

    def failed(self, worker_id: str, kind: str, *, takes_out: bool = False) -> None:
        """Count a failure of the worker, unless it has been removed meanwhile.

        takes_out: until it is healthy again. That also opens its breaker, so that one that comes and goes is
        left alone longer each time.
        """
        if worker_id not in self._members:
            return
        self._metrics.upstream_errors.labels(self.role, worker_id, kind).inc()
        if takes_out:
            self.mark(worker_id, up=False)
            self._members[worker_id].breaker.trip()
            self._note(worker_id)

    def _nobody(self) -> NoWorkerError:
        """The error that says so, and when to come again: when a breaker's time is over or checks are due."""
        waits = [self._wait_s(member) for member in self._members.values() if not member.draining]
        text = f"none of {len(self.pool)} {self.role} workers is available"
        return NoWorkerError(text, min(waits, default=self._check_interval_s))

    def _wait_s(self, member: _Member) -> float:
        """Seconds until a worker may be chosen at the soonest: its breaker and its checks must agree."""
        return max(member.breaker.remaining_s, 0.0 if member.up else self._check_interval_s)

    def _note(self, worker_id: str) -> None:
        """Keep the breakers that are not closed, the only ones that a choice must ask."""
        if worker_id not in self._members:
            return  # removed while a request ran on it
        breaker = self._members[worker_id].breaker
        if breaker.state == "closed" and worker_id not in self._tripped:
            return
        self.pool.shut(worker_id, breaker.shut_until_s)
        if breaker.state != "closed":
            if breaker.remaining_s and worker_id not in self._tripped:
                text = "%s worker %s is left out for %.3g s: its breaker is open"
                log.warning(text, self.role, worker_id, breaker.remaining_s)
            self._tripped[worker_id] = breaker
        elif self._tripped.pop(worker_id, None) is not None:
            log.info("%s worker %s answers again: its breaker is closed", self.role, worker_id)

    def _member(self, worker_id: str) -> _Member:
        requests = self._metrics.worker_requests.labels(self.role, worker_id)
        return _Member(Breaker(self._breaker_config, self._clock), requests)

    def _publish(self, worker_id: str) -> None:
        """Gauges read the ledger itself, so they cannot differ from what policies see."""
        in_flight = self._metrics.in_flight.labels(self.role, worker_id)
        in_flight.set_function(lambda: float(self.pool.in_flight(worker_id)))
        up = self._metrics.worker_up.labels(self.role, worker_id)
        up.set_function(lambda: float(self.may_choose(worker_id)))
        state = self._metrics.breaker_state.labels(self.role, worker_id)
        state.set_function(lambda: STATE_VALUES[self.breaker_state(worker_id)])


def _without(view: PoolView, left_out: Set[str]) -> PoolView:
    """The view in which some workers are not available."""
    if not left_out:
        return view
    return replace(view, available=view.available & ~np.isin(view.worker_ids, list(left_out)))
