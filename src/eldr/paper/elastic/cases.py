"""What happens to which pool under which policy, and one run of it."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from eldr.paper.beyond.cases import BAND, HEAVY, JSQ, SEEDS, SOFT
from eldr.paper.beyond.worlds import World, world_of
from eldr.paper.elastic.seats import Seats
from eldr.paper.pieces import Piece
from eldr.policy import create_policy
from eldr.sim import Change, ClusterSpec, Requests, SimResult, make_requests, poisson_arrivals
from eldr.sim.cluster import Cluster

SOURCES = ("gpt-oss-20b", "qwen3-30b-a3b/tasks")
Times = npt.NDArray[np.float64]

WORKERS, VICTIM = 8, 3
CHANGE_S, BACK_S, END_S = 60.0, 120.0, 180.0
"""When a worker fails or joins, when the one that failed is back, and when requests end."""

PHASES = {"before": (20.0, 50.0), "at": (50.0, 65.0), "during": (65.0, 110.0), "after": (130.0, 170.0)}
"""Requests that arrive then: with the pool that was, with some that the change hits, with the changed pool,
and once more: with the worker that failed and is back, or still with the one that joined."""

BIN_S = 5.0
"""Of arrivals, for the plot."""

EVENTS = ("fail", "join")
CENTROIDS = ("kept", "refitted")


@dataclass(frozen=True, slots=True)
class Case:
    """A source of requests, what happens, the policy, and what becomes of the centroids then."""

    source: str
    event: str
    policy: str
    centroids: str = "kept"


CASES = tuple(
    Case(source, event, policy, centroids)
    for source in SOURCES
    for event in EVENTS
    for policy, centroids in ((JSQ, "kept"), *((p, c) for p in (BAND, SOFT) for c in CENTROIDS))
)


def pieces(kept: str) -> list[Piece]:
    """All runs, seed by seed."""
    return [piece(case, seed, kept) for seed in SEEDS for case in CASES]


def piece(case: Case, seed: int, kept: str) -> Piece:
    """One run. Those of one source and seed are one group: it is drawn once for them."""
    return Piece(measured, {**asdict(case), "seed": seed, "kept": kept}, f"{case.source} {seed}")


def measured(*, source: str, event: str, policy: str, centroids: str, seed: int, kept: str) -> dict[str, Any]:
    """Serve three minutes of requests while the pool changes.

    p50_ms, p99_ms: TPOT of each phase. moved: at each change, see Seats; none without centroids. broken,
    again, refused: requests that the failure cut off, that ran a second time, and that nobody served. joined:
    requests of the last worker in `during` over the mean of all workers, its share once it joined.
    times_ms: [bins, 2], median and p99 by arrival in bins of BIN_S.
    """
    world = world_of(source, WORKERS, seed, kept)
    requests = requests_of(world, np.random.default_rng([seed, 5]))
    seats = Seats(world.profile.centroids, refitted=centroids == "refitted")
    policy_ = create_policy(policy, rng=np.random.default_rng(0))
    cluster = Cluster(
        requests, spec_of(event), policy_, world.profile.centroids, world.cost, on_change=seats.change
    )
    seats.attach(cluster)
    result = cluster.run(None, lambda: None)
    return _numbers(result) | {"moved": [] if policy == JSQ else seats.moved, "evidence": world.evidence}


def spec_of(event: str) -> ClusterSpec:
    """The pool and what happens to it."""
    if event == "join":
        return ClusterSpec(
            prefill=WORKERS // 2, decode=WORKERS + 1, changes=(Change(CHANGE_S, WORKERS, "join"),)
        )
    fails = (Change(CHANGE_S, VICTIM, "fail"), Change(BACK_S, VICTIM, "join"))
    return ClusterSpec(prefill=WORKERS // 2, decode=WORKERS, changes=fails)


def requests_of(world: World, rng: np.random.Generator) -> Requests:
    """Poisson arrivals for END_S at the rate that keeps WORKERS at mixed batches of about HEAVY requests."""
    output = float((world.weights * world.median_tokens).sum() * np.exp(world.sigma**2 / 2))
    context = HEAVY * (float(world.prompt_tokens @ world.weights) + output / 2)
    step_s = world.cost.step_s(world.active_experts(HEAVY, rng), HEAVY, context)
    rate = WORKERS * HEAVY / (output * step_s)
    arrival_s = poisson_arrivals(int(1.2 * rate * END_S), rate, rng)
    arrival_s = arrival_s[arrival_s < END_S]
    kind = rng.choice(len(world.weights), len(arrival_s), p=world.weights)
    return make_requests(
        world.served,
        arrival_s,
        kind,
        world.prompt_tokens[kind],
        world.output_tokens(kind, rng),
    )


def _numbers(result: SimResult) -> dict[str, Any]:
    records = result.records
    arrival_s, tpot_ms = records.arrival_s, 1e3 * records.tpot_s
    phase_ms = {name: _during(tpot_ms, arrival_s, *span_s) for name, span_s in PHASES.items()}
    starts_s: list[float] = np.arange(0.0, END_S, BIN_S).tolist()
    bins_ms = [_during(tpot_ms, arrival_s, start_s, start_s + BIN_S) for start_s in starts_s]
    inside = (arrival_s >= PHASES["during"][0]) & (arrival_s < PHASES["during"][1])
    of_worker = np.bincount(records.decode_worker[inside], minlength=len(result.steps.steps))
    return {
        "p50_ms": {name: float(np.median(values)) for name, values in phase_ms.items()},
        "p99_ms": {name: float(np.percentile(values, 99)) for name, values in phase_ms.items()},
        "broken": result.summary.outcomes["broken"],
        "refused": result.summary.outcomes["refused"],
        "again": int((records.attempts > 1).sum()),
        "joined": float(of_worker[-1] / of_worker.mean()),
        "times_ms": [[float(np.median(values)), float(np.percentile(values, 99))] for values in bins_ms],
    }


def _during(tpot_ms: Times, arrival_s: Times, start_s: float, end_s: float) -> Times:
    """TPOT of the requests that arrived then and got a whole answer."""
    inside: Times = tpot_ms[(arrival_s >= start_s) & (arrival_s < end_s)]
    return np.asarray(inside[~np.isnan(inside)])
