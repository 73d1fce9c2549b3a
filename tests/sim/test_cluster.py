"""The whole cluster: live policies, failures, records, repeatability."""

import numpy as np
import pytest
from msgspec.structs import replace

from eldr.errors import ConfigError
from eldr.metrics.summary import summarize
from eldr.policy import POLICIES, create_policy
from eldr.pool import Worker, WorkerPool
from eldr.sim import Change, ClusterSpec, Placement, mixed_kinds, poisson_arrivals, simulate
from eldr.sim.cluster import Cluster
from eldr.sim.events import CHANGE
from eldr.types import RoutingRequest

from .small import pairs_of_experts, requests, seconds

KINDS = pairs_of_experts(4)
CENTROIDS = KINDS.signatures
COST = seconds(fixed=0.01, active=0.005, prefill=0.02, transfer=0.001)


def busy_run(n: int = 400, seed: int = 0):
    rng = np.random.default_rng(seed)
    arrivals = poisson_arrivals(n, 40.0, rng)
    kind = mixed_kinds(KINDS, n, rng)
    return requests(arrivals, rng.integers(1, 40, n), kind=kind, kinds=KINDS)


@pytest.mark.parametrize("name", [name for name in POLICIES.names() if name != "domain_label"])
def test_every_policy_serves_all_and_counts_to_zero(name: str) -> None:
    result = simulate(busy_run(), ClusterSpec(prefill=2, decode=4, max_batch=8), name, CENTROIDS, COST)
    records, summary = result.records, result.summary
    assert summary.outcomes == {"ok": 400, "refused": 0, "broken": 0}
    assert sum(summary.per_worker) == 400
    assert result.steps.tokens.sum() == records.requests.output_tokens.sum()
    assert sum(steps for steps, _ in result.steps.by_batch.values()) == result.steps.steps.sum()
    assert sum(active for _, active in result.steps.by_batch.values()) == pytest.approx(
        result.steps.active.sum()
    )
    for earlier, later in (
        (records.arrival_s, records.prefill_done_s),
        (records.prefill_done_s, records.decided_s),
        (records.decided_s, records.first_token_s),
        (records.first_token_s, records.finish_s),
    ):
        assert (earlier <= later).all()


def test_locality_lowers_active_experts() -> None:
    spec = ClusterSpec(prefill=2, decode=4)
    ours, theirs = (simulate(busy_run(), spec, p, CENTROIDS, COST) for p in ("locality_band", "jsq"))
    assert ours.summary.active_experts < 0.8 * theirs.summary.active_experts


def test_a_run_is_repeatable_and_its_seed_matters() -> None:
    spec = ClusterSpec(prefill=1, decode=4)
    a, b, other = (simulate(busy_run(), spec, "p2c", None, COST, seed).records for seed in (1, 1, 2))
    assert (a.finish_s == b.finish_s).all()
    assert (a.decode_worker != other.decode_worker).any()


def test_decisions_are_those_of_the_policy_on_a_pool_with_that_load() -> None:
    """Follow the records, keep the load by hand, and ask the policy again."""
    records = simulate(busy_run(), ClusterSpec(prefill=1, decode=4), "locality_band", CENTROIDS, COST).records
    pool = WorkerPool(Worker(f"d{k}", f"sim://{k}") for k in range(4))
    pool.set_centroids(CENTROIDS)
    policy = create_policy("locality_band", rng=np.random.default_rng(0))
    events = [(t, 1, i) for i, t in enumerate(records.decided_s)]
    events += [(t, 0, i) for i, t in enumerate(records.finish_s)]
    held = {}
    for _, decides, i in sorted(events):
        if not decides:
            held.pop(i).release()
            continue
        signature = KINDS.signatures[records.requests.kind[i]]
        decision = policy.select(RoutingRequest(str(i), signature), pool.view())
        assert decision.worker == records.decode_worker[i]
        assert decision.in_flight == records.in_flight[i]
        assert decision.similarity == pytest.approx(records.similarity[i])
        held[i] = pool.reserve(decision.worker_id)


def test_in_flight_sends_the_next_request_as_one_ends() -> None:
    result = simulate(
        requests([0.0] * 6, 2), ClusterSpec(prefill=0, decode=1), "jsq", None, seconds(fixed=1.0), in_flight=2
    )
    assert result.records.arrival_s.tolist() == pytest.approx([0, 0, 2, 2, 4, 4])
    assert result.records.finish_s.tolist() == pytest.approx([2, 2, 4, 4, 6, 6])


def test_a_worker_that_fails_breaks_streams_and_the_rest_runs_again_elsewhere() -> None:
    """At 2.5 s the first has two tokens; the second, which came at 2.2 s, has none."""
    spec = ClusterSpec(prefill=1, decode=2, changes=(Change(2.5, 0, "fail"),))
    run = requests([0.0, 0.1, 2.2, 2.21, 3.0], 3)
    result = simulate(run, spec, "round_robin", None, seconds(fixed=1.0, prefill=0.01))
    records = result.records
    assert records.decode_worker.tolist() == [0, 1, 1, 1, 1]
    assert [record.outcome for record in records] == ["broken", "ok", "ok", "ok", "ok"]
    assert records.attempts.tolist() == [1, 1, 2, 1, 1]
    assert records.finish_s[0] == pytest.approx(2.5)
    assert np.isnan(records.tpot_s[0])
    assert records.prefill_done_s[2] == pytest.approx(2.51)
    assert result.steps.steps[0] == 2


