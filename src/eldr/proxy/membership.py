"""Workers that join, drain and leave while the router runs, whoever asks for it."""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import msgspec

from eldr.config import ROLES, WorkerConfig, check_url
from eldr.errors import ConfigError
from eldr.pool import Worker
from eldr.proxy.breaker import State
from eldr.proxy.fleet import Fleet
from eldr.proxy.health import HealthChecker

log = logging.getLogger(__name__)

POLL_S = 0.1
"""How often a draining worker is looked at."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A worker as an operator sees it. problem: why it is down, if it is known."""

    role: str
    name: str
    url: str
    state: Literal["up", "down", "draining"]
    breaker: State
    in_flight: int
    problem: str | None


class UnknownWorkerError(ConfigError):
    """There is no worker of this name."""


class Membership:
    """The workers of all fleets by name. Used from one event loop; closed by `close`."""

    def __init__(self, checker: HealthChecker, drain_s: float) -> None:
        self._fleets = {fleet.role: fleet for fleet in checker.fleets}
        self._checker, self._drain_s = checker, drain_s
        self._drains: dict[str, asyncio.Task[None]] = {}

    def snapshot(self) -> list[Seen]:
        """All workers, role by role."""
        return [self._seen(fleet, one) for fleet in self._fleets.values() for one in fleet.pool.workers]

    def seen(self, name: str) -> Seen:
        """One worker; raises UnknownWorkerError."""
        fleet, worker = self._find(name)
        return self._seen(fleet, worker)

    def workers(self, role: str) -> tuple[Worker, ...]:
        """The workers of a role, those that drain too."""
        return self._fleets[role].pool.workers

    async def add(self, role: str, url: str, name: str | None = None, tls_name: str | None = None) -> Worker:
        """Add a worker, check it at once, and let it in if it is fit. One that drains at this URL stays.

        tls_name: see eldr.pool.Worker. Raises ConfigError for an unknown role, a bad or taken name or URL.
        """
        fleet = self._fleets.get(role)
        if fleet is None:
            raise ConfigError(f"role {role!r} is none of {', '.join(self._fleets)}")
        worker = self._kept(fleet, url) or self._new(fleet, url, name, tls_name)
        await self._checker.check(fleet, worker)
        return worker

    def drain(self, name: str, limit_s: float | None = None) -> None:
        """Send no new requests to a worker; remove it once it has none left, or after the limit.

        Raises UnknownWorkerError. Draining twice changes nothing.
        """
        fleet, worker = self._find(name)
        if name not in self._drains:
            fleet.set_draining(name, True)
            log.info("%s worker %s (%s) drains", fleet.role, name, worker.url)
            limit_s = self._drain_s if limit_s is None else limit_s
            self._drains[name] = asyncio.create_task(self._drain(fleet, name, limit_s))

    def remove(self, name: str) -> None:
        """Take a worker out now. Requests that run on it run on, uncounted. Raises UnknownWorkerError."""
        fleet, worker = self._find(name)
        self._end_drain(name)
        fleet.remove(name)
        self._checker.forget(name)
        log.info("%s worker %s (%s) is removed", fleet.role, name, worker.url)

    def close(self) -> None:
        """Leave the workers that drain as they are."""
        for name in tuple(self._drains):
            self._end_drain(name)

    async def _drain(self, fleet: Fleet, name: str, limit_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while fleet.pool.in_flight(name):  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)
        if left := fleet.pool.in_flight(name):
            log.warning("%s worker %s had %d requests left after %g s", fleet.role, name, left, limit_s)
        del self._drains[name]
        self.remove(name)

    def _end_drain(self, name: str) -> None:
        if task := self._drains.pop(name, None):
            task.cancel()

    def _kept(self, fleet: Fleet, url: str) -> Worker | None:
        for worker in fleet.pool.workers:
            if worker.url == url and worker.id in self._drains:
                self._end_drain(worker.id)
                fleet.set_draining(worker.id, False)
                return worker
        return None

    def _new(self, fleet: Fleet, url: str, name: str | None, tls_name: str | None) -> Worker:
        taken = {worker.name for worker in self.snapshot()}
        if name is None:
            letter = ROLES[fleet.role]
            name = next(f"{letter}{n}" for n in range(len(taken) + 1) if f"{letter}{n}" not in taken)
        if name in taken:
            raise ConfigError(f"two workers are named {name!r}; give each its own name")
        try:
            config = msgspec.convert({"name": name, "url": url}, WorkerConfig)
        except msgspec.ValidationError as error:
            raise ConfigError(f"worker {name!r}: {error}") from None
        check_url(config)
        worker = Worker(config.name, config.url, tls_name)
        fleet.add(worker)
        return worker

    def _find(self, name: str) -> tuple[Fleet, Worker]:
        for fleet in self._fleets.values():
            if name in fleet.pool:
                return fleet, fleet.pool[name]
        raise UnknownWorkerError(f"no worker is named {name!r}")

    def _seen(self, fleet: Fleet, worker: Worker) -> Seen:
        problem = self._checker.problems.get(worker.id)
        draining = worker.id in self._drains
        return Seen(
            role=fleet.role,
            name=worker.id,
            url=worker.url,
            state="draining" if draining else "up" if fleet.is_up(worker.id) else "down",
            breaker=fleet.breaker_state(worker.id),
            in_flight=fleet.pool.in_flight(worker.id),
            problem=None if problem is None else str(problem),
        )
