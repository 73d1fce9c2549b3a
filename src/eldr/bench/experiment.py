"""One comparison, start to end: engines, reference outputs, calibration, fit, and every policy in turn."""

import asyncio
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from eldr.bench.compare import Pool, run_policy
from eldr.bench.load import GREEDY, Planned, drive_closed, plan_poisson, raise_on_errors
from eldr.bench.local import MODEL_NAME, LocalPool, check_memory, local_pool
from eldr.bench.plots import pyplot
from eldr.bench.progress import Advance, Stages
from eldr.bench.results import PolicyRun
from eldr.bench.settings import Settings
from eldr.bench.workload import Workload, load_workload
from eldr.calibrate.assemble import assemble
from eldr.calibrate.collect import Target, collect
from eldr.calibrate.journal import Header, Journal
from eldr.calibrate.prompts import Prompt
from eldr.calibrate.trace import Trace
from eldr.errors import CalibrationError
from eldr.profile.artifact import Profile
from eldr.profile.dataset import CalibrationSet
from eldr.profile.fit import fit_profile

CONCURRENCY = 16


@dataclass(frozen=True, slots=True, eq=False)
class Experiment:
    """What a comparison measured.

    calibrated: counts of the half that the profile was fitted to; served: of the half that was served, from
    the same greedy decoding, for the off-line yardstick.
    reference: plain vLLM's output by prompt.
    """

    settings: Settings
    workload: Workload
    calibrated: CalibrationSet
    served: CalibrationSet
    profile: Profile
    reference: dict[str, str]
    runs: list[PolicyRun]


def count_stages(settings: Settings) -> int:
    """How many stages `run_experiment` shows."""
    return 3 + settings.repeats * len(settings.policies)


def run_experiment(settings: Settings, stages: Stages) -> Experiment:
    """Measure. Raises EldrError for whatever goes wrong; no process outlives the call."""
    workload = load_workload(settings.prompts, settings.requests, settings.seed)
    check_memory(settings)
    pyplot()  # rather now than after minutes of measuring
    with ExitStack() as stack:
        with stages.stage(
            f"start vLLM: 1 prefill and {settings.decode} decode workers, and one without ELDR"
        ):
            engines = stack.enter_context(local_pool(settings))
        return asyncio.run(_measure(settings, workload, engines, stages))


async def _measure(settings: Settings, workload: Workload, engines: LocalPool, stages: Stages) -> Experiment:
    prompts = [*workload.calibration, *workload.evaluation]
    total = len(prompts) + len(workload.evaluation)
    with stages.stage("record plain vLLM's outputs, and the prompts' expert counts", total) as advance:
        reference, counts = await asyncio.gather(
            _reference(settings, workload.evaluation, engines.plain.url, advance),
            record_counts(settings, prompts, engines.prefill.url, advance),
        )
        await asyncio.to_thread(engines.plain.stop)
    with stages.stage("fit the profile"):
        half = len(workload.calibration)
        calibrated, served = counts.rows(slice(half)), counts.rows(slice(half, None))
        calibrated.save(settings.out / "calibration.npz")
        served.save(settings.out / "served.npz")
        profile, _ = fit_profile(calibrated, settings.decode, seed=settings.seed)
        profile.save(settings.profile)
    pool = engines.pool(settings)
    runs = await _run_all(settings, pool, workload.evaluation, stages)
    return Experiment(settings, workload, calibrated, served, profile, reference, runs)


async def _reference(
    settings: Settings, prompts: Sequence[Prompt], url: str, advance: Advance
) -> dict[str, str]:
    """The outputs of an engine that knows nothing of ELDR."""
    plan = _at_once(prompts, settings.max_tokens)
    replies = await drive_closed(url, MODEL_NAME, plan, CONCURRENCY, advance)
    raise_on_errors(replies, "plain vLLM")
    return {reply.prompt: reply.text for reply in replies}


async def record_counts(
    settings: Settings, prompts: list[Prompt], url: str, advance: Advance
) -> CalibrationSet:
    """Counts of every prompt, in order, decoded as they will be served."""
    path = settings.out / "calibration.journal"
    path.unlink(missing_ok=True)
    target = Target(url, MODEL_NAME, settings.max_tokens, CONCURRENCY, sampling=GREEDY)
    with Journal(path, Header(MODEL_NAME, Trace.name, settings.max_tokens)) as journal:
        outcome = await collect(target, prompts, Trace(), journal, advance)
        journal.delete()
    if outcome.failed:
        raise CalibrationError(f"{len(outcome.failed)} prompts gave no counts, first: {outcome.failed[0]}")
    return assemble(outcome.observed, MODEL_NAME)


async def _run_all(
    settings: Settings, pool: Pool, prompts: Sequence[Prompt], stages: Stages
) -> list[PolicyRun]:
    """Every policy, `repeats` times; they take turns, each repeat beginning with another one."""
    runs = []
    in_flight = settings.in_flight if settings.rate is None else None
    pace = f"{settings.in_flight} in flight" if settings.rate is None else f"{settings.rate:.1f} a second"
    for repeat in range(settings.repeats):
        rng = np.random.default_rng([settings.seed, repeat])
        plan = plan_poisson(prompts, settings.rate or math.inf, settings.max_tokens, rng)
        first = repeat % len(settings.policies)
        for policy in (*settings.policies[first:], *settings.policies[:first]):
            with stages.stage(f"{policy}: {len(plan)} requests, {pace}", len(plan)) as advance:
                runs.append(await run_policy(pool, policy, plan, repeat, advance, in_flight))
    return runs


def _at_once(prompts: Sequence[Prompt], max_tokens: int) -> list[Planned]:
    return [Planned(index, 0.0, prompt, max_tokens) for index, prompt in enumerate(prompts)]
