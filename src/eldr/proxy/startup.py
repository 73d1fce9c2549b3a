"""What must be true before the router takes requests; each failure is one clear line."""

import asyncio
import logging

import msgspec
from multidict import CIMultiDict

from eldr.config import Config
from eldr.errors import ConfigError, NoWorkerError, PayloadError, ProfileError, UpstreamError
from eldr.policy import Policy
from eldr.policy.base import NamesWorkers
from eldr.pool import Worker
from eldr.proxy.discovery.all import discovered_roles
from eldr.proxy.fleet import Fleet
from eldr.proxy.handoff import PrefillAnswer, parse, prefill_body, read_prefill
from eldr.proxy.health import HealthChecker
from eldr.proxy.models import served_models
from eldr.proxy.signer import Signer
from eldr.proxy.upstream import Upstream

log = logging.getLogger(__name__)

POLL_S = 0.25
PROBE_TIMEOUT_S = 60.0
"""An engine's first forward pass may take long."""


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

    Raises NoWorkerError when that takes longer, ConfigError or ProfileError for a worker of another model.
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


async def check_counts_come(fleet: Fleet, upstream: Upstream, signer: Signer) -> None:
    """Ask each prefill worker that is up for the counts of a prompt of one token.

    Raises ConfigError when none come, ProfileError when they are of another model than the profile. A worker
    that refuses the question, for example because it wants a key, is passed over with a warning.
    """
    for worker in fleet.pool.workers:
        if fleet.pool.available(worker.id):
            try:
                async with asyncio.timeout(PROBE_TIMEOUT_S):
                    answer = await _probe(worker, upstream)
            except TimeoutError:
                raise UpstreamError(
                    f"prefill worker {worker.id} ({worker.url}) did not prefill one token within "
                    f"{PROBE_TIMEOUT_S:g} s; look at its log"
                ) from None
            if answer is not None:
                _check_answer(worker, answer, signer)


async def _probe(worker: Worker, upstream: Upstream) -> PrefillAnswer | None:
    """The answer to a prompt of one token, whose KV block is held until the engine's lease ends (30 s)."""
    cards = await served_models(upstream, worker, PROBE_TIMEOUT_S)
    body = {"prompt": [1], "temperature": 0} | ({"model": cards[0]["id"]} if cards else {})
    headers = CIMultiDict({"Content-Type": "application/json"})
    leg = prefill_body(parse(msgspec.json.encode(body)))
    async with upstream.post(worker, "/v1/completions", leg, headers) as response:
        data = await response.read()
        if response.status == 200:
            return read_prefill(data)
        log.warning("worker %s does not answer a probe for expert counts (%d)", worker.id, response.status)
        return None


def _check_answer(worker: Worker, answer: PrefillAnswer, signer: Signer) -> None:
    if answer.counts is None:
        raise ConfigError(
            f"prefill worker {worker.id} ({worker.url}) gives no expert counts: its model is not a mixture "
            "of experts, or it runs without ELDR's connector; load the connector, or leave --profile out"
        )
    try:
        signer.counts(answer.counts)
    except PayloadError as error:
        raise ConfigError(f"prefill worker {worker.id}: {error}") from None


def _unreachable(fleet: Fleet, checker: HealthChecker) -> str:
    ids = [worker.id for worker in fleet.pool.workers if worker.id in checker.problems]
    problems = "; ".join(str(checker.problems[worker_id]) for worker_id in ids) or "none is known"
    return f"no {fleet.role} worker is reachable: {problems}; start one, or wait longer with --wait SECONDS"