def test_a_worker_that_joins_gets_work_at_once_and_one_alone_that_fails_refuses() -> None:
    spec = ClusterSpec(
        prefill=0,
        decode=2,
        changes=(Change(5.0, 1, "join"), Change(10.0, 0, "fail"), Change(10.0, 1, "fail")),
    )
    records = simulate(requests([0.0, 4.0, 6.0, 11.0], 3), spec, "jsq", None, seconds(fixed=1.0)).records
    assert records.decode_worker.tolist() == [0, 0, 1, -1]
    assert [r.outcome for r in records] == ["ok", "ok", "ok", "refused"]
    assert np.isnan(records.decided_s[3])
    record = list(records)[3]
    assert (record.decode_worker, record.first_token_s, record.output_tokens) == (None, None, None)


def test_linear_placements_change_nothing() -> None:
    spec = ClusterSpec(prefill=1, decode=4)
    placed = ClusterSpec(prefill=1, decode=4, placements=(Placement.linear(1, 8, 1),) * 4)
    a, b = (simulate(busy_run(), s, "locality_band", CENTROIDS, COST).records for s in (spec, placed))
    assert (a.finish_s == b.finish_s).all()


def test_a_worker_whose_experts_move_takes_another_time_from_its_next_step_on() -> None:
    """Both experts on one of two ranks take 2 s, one on each 1 s; they part in the second step."""
    cost = replace(seconds(active=1.0), ranks=2)
    policy = create_policy("jsq", rng=np.random.default_rng(0))
    cluster = Cluster(requests([0.0], 5), ClusterSpec(prefill=0, decode=1), policy, None, cost)
    apart = Placement(np.array([[0, 2, 3, 4, 1, 5, 6, 7]]), 2)
    cluster.loop.at(2.5, CHANGE, cluster.place, 0, apart)
    result = cluster.run(None, lambda: None)
    assert result.records.finish_s[0] == pytest.approx(2 + 2 + 3 * 1)
    assert result.steps.active.tolist() == pytest.approx([2 + 2 + 3 * 1])


@pytest.mark.parametrize(
    "placements",
    [(Placement.linear(1, 8, 2),) * 2, (Placement.linear(1, 8, 1),), (Placement.linear(2, 8, 1),) * 2],
)
def test_placements_that_do_not_fit_are_refused(placements: tuple[Placement, ...]) -> None:
    with pytest.raises(ConfigError):
        simulate(busy_run(), ClusterSpec(prefill=0, decode=2, placements=placements), "jsq", None, COST)


def test_new_centroids_are_asked_for_when_the_pool_changes() -> None:
    """When one of two workers is away the other has one centroid; then they swap, and keep what they have."""
    changes = (Change(5.0, 1, "fail"), Change(9.0, 1, "join"), Change(9.5, 1, "join"))
    spec = ClusterSpec(prefill=0, decode=2, changes=changes)
    asked = []

    def on_change(there):
        asked.append(list(there))
        return None if len(asked) == 3 else (CENTROIDS[[1, 0][: len(there)]], there)

    policy = create_policy("locality_band", rng=np.random.default_rng(0), tau=0.0)
    run = requests([0.0, 1.0, 6.0, 10.0, 11.0], kind=[0, 1, 0, 0, 1], kinds=KINDS)
    cluster = Cluster(run, spec, policy, CENTROIDS[:2], seconds(fixed=0.1), on_change)
    records = cluster.run(None, lambda: None).records
    assert asked == [[0], [0, 1], [0, 1]]
    assert records.decode_worker.tolist() == [0, 1, 0, 1, 0]
    assert records.similarity.tolist() == pytest.approx([1, 1, 0, 1, 1])


def test_records_are_the_routers() -> None:
    result = simulate(busy_run(), ClusterSpec(prefill=1, decode=4), "locality_band", CENTROIDS, COST)
    rows, ours = summarize(list(result.records)), result.summary
    assert rows.ttft_s == ours.ttft_s
    assert rows.tpot_s == ours.tpot_s
    assert rows.duration_s == pytest.approx(ours.duration_s)
    assert list(rows.per_worker.values()) == list(ours.per_worker)
    first, label = next(iter(result.records)), KINDS.labels[result.records.requests.kind[0]]
    assert (first.label, first.policy, first.prefill_worker) == (label, "locality_band", "p0")


@pytest.mark.parametrize(
    "make",
    [
        lambda: ClusterSpec(decode=0),
        lambda: ClusterSpec(max_batch=0),
        lambda: ClusterSpec(decode=2, changes=(Change(1.0, 2, "fail"),)),
        lambda: simulate(busy_run(), ClusterSpec(), "nonsense", None, COST),
        lambda: simulate(busy_run(), ClusterSpec(), "jsq", None, COST, in_flight=0),
        lambda: simulate(busy_run(), ClusterSpec(), "jsq", np.ones((2, 5), np.float32), COST),
        lambda: requests([]),
        lambda: requests([1.0, 0.5]),
        lambda: requests([0.0], 0),
        lambda: requests([0.0], kind=1),
        lambda: requests([0.0], prefix_tokens=11),
    ],
)
def test_what_makes_no_sense_is_refused(make) -> None:
    with pytest.raises(ConfigError):
        make()
