"""A run on real engines that the simulator is then held to: `python -m eldr.bench.sim_live --work FOLDER`.

One prefill and two decode workers serve the embedded model through `eldr serve`, and every decision, request
and decode step is logged. The folder keeps what eldr.bench.sim_validity compares.
"""

import asyncio
import math
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec
import numpy as np

from eldr.bench.compare import Pool, run_policy
from eldr.bench.engine import LocalEngine, running
from eldr.bench.experiment import record_counts
from eldr.bench.load import Planned, plan_poisson
from eldr.bench.local import MODEL_NAME, check_memory, local_engine
from eldr.bench.progress import Stages, wide_console
from eldr.bench.results import PolicyRun
from eldr.bench.router import RouterProcess
from eldr.bench.settings import Settings
from eldr.bench.workload import Workload, load_workload
from eldr.embedded import model_path
from eldr.files import replacing
from eldr.profile.fit import fit_profile
from eldr.program import run

POLICIES = ("round_robin", "jsq", "p2c", "locality_band")


class LiveRun(msgspec.Struct, frozen=True):
    """What was served. row: of each planned request, its row in served.npz. runs: one a policy."""

    in_flight: int
    max_tokens: int
    row: list[int]
    runs: list[PolicyRun]


@dataclass(frozen=True, slots=True)
class LoggedPool(Pool):
    """A pool whose routers log every decision and request."""

    def router(self, policy: str) -> RouterProcess:
        logs = ("--decision-log", str(decision_log(self.log_dir, policy)))
        log = self.log_dir / f"router-{policy}.log"
        return RouterProcess(self.prefill, self.decode, policy, self.profile, log, logs)


def decision_log(logs: Path, policy: str) -> Path:
    """Where the router of a policy logs its decisions."""
    return logs / f"decisions-{policy}.jsonl"


def load_live(work: Path) -> LiveRun:
    """What `serve` kept."""
    return msgspec.json.decode((work / "live.json").read_bytes(), type=LiveRun)


def serve(settings: Settings) -> LiveRun:
    """Start engines, calibrate, fit, serve under each policy, and keep all of it in settings.out."""
    workload = load_workload(settings.prompts, settings.requests, settings.seed)
    check_memory(settings)
    for policy in settings.policies:  # a router appends
        decision_log(settings.logs, policy).unlink(missing_ok=True)
    stages = Stages(wide_console(), 3 + len(settings.policies))
    prefill = local_engine(settings, "p0", "eldr")
    decode = [local_engine(settings, f"d{index}", "eldr") for index in range(settings.decode)]
    with ExitStack() as stack:
        with stages.stage(f"start vLLM: 1 prefill and {settings.decode} decode workers"):
            stack.enter_context(running([prefill, *decode]))
        live = asyncio.run(_measure(settings, workload, prefill, decode, stages))
    with replacing(settings.out / "live.json") as file:
        file.write(msgspec.json.encode(live))
    return live


async def _measure(
    settings: Settings, workload: Workload, prefill: LocalEngine, decode: list[LocalEngine], stages: Stages
) -> LiveRun:
    prompts = [*workload.calibration, *workload.evaluation]
    with stages.stage("record the prompts' expert counts", len(prompts)) as advance:
        counts = await record_counts(settings, prompts, prefill.url, advance)
    with stages.stage("fit the profile"):
        half = len(workload.calibration)
        counts.rows(slice(half, None)).save(settings.out / "served.npz")
        fit_profile(counts.rows(slice(half)), settings.decode, seed=settings.seed)[0].save(settings.profile)
    pool = LoggedPool(
        model=MODEL_NAME,
        prefill={"p0": prefill.url},
        decode={engine.spec.name: engine.url for engine in decode},
        profile=settings.profile,
        log_dir=settings.logs,
        step_logs={engine.spec.name: settings.step_log(engine.spec.name) for engine in decode},
    )
    plan = _plan(settings, workload)
    runs = []
    for policy in settings.policies:
        with stages.stage(f"{policy}: {len(plan)} requests", len(plan)) as advance:
            runs.append(await run_policy(pool, policy, plan, 0, advance, settings.in_flight))
    rows = {id(prompt): row for row, prompt in enumerate(workload.evaluation)}
    return LiveRun(settings.in_flight, settings.max_tokens, [rows[id(p.prompt)] for p in plan], runs)


def _plan(settings: Settings, workload: Workload) -> list[Planned]:
    rng = np.random.default_rng(settings.seed)
    return plan_poisson(workload.evaluation, math.inf, settings.max_tokens, rng)


@click.command()
@click.option(
    "--work", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder to keep it in."
)
@click.option("--decode", default=2, show_default=True, type=click.IntRange(2), help="Decode workers.")
@click.option("--requests", default=120, show_default=True, type=click.IntRange(20))
@click.option(
    "--batch", default=8, show_default=True, type=click.IntRange(1), help="In flight a decode worker."
)
@click.option("--max-tokens", default=64, show_default=True, type=click.IntRange(2))
def main(work: Path, decode: int, requests: int, batch: int, max_tokens: int) -> None:
    """Serve the embedded model on real engines and keep every step."""
    serve(
        Settings(
            out=work,
            model=model_path(),
            decode=decode,
            requests=requests,
            batch=batch,
            max_tokens=max_tokens,
            policies=POLICIES,
        )
    )


if __name__ == "__main__":
    run(main)
