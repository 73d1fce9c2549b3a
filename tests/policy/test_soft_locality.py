"""Soft locality against a table and against a plain reading of its rule."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr.policy import Policy, create_policy
from eldr.policy.soft_locality import CROWD_WEIGHT, LEAST_DIFFERENCE, LOAD_WEIGHT
from eldr.policy.stays import LEAST, MEMORY
from eldr.types import Decision, PoolView, RoutingRequest
from support.pools import pool_view, random_view, unit_rows

# Cosines of (1, 0) to these: 1.0, 0.8, 0. Of each other: 0.8, 0 and 0.6, so the mean difference is 0.533.
CENTROIDS = unit_rows([[1, 0], [0.8, 0.6], [0, 1]])


def create() -> Policy:
    return create_policy("soft_locality", rng=np.random.default_rng(0))


def select(policy: Policy, pool: PoolView, signature: object) -> Decision:
    return policy.select(RoutingRequest("r", None if signature is None else unit_rows(signature)), pool)


@pytest.mark.parametrize(
    ("in_flight", "available", "expected"),
    [
        ([0, 0, 0], [1, 1, 1], 0),  # idle: the most alike
        ([4, 4, 4], [1, 1, 1], 0),
        # 2 / 4.67 of the mean cost 0.3: less than the difference, 0.2 / 0.533 = 0.375; 3 / 5 of it cost 0.42
        ([6, 4, 4], [1, 1, 1], 0),
        ([7, 4, 4], [1, 1, 1], 1),
        # in proportion; 30 / 100 cost 0.21 and 20 of them, above the root of 100, are a crowd: 0.28 more
        ([120, 90, 90], [1, 1, 1], 0),
        ([130, 100, 70], [1, 1, 1], 1),
        ([1, 0, 0], [1, 1, 1], 1),  # of a mean below 1 as of 1: 0.7
        ([99, 99, 0], [1, 1, 1], 2),  # none stays idle, however different
        ([9, 9, 1], [1, 1, 1], 2),  # being different costs at most 0.7, 8 / 6.33 of the mean 0.88
        ([9, 9, 4], [1, 1, 1], 0),  # and 5 / 7.33 only 0.48
        ([0, 9, 9], [0, 1, 1], 1),  # only available workers are compared, loads as well
        ([0, 9, 1], [0, 1, 0], 1),
    ],
)
def test_table(in_flight: list[int], available: list[int], expected: int) -> None:
    pool = pool_view(in_flight, available=[bool(a) for a in available], centroids=CENTROIDS)
    decision = select(create(), pool, [1, 0])
    assert (decision.worker, decision.band_size, decision.fallback) == (expected, sum(available), None)


def test_equal_costs_go_by_worker_order() -> None:
    pool = pool_view([1, 1, 1], centroids=unit_rows([[0, 1], [1, 0], [1, 0]]))
    assert select(create(), pool, [1, 0]).worker == 1


def test_a_worker_is_what_it_was_sent_lately() -> None:
    policy = create()
    idle = pool_view([0, 0], centroids=unit_rows([[1, 0], [0, 1]]))
    full = PoolView(
        idle.worker_ids,
        np.array([99, 0]),
        idle.in_flight_tokens,
        idle.available,
        idle.centroids,
        idle.has_centroid,
    )
    assert select(policy, idle, [1, 0]).worker == 0
    assert select(policy, full, [1, 0]).worker == 1  # too much for the first: the second gets one, of one
    assert select(policy, idle, [0.6, 0.8]).worker == 0  # and is no longer what its centroid says


def test_a_worker_without_a_centroid_gets_work_and_then_counts_as_what_it_got() -> None:
    policy = create()
    centroids = np.vstack([unit_rows([[1, 0], [0, 1]]), np.zeros((1, 2), np.float32)])
    pool = pool_view([3, 3, 2], centroids=centroids)
    new = select(policy, pool, [0, 1])
    assert (new.worker, new.similarity) == (2, None)
    assert new.best_similarity == pytest.approx(1)
    assert select(policy, pool, [1, 0]).worker == 0


def test_what_is_known_of_workers_outlives_a_change_of_the_pool() -> None:
    policy, centroids = create(), unit_rows([[1, 0], [0, 1]])
    before = pool_view([0, 99], centroids=centroids)
    for _ in range(2):
        assert select(policy, before, [0, 1]).worker == 0
    grown = pool_view([2, 5, 99], centroids=np.vstack([centroids, unit_rows([[1, 1]])]))
    assert select(policy, grown, [0, 1]).worker == 0  # as alike as the second, which comes later
    refitted = pool_view([5, 5], centroids=unit_rows([[1, 0.1], [0, 1]]))
    assert select(policy, refitted, [0, 1]).worker == 1


def test_workers_that_are_all_alike_are_chosen_by_load() -> None:
    centroids = unit_rows([[1, 1e-8], [1, 0], [1, 0]])
    assert select(create(), pool_view([2, 2, 1], centroids=centroids), [1, 0]).worker == 2


@pytest.mark.parametrize(
    ("pool", "signature", "fallback"),
    [
        (pool_view([2, 1, 3], centroids=CENTROIDS), None, "no_signature"),
        (pool_view([2, 1, 3]), [1, 0], "no_profile"),
        (pool_view([2, 1, 3], centroids=CENTROIDS), [1, 0, 0], "other_profile"),
        (pool_view([2, 1, 3], centroids=np.zeros((3, 2), np.float32)), [1, 0], "no_centroid"),
    ],
)
def test_goes_by_load_where_likeness_is_missing(
    pool: PoolView, signature: list[float] | None, fallback: str
) -> None:
    decision = select(create(), pool, signature)
    assert (decision.worker, decision.fallback, decision.similarity) == (1, fallback, None)


def test_fewer_short_requests_are_held_than_long_ones() -> None:
    """Alike requests in two kinds; those on the first worker leave at once, those on the second stay."""
    policy, centroids = create(), unit_rows([[1, 0], [1, 0]])
    for _ in range(40):
        select(policy, pool_view([1, 9], centroids=centroids), [1, 0])  # the first gets all and holds one
    shorter = select(policy, pool_view([6, 8], centroids=centroids), [1, 0])
    assert shorter.worker == 1  # 6 short ones are more load than 8 long ones
    fresh = create()
    assert select(fresh, pool_view([6, 8], centroids=centroids), [1, 0]).worker == 0


def test_stays_outlive_a_change_of_the_pool() -> None:
    policy, centroids = create(), unit_rows([[1, 0], [1, 0]])
    for _ in range(40):
        select(policy, pool_view([1, 9], centroids=centroids), [1, 0])
    grown = pool_view([6, 8, 99], centroids=unit_rows([[1, 0], [1, 0], [1, 0]]))
    assert select(policy, grown, [1, 0]).worker == 1


@given(seed=st.integers(0, 2**32), workers=st.integers(1, 24))
def test_equals_the_plain_reading(seed: int, workers: int) -> None:
    rng = np.random.default_rng(seed)
    policy, pool = create(), random_view(rng, workers)
    got: dict[int, list[float]] = {}
    sent: list[int] = []
    for _ in range(4):
        signature = unit_rows(rng.random(12))
        expected = _oracle(pool, signature, got, _stays(pool, sent))
        decision = select(policy, pool, signature)
        if expected is None:
            assert decision.fallback == "no_centroid"
            return
        assert decision.worker in expected
        _send(pool, decision.worker, signature, got)
        sent.append(decision.worker)


def _stays(pool: PoolView, sent: list[int]) -> list[float]:
    """How long requests stay on each worker, from all decisions so far: the pool held the same at each."""
    workers, total = len(pool.in_flight), int(pool.in_flight.sum())
    kept = 1 - 1 / max(MEMORY * total, workers)
    ages = range(len(sent))
    held = [sum(int(n) * kept**age for age in (*ages, len(sent))) for n in pool.in_flight]
    got = [sum(kept ** (age + 1) for age in ages if sent[-1 - age] == k) for k in range(workers)]
    mean = sum(held) / max(sum(got), 1.0)
    if not total:
        return [1.0] * workers
    return [min(max((h + mean) / ((g + 1) * mean), LEAST), 1) for h, g in zip(held, got, strict=True)]


def _oracle(
    pool: PoolView, signature: np.ndarray, got: dict[int, list[float]], stays: list[float]
) -> list[int] | None:
    """The workers of least cost, equal within rounding, one worker at a time; None without a centroid."""
    assert pool.centroids is not None
    up = [k for k in range(len(pool.available)) if pool.available[k]]
    rows = [row for row, has in zip(pool.centroids, pool.has_centroid, strict=True) if has]
    if not any(pool.has_centroid[k] for k in up):
        return None
    pairs = [1 - float(a @ b) for i, a in enumerate(rows) for j, b in enumerate(rows) if i != j]
    difference = max(sum(pairs) / len(pairs), LEAST_DIFFERENCE) if pairs else 1.0
    mean = {k: np.array(got.get(k, pool.centroids[k])) for k in up if k in got or pool.has_centroid[k]}
    likeness = {k: float(row @ signature) for k, row in mean.items()}
    count = {k: int(pool.in_flight[k]) for k in up}
    load = {k: count[k] / stays[k] ** 0.5 for k in up}
    usual, middle = (max(sum(one.values()) / len(up), 1.0) for one in (count, load))
    exact = sum(load.values()) / len(up)

    def cost(k: int) -> float:
        distance = (max(likeness.values()) - likeness.get(k, max(likeness.values()))) / difference
        crowd = max(count[k] - usual - usual**0.5, 0) / usual
        return min(distance, LOAD_WEIGHT) + LOAD_WEIGHT * ((load[k] - exact) / middle + CROWD_WEIGHT * crowd)

    least = min(cost(k) for k in up)
    return [k for k in up if cost(k) <= least + 1e-5]


def _send(pool: PoolView, worker: int, signature: np.ndarray, got: dict[int, list[float]]) -> None:
    assert pool.centroids is not None
    before = np.array(got.get(worker, pool.centroids[worker]))
    share = 1 / (int(pool.in_flight[worker]) + 1)
    got[worker] = ((1 - share) * before + share * signature).tolist()
