"""Which workloads on which workers under which rules, and one run of one of them."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from eldr.paper.beyond.candidates import Rule
from eldr.paper.beyond.cases import BAND, HEAVY, JSQ, LIGHT, SEEDS, SOFT, WINDOW, requests_of
from eldr.paper.beyond.worlds import World
from eldr.paper.parallel.candidates import AddedExperts
from eldr.paper.parallel.worlds import REDUNDANT, Setting, load, placement_on, world_on
from eldr.paper.pieces import Piece
from eldr.policy import create_policy
from eldr.sim import ClusterSpec, Placement, SimResult, balanced
from eldr.sim.cluster import Cluster
from eldr.sim.events import CHANGE

WORKERS = 8
MOVES = (0.1, 0.5)
"""When, in this part of a run's arrivals, each worker's EPLB places its experts again."""


@dataclass(frozen=True, slots=True)
class Case:
    """A workload, and how many requests a worker would decode together if the load were even and mixed."""

    workload: str
    batch: int

    @property
    def title(self) -> str:
        return f"{self.workload}, {'light' if self.batch == LIGHT else 'heavy'}"


CASES = (Case("tasks", HEAVY), Case("tasks", LIGHT), Case("languages", HEAVY))
SETTINGS = (
    Setting(4, "split"),
    Setting(4, "linear"),
    Setting(4, "balanced"),
    Setting(4, "balanced", REDUNDANT),
    Setting(8, "split"),
    Setting(8, "linear"),
    Setting(8, "balanced"),
    Setting(8, "own"),
    Setting(8, "balanced", REDUNDANT),
    Setting(8, "own", REDUNDANT),
)
LIVE = (JSQ, BAND, SOFT)
UNION, BUSIEST, KNOWN = "expected union", "busiest rank", "busiest rank, decode known"
CANDIDATES: dict[str, Callable[[World, Placement], Rule]] = {
    UNION: lambda world, _: AddedExperts(world, None),
    BUSIEST: AddedExperts,
    KNOWN: lambda world, placement: AddedExperts(world, placement, known=True),
}
TRIED = (Setting(8, "linear"), Setting(8, "balanced"))
"""Where the candidates were run."""


def pieces(kept: str) -> list[Piece]:
    """All runs, seed by seed. Those of one workload and seed are one group: it is drawn once for them."""
    return [
        piece(case, setting, rule, seed, kept)
        for seed in SEEDS
        for case in CASES
        for setting in SETTINGS
        for rule in (*LIVE, *(CANDIDATES if setting in TRIED else ()))
    ]


def piece(case: Case, setting: Setting, rule: str, seed: int, kept: str) -> Piece:
    """One run."""
    settings = {**asdict(case), **asdict(setting), "rule": rule, "seed": seed, "kept": kept}
    return Piece(measured, settings, f"{case.workload} {seed}")


def measured(
    *, workload: str, batch: int, gpus: int, where: Any, redundant: int, rule: str, seed: int, kept: str
) -> dict[str, float]:
    """Serve the case's requests under one rule. Times in ms over requests that arrive in WINDOW.

    active: experts of the busiest rank, a step and layer; batch: requests a step.
    """
    setting = Setting(gpus, where, redundant)
    world = world_on(setting, workload, WORKERS, seed, kept)
    placement = placement_on(setting, world)
    requests = requests_of(world, WORKERS, batch, seed)
    spec = ClusterSpec(prefill=WORKERS // 2, decode=WORKERS, placements=(placement,) * WORKERS)
    made = CANDIDATES[rule](world, placement) if rule in CANDIDATES else None
    policy = made or create_policy(rule, rng=np.random.default_rng(0))
    cluster = Cluster(requests, spec, policy, world.profile.centroids, world.cost)
    if made is not None:
        made.attach(cluster)
    if setting.where == "own":
        Rebalance(cluster, world, setting).plan()
    return _numbers(cluster.run(None, lambda: None))


class Rebalance:
    """Each worker's own EPLB: places its experts by the requests that it got since the last time."""

    def __init__(self, cluster: Cluster, world: World, setting: Setting) -> None:
        self._cluster, self._world, self._setting = cluster, world, setting
        self._seen_s = 0.0

    def plan(self) -> None:
        """Have it happen at MOVES."""
        span_s = float(self._cluster.requests.arrival_s[-1])
        for part in MOVES:
            self._cluster.loop.at(part * span_s, CHANGE, self._move)

    def _move(self) -> None:
        records, requests = self._cluster.records, self._cluster.requests
        for worker in range(WORKERS):
            lately = np.flatnonzero((records.decode_worker == worker) & (records.decided_s >= self._seen_s))
            if len(lately):
                tokens = load(self._world.rates[requests.kind[lately]], requests.output_tokens[lately])
                self._cluster.place(worker, balanced(tokens, self._setting.ranks, self._setting.redundant))
        self._seen_s = self._cluster.loop.now_s


def _numbers(result: SimResult) -> dict[str, float]:
    records = result.records
    share = records.arrival_s / records.arrival_s[-1]
    tpot_ms = 1e3 * records.tpot_s[(share >= WINDOW[0]) & (share <= WINDOW[1])]
    active, batch = result.steps.active_experts, result.steps.mean_batch
    assert active is not None
    assert batch is not None
    return {
        "p50_ms": float(np.median(tpot_ms)),
        "p99_ms": float(np.percentile(tpot_ms, 99)),
        "mean_ms": float(tpot_ms.mean()),
        "active": active,
        "batch": batch,
    }
