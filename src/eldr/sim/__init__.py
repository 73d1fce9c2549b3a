"""Discrete-event simulator of PD-disaggregated serving, driven by the live policies, pool and profile.

    kinds = kinds_of(calibration_set, profile)             # P requests: label, signature, expert choices
    kinds = kinds_of_traces(traces, profile, exact=False)  # the same from eldr.traces
    kind = mixed_kinds(kinds, n, rng, shares={"en": 0.5, "zh": 0.3, "ru": 0.2})
    requests = make_requests(kinds, poisson_arrivals(n, rate, rng), kind, prompt_tokens, output_tokens)
    cost = named_cost("h200-qwen3-30b-a3b")                # cost_names() tells all
    result = simulate(requests, ClusterSpec(prefill=8, decode=16), "locality_band", profile, cost, seed=0)
    result.summary                                         # TTFT, TPOT, active experts, batch, throughput
    result.records.tpot_s; result.records.decode_worker    # columns, one row a request
    list(result.records)                                   # eldr.metrics.records.RequestRecord
    result.steps.active / result.steps.steps               # active experts a step of each decode worker

Bursts: `gamma_arrivals`, `modulated_arrivals`; a router's own requests again: `replayed_requests`. Lengths:
`lognormal_lengths`, or your data's by `kind`. Prefix caching: `ClusterSpec(prefix_blocks=n)`,
`shared_prefixes`. Workers that fail and join: `ClusterSpec(changes=(Change(60.0, 3, "fail"),))`. Experts on
ranks: `ClusterSpec(placements=(balanced(load, ranks, redundant),) * n)`. A backlog
instead of arrivals: `simulate(..., in_flight=n)`. A router's decision log: eldr.sim.replay.

Small runs: `gather([SimRequest(...), ...], num_experts)` makes the columns. Expert choices:
`Rates(p [P, L, E])` or `Recorded([ids [tokens, L, k], ...], num_experts)`. Costs:
`load_cost(path)` or a `StepCost` of one's own.
What is modelled, and how well it holds: docs/simulator.md.
"""

from eldr.sim.cost import StepCost, load_cost
from eldr.sim.costs import cost_names, named_cost
from eldr.sim.experts import Rates, Recorded
from eldr.sim.placement import Placement, balanced
from eldr.sim.records import Records, SimResult, SimSummary, WorkerSteps
from eldr.sim.requests import Kinds, Requests, SimRequest, gather, kinds_of, kinds_of_traces
from eldr.sim.simulation import simulate
from eldr.sim.spec import Change, ClusterSpec
from eldr.sim.workload import (
    gamma_arrivals,
    lognormal_lengths,
    make_requests,
    mixed_kinds,
    modulated_arrivals,
    poisson_arrivals,
    replayed_requests,
    shared_prefixes,
)

__all__ = [
    "Change",
    "ClusterSpec",
    "Kinds",
    "Placement",
    "Rates",
    "Recorded",
    "Records",
    "Requests",
    "SimRequest",
    "SimResult",
    "SimSummary",
    "StepCost",
    "WorkerSteps",
    "balanced",
    "cost_names",
    "gamma_arrivals",
    "gather",
    "kinds_of",
    "kinds_of_traces",
    "load_cost",
    "lognormal_lengths",
    "make_requests",
    "mixed_kinds",
    "modulated_arrivals",
    "named_cost",
    "poisson_arrivals",
    "replayed_requests",
    "shared_prefixes",
    "simulate",
]
