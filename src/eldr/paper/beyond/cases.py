"""The evidence suite: which worlds at which load, under which rules, and one run of one of them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from eldr.errors import ConfigError
from eldr.paper.beyond.candidates import (
    Bounded,
    Even,
    ExpectedUnion,
    Fixed,
    LongStays,
    Recent,
    Relative,
    Rule,
)
from eldr.paper.beyond.oracles import DecodeExperts, RemainingTokens, StepCosts
from eldr.paper.beyond.worlds import World, world_of
from eldr.policy import Policy, create_policy
from eldr.registry import Registry
from eldr.sim import ClusterSpec, Requests, SimResult
from eldr.sim.cluster import Cluster

SEEDS = (0, 1, 2, 3, 4)
"""Of the other studies that are served these worlds."""

HELD_OUT = tuple(range(100, 108))
"""The suite's own: policies were not chosen on these."""

LIGHT, HEAVY = 8, 40
"""Requests that a worker would decode together, on average, if the load were even and mixed."""

LEAST_REQUESTS, TURNS = 2000, 5
"""A run has so many requests, or so many times those in flight."""

WINDOW = (0.2, 0.85)
"""Requests that arrive in this part of a run are measured: before, batches fill; after, they drain."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is served by how many workers at which load."""

    source: str
    workers: int
    batch: int

    @property
    def load(self) -> str:
        return "light" if self.batch == LIGHT else "heavy"


CASES = (
    *(Case("gpt-oss-20b", *size) for size in ((8, LIGHT), (8, HEAVY), (16, LIGHT))),
    *(Case("deepseek-v2-lite", *size) for size in ((8, LIGHT), (8, HEAVY))),
    *(Case("embedded/tasks", *size) for size in ((8, HEAVY), (16, LIGHT))),
    *(Case("embedded/languages", *size) for size in ((16, LIGHT), (16, HEAVY))),
    *(Case("qwen3-30b-a3b/tasks", *size) for size in ((8, HEAVY), (16, LIGHT))),
    *(Case("qwen3-30b-a3b/languages", *size) for size in ((8, HEAVY), (16, LIGHT))),
)

RULES: Registry[Callable[[World], Any]] = Registry("rule")
"""Name -> a policy of eldr.policy by its name, or a rule made for a world."""

JSQ, BAND, SOFT = "jsq", "locality_band", "soft_locality"
LIVE = (JSQ, BAND, SOFT)


def _live(name: str, world: World) -> Policy:  # noqa: ARG001
    return create_policy(name, rng=np.random.default_rng(0))


for _name in LIVE:
    RULES.register(_name)(partial(_live, _name))

CANDIDATES: dict[str, Callable[[World], Rule]] = {
    "unscaled, fixed centroids, 0.6": partial(Relative, kappa=0.6),
    "fixed centroids": Fixed,
    "bounded load, 1.25": partial(Bounded, most=1.25),
    "expected union, lasting": partial(ExpectedUnion, lasting=True),
    "load weight 0.5": partial(Even, weight=0.5),
    "load weight 0.7": Even,
    "load weight 1.0": partial(Even, weight=1.0),
    "without stays": partial(Recent, stays=False),
    "without crowds": partial(Recent, crowd=0.0),
    "tighter crowds": partial(Recent, crowd=5.0, room=0.5),
    "long stays hold more": partial(LongStays, crowd=1.0),
    "tokens left for a third, foretold": partial(RemainingTokens, known=False, share=1 / 3),
}
ORACLES: dict[str, Callable[[World], Rule]] = {
    "tokens left for a third, known": partial(RemainingTokens, known=True, share=1 / 3),
    "decode's experts known": DecodeExperts,
    "step costs, experts, lengths known": StepCosts,
}
for _name, _rule in (CANDIDATES | ORACLES).items():
    RULES.register(_name)(_rule)


def measured(*, source: str, workers: int, batch: int, rule: str, seed: int, kept: str) -> dict[str, Any]:
    """Serve the case's requests under one rule; all rules get the same. kept: see world_of.

    Times in ms over requests in WINDOW; active experts and batch over all steps; busiest: of the requests in
    WINDOW, those of the busiest worker over the mean.
    """
    world = world_of(source, workers, seed, kept)
    requests = requests_of(world, workers, batch, seed)
    policy = RULES[rule](world)
    spec = ClusterSpec(prefill=max(2, workers // 2), decode=workers)
    cluster = Cluster(requests, spec, policy, world.profile.centroids, world.cost)
    if isinstance(policy, Rule):
        policy.attach(cluster)
    return _numbers(cluster.run(None, lambda: None)) | {"evidence": world.evidence}


def requests_of(world: World, workers: int, batch: int, seed: int, number: int | None = None) -> Requests:
    """Poisson arrivals at the rate that keeps mixed batches of about `batch` requests on all workers.

    number: of requests; None for as many as a run of the suite has.
    """
    rng = np.random.default_rng([seed, 2])
    output = float((world.weights * world.median_tokens).sum() * np.exp(world.sigma**2 / 2))
    context = batch * (float(world.prompt_tokens @ world.weights) + output / 2)
    step_s = world.cost.step_s(world.active_experts(batch, rng) / world.cost.ranks, batch, context)
    number = number or max(LEAST_REQUESTS, TURNS * workers * batch)
    kind = rng.choice(len(world.weights), number, p=world.weights)
    return Requests(
        arrival_s=rng.exponential(output * step_s / (workers * batch), number).cumsum(),
        prompt_tokens=world.prompt_tokens[kind],
        output_tokens=world.output_tokens(kind, rng),
        kind=kind,
        prefix=np.full(number, -1),
        prefix_tokens=np.zeros(number, np.int64),
        kinds=world.served,
    )


def _numbers(result: SimResult) -> dict[str, Any]:
    records = result.records
    span_s = records.arrival_s[-1]
    inside = (records.arrival_s >= WINDOW[0] * span_s) & (records.arrival_s <= WINDOW[1] * span_s)
    tpot = 1e3 * records.tpot_s[inside]
    if np.isnan(tpot).any():
        raise ConfigError("a simulated request has no TPOT; give outputs at least two tokens")
    requests = np.bincount(records.decode_worker[inside], minlength=len(result.steps.steps))
    return {
        "p50_ms": float(np.median(tpot)),
        "p99_ms": float(np.percentile(tpot, 99)),
        "mean_ms": float(tpot.mean()),
        "active": result.steps.active_experts,
        "batch": result.steps.mean_batch,
        "busiest": float(requests.max() / requests.mean()),
    }
