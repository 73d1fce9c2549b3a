"""Runs policies one after another over one set of engines: a fresh router each, the same arrivals for all."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from eldr.bench.load import Planned, drive_closed, drive_open, raise_on_errors
from eldr.bench.results import PolicyRun
from eldr.bench.router import RouterProcess
from eldr.bench.scrape import scrape_all
from eldr.bench.steplog import StepLog

Progress = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Pool:
    """Running engines by worker name, what they serve, and where routers and decode workers log."""

    model: str
    prefill: dict[str, str]
    decode: dict[str, str]
    profile: Path
    log_dir: Path
    step_logs: dict[str, Path]

    def router(self, policy: str) -> RouterProcess:
        return RouterProcess(
            self.prefill, self.decode, policy, self.profile, self.log_dir / f"router-{policy}.log"
        )


async def run_policy(
    pool: Pool,
    policy: str,
    plan: Sequence[Planned],
    repeat: int = 0,
    progress: Progress = lambda: None,
    in_flight: int | None = None,
) -> PolicyRun:
    """Drive the plan through a router of its own with this policy. UpstreamError if a request failed.

    in_flight: None sends each request at its arrival time, a number keeps so many in flight instead.
    """
    with pool.router(policy) as router:
        async with aiohttp.ClientSession() as session:
            before = await scrape_all(session, pool.decode)
            logs = [StepLog(worker, path) for worker, path in pool.step_logs.items()]
            started_at = time.time()
            if in_flight is None:
                replies = await drive_open(router.url, pool.model, plan, progress)
            else:
                replies = await drive_closed(router.url, pool.model, plan, in_flight, progress)
            after = await scrape_all(session, pool.decode)
    raise_on_errors(replies, f"policy {policy}")
    steps = {worker: after[worker] - before[worker] for worker in pool.decode}
    decode_steps = [step for log in logs for step in log.steps(started_at)]
    return PolicyRun(policy, repeat, replies, steps, decode_steps)
