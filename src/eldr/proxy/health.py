"""Active checks of workers: GET /health every few seconds.

Two failures in a row take a worker out, one success brings it back. A status below 500 is a success: a worker
that answers 401 or 404 is alive. Of requests, only a refused connection takes a worker out here; what else
they tell goes to its breaker (eldr.proxy.breaker), and a worker is chosen when both agree. A check that is
not answered in time does not count while requests are: an engine with much to do answers late.
"""

import asyncio
import logging
from collections.abc import Sequence

from eldr.config import Config
from eldr.errors import ConfigError, ProfileError, UpstreamError
from eldr.pool import Worker
from eldr.proxy.drift import engine_load
from eldr.proxy.fleet import Fleet
from eldr.proxy.models import ModelGuard, served_models
from eldr.proxy.probe import CountsProbe
from eldr.proxy.upstream import ExhaustedError, SilentError, Upstream

log = logging.getLogger(__name__)

FAILURES_TO_LEAVE = 2


class HealthChecker:
    """Checks all workers of some fleets. A worker is unknown, and out, until its first check.

    probe: what prefill workers must pass as well, if anything.
    """

    def __init__(
        self,
        fleets: Sequence[Fleet],
        upstream: Upstream,
        guard: ModelGuard,
        config: Config,
        probe: CountsProbe | None = None,
    ) -> None:
        self.fleets = fleets
        self._upstream, self._guard, self._probe = upstream, guard, probe
        self._interval_s, self._timeout_s = config.health_interval_s, config.health_timeout_s
        self._failures: dict[str, int] = {}
        self._level = logging.DEBUG  # at the start, whoever waits for workers reports
        self.problems: dict[str, Exception] = {}
        """Why workers are out, by name."""
        for fleet in fleets:
            for worker in fleet.pool.workers:
                fleet.mark(worker.id, up=None)

    async def run(self) -> None:
        """Check for ever, each worker by itself: one that does not answer keeps no other out."""
        self._level = logging.WARNING
        running: set[Worker] = set()
        async with asyncio.TaskGroup() as checks:
            while True:
                await asyncio.sleep(self._interval_s)
                for fleet, worker in self._workers():
                    if worker not in running:
                        running.add(worker)
                        checks.create_task(self._check_in_turn(fleet, worker, running))

    async def check_all(self) -> None:
        """Check every worker once, all at the same time."""
        await asyncio.gather(*(self.check(fleet, worker) for fleet, worker in self._workers()))

    def forget(self, worker_id: str) -> None:
        """Drop all that is known of a worker that was removed."""
        self._passed(worker_id)
        if self._probe is not None:
            self._probe.forget(worker_id)

    async def check(self, fleet: Fleet, worker: Worker) -> None:
        """Check one worker now, and let it in or out. One that has left meanwhile is ignored."""
        try:
            status, _ = await self._upstream.get(worker, "/health", self._timeout_s)
            if status >= 500:
                raise UpstreamError(f"worker {worker.id} ({worker.url}) answers /health with {status}")
            if fleet.has(worker) and (not fleet.is_up(worker.id) or worker.id in self._failures):
                await self._check_fit(fleet, worker)  # it may have restarted, with another model
            if fleet.has(worker) and not fleet.is_up(worker.id):
                await self._let_in(fleet, worker)
            if fleet.has(worker):
                fleet.reached(worker.id)
                self._passed(worker.id)
        except (UpstreamError, ConfigError, ProfileError) as error:
            if fleet.has(worker) and not self._is_excused(fleet, worker, error):
                self._note_failure(fleet, worker, error)

    def _workers(self) -> list[tuple[Fleet, Worker]]:
        return [(fleet, worker) for fleet in self.fleets for worker in fleet.pool.workers]

    async def _check_in_turn(self, fleet: Fleet, worker: Worker, running: set[Worker]) -> None:
        try:
            await self.check(fleet, worker)
        except Exception:  # without checks, a worker that is down would stay out for ever
            log.exception("the check of worker %s failed; trying again", worker.id)
        finally:
            running.discard(worker)

    def _passed(self, worker_id: str) -> None:
        self._failures.pop(worker_id, None)
        self.problems.pop(worker_id, None)

    async def _check_fit(self, fleet: Fleet, worker: Worker) -> None:
        """Raise ConfigError or ProfileError for a worker that serves the wrong model."""
        cards = await served_models(self._upstream, worker, self._timeout_s)
        if cards is not None:
            self._guard.check(worker, cards)
        if self._probe is not None and fleet.role == "prefill":
            await self._probe.check(worker)

    async def _let_in(self, fleet: Fleet, worker: Worker) -> None:
        load = await engine_load(self._upstream, worker, self._timeout_s)
        if not fleet.has(worker):
            return
        fleet.drift.note(worker.id, load - fleet.pool.in_flight(worker.id))
        fleet.mark(worker.id, up=True)
        log.info("%s worker %s (%s) is up", fleet.role, worker.id, worker.url)

    def _is_excused(self, fleet: Fleet, worker: Worker, error: Exception) -> bool:
        """Could the router not ask a worker that is up, or does that answer requests, though not its check?

        One so busy would be missed most.
        """
        if not fleet.is_up(worker.id):
            return False
        is_busy = isinstance(error, SilentError) and fleet.answered_within(worker.id, self._timeout_s)
        return is_busy or isinstance(error, ExhaustedError)

    def _note_failure(self, fleet: Fleet, worker: Worker, error: Exception) -> None:
        self._failures[worker.id] = self._failures.get(worker.id, 0) + 1
        if str(self.problems.get(worker.id)) != str(error) and not fleet.is_up(worker.id):
            log.log(self._level, "%s worker %s stays out: %s", fleet.role, worker.id, error)
        self.problems[worker.id] = error
        if fleet.is_up(worker.id) and self._failures[worker.id] >= FAILURES_TO_LEAVE:
            fleet.failed(worker.id, "health", takes_out=True)
            log.warning("%s worker %s is out: %s", fleet.role, worker.id, error)
