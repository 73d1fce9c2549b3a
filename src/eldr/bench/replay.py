"""Replays the recorded decisions of policies on one engine at a time.

Live engines on few cores steal each other's time, which hides what active experts cost. Here each decode
worker's requests, in the order in which the live run sent them there, go to an engine that has the machine
to itself, always `batch` of them at once. So policies differ by who decodes together, and by nothing else.
"""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import msgspec

from eldr.bench.engine import LocalEngine
from eldr.bench.load import Planned, Reply, drive_closed, raise_on_errors
from eldr.bench.local import MODEL_NAME
from eldr.bench.progress import Advance, Stages
from eldr.bench.results import PolicyRun
from eldr.bench.scrape import Steps, scrape
from eldr.bench.settings import Settings
from eldr.bench.steplog import Step, StepLog
from eldr.calibrate.prompts import Prompt


def replay_all(
    settings: Settings, engine: LocalEngine, step_log: Path, runs: Sequence[PolicyRun], stages: Stages
) -> list[PolicyRun]:
    """Replay every live run, in its order; the runs that it gives have the same policies, repeats and
    workers.
    """
    replayed = []
    for run in runs:
        with stages.stage(f"replay {run.policy} on one engine at a time", len(run.replies)) as advance:
            replayed.append(asyncio.run(replay(settings, engine.url, step_log, run, advance)))
    return replayed


async def replay(settings: Settings, url: str, step_log: Path, run: PolicyRun, advance: Advance) -> PolicyRun:
    """One live run again. UpstreamError if a request failed."""
    replies: list[Reply] = []
    steps: dict[str, Steps] = {}
    log: list[Step] = []
    started_at = time.time()
    async with aiohttp.ClientSession() as session:
        for worker in run.steps:
            reader, before = StepLog(worker, step_log), await scrape(session, url)
            plan = plan_of(run, worker, settings.max_tokens)
            done = await drive_closed(url, MODEL_NAME, plan, settings.batch, advance)
            raise_on_errors(done, f"replay of {run.policy}")
            replies += [_decoded_by(worker, reply) for reply in done]
            steps[worker] = await scrape(session, url) - before
            log += reader.steps(started_at)
    return PolicyRun(run.policy, run.repeat, replies, steps, log)


def plan_of(run: PolicyRun, worker: str, max_tokens: int) -> list[Planned]:
    """The requests that a worker decoded in a live run, in order of arrival."""
    own = sorted(
        (r for r in run.replies if r.record.decode_worker == worker), key=lambda r: r.record.arrival_s
    )
    return [Planned(r.index, 0.0, Prompt(r.prompt, r.record.label or "", ""), max_tokens) for r in own]


def _decoded_by(worker: str, reply: Reply) -> Reply:
    record = msgspec.structs.replace(reply.record, decode_worker=worker)
    return msgspec.structs.replace(reply, record=record)
