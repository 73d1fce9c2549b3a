"""One run live on real engines and in the simulator."""

from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from eldr.bench.results import PolicyRun
from eldr.bench.sim_live import LiveRun, decision_log, load_live
from eldr.bench.sim_live_batches import Floats, busy_steps, live_batches
from eldr.metrics.decisions import DecisionRecord, read_decisions
from eldr.profile.artifact import Profile
from eldr.profile.dataset import CalibrationSet
from eldr.sim import ClusterSpec, Kinds, SimResult, StepCost, kinds_of, make_requests, simulate
from eldr.sim.cost import Moe, Prefill, Rest, Transfer
from eldr.sim.fitting import LinearFit, fit_linear
from eldr.sim.replay import Replay, replay_decisions

BATCH_TOKENS = 2048
"""The engines' limit of a prefill step (EngineSpec)."""

ROUTER_SEED = 0


class LiveCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One policy. same, within_rounding: logged decisions that it takes again from what it saw.

    counted, expected: active experts of the live steps whose batch is known (`known_share` of them), and what
    the simulator expects of that batch; batches_error: expected / counted - 1.
    sized_active: active experts of the simulated run, each batch size weighted by the live run's steps of it;
    sized_error: against live_active. error: without these weights, so as fast as this machine was.
    step_r2: of the step times that the run is simulated with.
    """

    policy: str
    decode_workers: int
    decisions: int
    same: int
    within_rounding: int
    known_share: float
    counted: float
    expected: float
    batches_error: float
    live_active: float
    simulated_active: float
    sized_active: float
    sized_error: float
    error: float
    live_batch: float
    simulated_batch: float
    live_tpot_p50_ms: float
    simulated_tpot_p50_ms: float
    step_r2: float


def check_live(work: Path) -> list[LiveCheck]:
    """Compare what `eldr.bench.sim_live` kept."""
    live, profile = load_live(work), Profile.load(work / "profile.safetensors")
    served = CalibrationSet.load(work / "served.npz")
    kinds = kinds_of(served, profile)
    checks = []
    for run in live.runs:
        log = list(read_decisions(decision_log(work / "logs", run.policy)))
        options = {"tau": profile.info.tau} if run.policy == "locality_band" else {}
        replay = replay_decisions(log, options=options, seed=ROUTER_SEED)
        cost, fit = live_cost(run, log, served)
        batches = live_batches(run, live.row, kinds.experts)
        result = _simulate(live, run, kinds, served, profile, cost, slowness(run, fit))
        checks.append(_check(run, replay, batches, result, fit))
    return checks


def _simulate(
    live: LiveRun,
    run: PolicyRun,
    kinds: Kinds,
    served: CalibrationSet,
    profile: Profile,
    cost: StepCost,
    slow: tuple[float, ...],
) -> SimResult:
    rows = np.array(live.row)
    requests = make_requests(kinds, np.zeros(len(rows)), rows, served.prompt_tokens[rows], live.max_tokens)
    spec = ClusterSpec(prefill=1, decode=len(run.steps), prefill_batch_tokens=BATCH_TOKENS, slowness=slow)
    return simulate(requests, spec, run.policy, profile, cost, ROUTER_SEED, in_flight=live.in_flight)


def live_cost(
    run: PolicyRun, log: list[DecisionRecord], served: CalibrationSet
) -> tuple[StepCost, LinearFit]:
    """Step times of this run, on this machine: fixed, an active expert, a request of the batch.

    Prefill (arithmetic, so by tokens) and transfer are what the quicker requests took: queues are the
    simulator's own.
    """
    x, step_us, _ = step_times(run)
    fit = fit_linear(x, step_us, np.arange(len(x)) % 10)
    fixed, active, token = fit.coefficients.tolist()
    token_s = [(r.decided_s - r.arrival_s) / r.prompt_tokens for r in log if r.prompt_tokens]
    first_s = [r.first_token_s - r.decided_s for r in log if r.first_token_s is not None]
    transfer_us = max(0.0, float(np.percentile(first_s, 25)) * 1e6 - float(np.median(step_us)))
    cost = StepCost(
        name="live",
        gpu="this machine",
        model=served.model,
        layers=1,
        experts=served.experts,
        top_k=served.top_k,
        moe=Moe(fixed_us=fixed, active_us=active),
        rest=Rest(token_us=token),
        prefill=Prefill(token_us=float(np.percentile(token_s, 25)) * 1e6),
        transfer=Transfer(fixed_us=transfer_us),
    )
    return cost, fit


def step_times(run: PolicyRun) -> tuple[Floats, Floats, npt.NDArray[np.intp]]:
    """[n, 3] ones, active experts and batch; microseconds and worker [n], of steps that follow another."""
    parts, workers = [], []
    for number, worker in enumerate(run.steps):
        steps, busy = busy_steps(run, worker)
        at_s, batch, active = np.array([(s.at_s, s.batch, s.active) for s in steps]).T
        step_us = np.diff(at_s, prepend=at_s[0]) * 1e6
        parts.append(np.stack([step_us, active, batch])[:, busy])
        workers.append(np.full(busy.sum(), number))
    step_us, active, batch = np.concatenate(parts, axis=1)
    return np.stack([np.ones_like(active), active, batch], axis=1), step_us, np.concatenate(workers)


def slowness(run: PolicyRun, fit: LinearFit) -> tuple[float, ...]:
    """Of each worker, what its steps took against the fit over all: two cores are not shared evenly."""
    x, step_us, worker = step_times(run)
    expected = x @ fit.coefficients
    return tuple(
        float(step_us[worker == number].sum() / expected[worker == number].sum())
        for number in range(len(run.steps))
    )


def at_live_sizes(run: PolicyRun, result: SimResult) -> float:
    """Simulated active experts by batch size, interpolated where one did not occur, weighted as live."""
    sizes = np.array(list(result.steps.by_batch))
    means = [active / steps for steps, active in result.steps.by_batch.values()]
    return float(np.interp([step.batch for step in run.log], sizes, means).mean())


def _check(
    run: PolicyRun, replay: Replay, batches: tuple[Floats, float], result: SimResult, fit: LinearFit
) -> LiveCheck:
    summary, tpot = result.summary, result.summary.tpot_s
    assert summary.active_experts is not None
    assert summary.mean_batch is not None
    assert tpot is not None
    counted, expected = batches[0].mean(axis=0).tolist()
    sized, live_active = at_live_sizes(run, result), float(np.mean([step.active for step in run.log]))
    return LiveCheck(
        policy=run.policy,
        decode_workers=len(run.steps),
        decisions=replay.decisions,
        same=replay.same,
        within_rounding=replay.within_rounding,
        known_share=batches[1],
        counted=counted,
        expected=expected,
        batches_error=expected / counted - 1,
        live_active=run.active_experts,
        simulated_active=summary.active_experts,
        sized_active=sized,
        sized_error=sized / live_active - 1,
        error=summary.active_experts / run.active_experts - 1,
        live_batch=run.total.mean_batch,
        simulated_batch=summary.mean_batch,
        live_tpot_p50_ms=run.tpot_p50_ms,
        simulated_tpot_p50_ms=tpot.p50 * 1e3,
        step_r2=fit.r2,
    )
