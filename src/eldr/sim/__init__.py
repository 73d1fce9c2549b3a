"""Discrete-event simulator of PD-disaggregated serving, driven by the live policies, pool and profile.

    kinds = kinds_of(calibration_set, profile)             # P requests: label, signature, expert choices
    requests = Requests(arrival_s, prompt_tokens, output_tokens, kind, prefix, prefix_tokens, kinds)
    result = simulate(requests, ClusterSpec(prefill=8, decode=16), "locality_band", profile, cost, seed=0)
    result.summary                                         # TTFT, TPOT, active experts, batch, throughput
    result.records.tpot_s; result.records.decode_worker    # columns, one row a request
    list(result.records)                                   # eldr.metrics.records.RequestRecord
    result.steps.active / result.steps.steps               # active experts a step of each decode worker

Small runs: `gather([SimRequest(...), ...], num_experts)` makes the columns. Expert choices:
`Rates(p [P, L, E])` or `Recorded([ids [tokens, L, k], ...], num_experts)`. Costs:
`load_cost(path)` or a `StepCost` of one's own.
What is modelled, and how well it holds: docs/simulator.md.
"""

from eldr.sim.cluster import Change, ClusterSpec
from eldr.sim.cost import StepCost, load_cost
from eldr.sim.experts import Rates, Recorded
from eldr.sim.records import Records, SimResult, SimSummary, WorkerSteps
from eldr.sim.requests import Kinds, Requests, SimRequest, gather, kinds_of
from eldr.sim.simulation import simulate

__all__ = [
    "Change",
    "ClusterSpec",
    "Kinds",
    "Rates",
    "Recorded",
    "Records",
    "Requests",
    "SimRequest",
    "SimResult",
    "SimSummary",
    "StepCost",
    "WorkerSteps",
    "gather",
    "kinds_of",
    "load_cost",
    "simulate",
]
