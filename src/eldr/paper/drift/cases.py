"""What is asked of the pool, under which policy, what becomes of the centroids, and one run of it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from eldr.adapt.round import FIRST_TRANSFORMATION
from eldr.paper.beyond.cases import BAND, JSQ, SEEDS, SOFT
from eldr.paper.beyond.worlds import World
from eldr.paper.drift.alarms import USERS, false_alarms
from eldr.paper.drift.learner import Learner, Reseated
from eldr.paper.drift.traffic import Load, traffic_of
from eldr.paper.pieces import Piece
from eldr.policy import create_policy
from eldr.signature import SignatureTransform
from eldr.sim import ClusterSpec, Records
from eldr.sim.cluster import Cluster

BATCHES = {"gpt-oss-20b": 8, "embedded/languages": 16, "qwen3-30b-a3b/tasks": 16}
"""Source -> requests that a worker decodes together, about: GPT-OSS's are short, so there are many."""

WORKERS, EVENT_S, END_S = 8, 100.0, 280.0

PHASES = {"before": (60.0, 100.0), "just after": (100.0, 150.0), "later": (190.0, 270.0)}
"""Requests that arrive then."""

BIN_S = 10.0
"""Of arrivals, for the plot."""

EVENTS = ("jump", "new", "none")
METRICS = ("p50_ms", "mean_ms", "p99_ms")

Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Case:
    """A source of requests, what happens to what is asked, the policy, and what becomes of its centroids:
    "kept", "refitted" as the router does, or "cold", which is refitted with no profile at first."""

    source: str
    event: str
    policy: str
    centroids: str = "kept"


def cases() -> list[Case]:
    """All of them, in the order of the tables."""
    found = []
    for source in BATCHES:
        for event in EVENTS:
            found.append(Case(source, event, JSQ))
            kinds = ("kept", "refitted")
            found += [Case(source, event, policy, kind) for policy in (BAND, SOFT) for kind in kinds]
        found.append(Case(source, "none", SOFT, "cold"))
    return found


def pieces(kept: str) -> list[Piece]:
    """All runs, seed by seed, and the checks without drift."""
    runs = [piece(case, seed, kept) for seed in SEEDS for case in cases()]
    return runs + [alarms_piece(source, users, kept) for source in BATCHES for users in USERS]


def piece(case: Case, seed: int, kept: str) -> Piece:
    """One run. Those of one source and seed are one group: it is drawn once for them."""
    return Piece(measured, {**asdict(case), "seed": seed, "kept": kept}, f"{case.source} {seed}")


def alarms_piece(source: str, users: str, kept: str) -> Piece:
    """The checks without drift of one source."""
    settings = {"source": source, "users": users, "workers": WORKERS, "kept": kept}
    return Piece(false_alarms, settings, f"{source} {SEEDS[0]}")


def measured(*, source: str, event: str, policy: str, centroids: str, seed: int, kept: str) -> dict[str, Any]:
    """Serve nearly five minutes of requests, and learn from them or not.

    p50_ms, mean_ms, p99_ms: TPOT of each phase. looks: see eldr.paper.drift.learner.Look. times_ms: median by
    arrival in bins of BIN_S.
    """
    load = Load(WORKERS, BATCHES[source], EVENT_S, END_S)
    world, requests = traffic_of(source, event, seed, kept, load)
    if centroids == "cold":
        requests = replace(requests, kinds=replace(requests.kinds, signatures=_plain(world)))
    profile = None if centroids == "cold" else world.profile
    reseated = Reseated(_policy(policy), None if profile is None else profile.centroids)
    spec = ClusterSpec(prefill=WORKERS // 2, decode=WORKERS)
    cluster = Cluster(requests, spec, reseated, None, world.cost)
    learner = Learner(world, profile, reseated, cluster, seed)
    if centroids != "kept":
        learner.plan(END_S)
    cluster.run(None, lambda: None)
    return _numbers(cluster.records) | {
        "looks": [asdict(look) for look in learner.looks],
        "evidence": world.evidence,
    }


def _policy(name: str) -> Any:
    return create_policy(name, rng=np.random.default_rng(0))


def _plain(world: World) -> npt.NDArray[np.float32]:
    """Signatures [P, D] as a first profile makes them, whatever requests it is made of."""
    return SignatureTransform(FIRST_TRANSFORMATION).fit(world.prefill).transform_many(world.prefill)


def _numbers(records: Records) -> dict[str, Any]:
    tpot_ms = 1e3 * records.tpot_s

    def during(start_s: float, end_s: float) -> Times:
        inside: Times = tpot_ms[(records.arrival_s >= start_s) & (records.arrival_s < end_s)]
        return inside

    phases = {name: during(*span_s) for name, span_s in PHASES.items()}
    starts_s: Sequence[float] = np.arange(0.0, END_S, BIN_S).tolist()
    return {
        "p50_ms": {name: float(np.median(values)) for name, values in phases.items()},
        "mean_ms": {name: float(values.mean()) for name, values in phases.items()},
        "p99_ms": {name: float(np.percentile(values, 99)) for name, values in phases.items()},
        "times_ms": [float(np.median(during(start_s, start_s + BIN_S))) for start_s in starts_s],
    }
