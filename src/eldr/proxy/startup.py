"""What must be true before the router takes requests; each failure is one clear line."""

import asyncio
import logging
import os
from pathlib import Path

from eldr.config import Config
from eldr.errors import ConfigError, NoWorkerError, ProfileError
from eldr.policy import Policy
from eldr.policy.base import NamesWorkers
from eldr.proxy.admin import admin_key
from eldr.proxy.discovery.all import discovered_roles
from eldr.proxy.fleet import Fleet
from eldr.proxy.health import HealthChecker
from eldr.proxy.keys import client_keys, worker_authorization
from eldr.proxy.tls import server_tls, worker_tls

log = logging.getLogger(__name__)

POLL_S = 0.25


def check_files(config: Config) -> None:
    """Raise ConfigError for keys, certificates or a kubeconfig that do not do, before anybody waits."""
    client_keys(config.security)
    worker_authorization(config.security)
    server_tls(config.security)
    if config.security.worker_ca is not None:
        worker_tls(config.security)
    if config.admin.port is not None:
        admin_key(config.admin)
    if config.adapt.save is not None and not _can_write(Path(config.adapt.save)):
        raise ConfigError(
            f"adapt.save: cannot write {config.adapt.save!r}; choose a file in a folder that is there"
        )
    kubeconfig = config.kubernetes.kubeconfig
    if kubeconfig is not None and not Path(kubeconfig).is_file():
        raise ConfigError(f"kubernetes.kubeconfig: there is no file {kubeconfig!r}")


def _can_write(path: Path) -> bool:
    """May this file be made, or be replaced by another?"""
    return os.access(path.parent, os.W_OK | os.X_OK) and (not path.exists() or path.is_file())


def check_named_workers(policy: Policy, config: Config) -> None:
    """Raise ConfigError for a policy that names a decode worker which is not there.

    It would go by its fallback for ever. Where DNS or Kubernetes tells the workers, it may still come.
    """
    if not isinstance(policy, NamesWorkers) or "decode" in discovered_roles(config):
        return
    there = [worker.name for worker in config.decode]
    if missing := sorted(policy.named_workers - set(there)):
        raise ConfigError(
            f"policy {policy.name!r} names the worker {missing[0]!r}, but the decode workers are "
            f"{', '.join(there)}; name those, or call one so with --decode {missing[0]}=URL"
        )


async def wait_for_workers(checker: HealthChecker, wait_s: float) -> None:
    """Return once a worker of each role is up.

    Raises NoWorkerError when that takes longer, ConfigError or ProfileError for a worker of another model or
    without counts (eldr.proxy.probe).
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + wait_s
    while True:
        await checker.check_all()
        for problem in checker.problems.values():
            if isinstance(problem, ConfigError | ProfileError):
                raise problem
        missing = [fleet for fleet in checker.fleets if not fleet.has_worker()]
        if not missing:
            for name, problem in checker.problems.items():
                log.warning("starting without worker %s: %s", name, problem)
            return
        if loop.time() >= deadline_s:
            raise NoWorkerError(_unreachable(missing[0], checker))
        await asyncio.sleep(POLL_S)


def _unreachable(fleet: Fleet, checker: HealthChecker) -> str:
    ids = [worker.id for worker in fleet.pool.workers if worker.id in checker.problems]
    problems = "; ".join(str(checker.problems[worker_id]) for worker_id in ids) or "none is known"
    return f"no {fleet.role} worker is reachable: {problems}; start one, or wait longer with --wait SECONDS"
