"""What every registered policy must do, whatever its rule."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from eldr.errors import NoWorkerError
from eldr.policy import POLICIES, Policy, create_policy
from eldr.types import Decision, PoolView, RoutingRequest
from support.pools import pool_view, random_view, unit_rows

OPTIONS: dict[str, dict[str, Any]] = {"domain_label": {"workers": {"law": ["w0", "w2"], "math": ["w1"]}}}
LABELS = ["law", "math", "other", None]


@pytest.fixture(params=POLICIES.names())
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def create(name: str, seed: int = 0) -> Policy:
    return create_policy(name, rng=np.random.default_rng(seed), **OPTIONS.get(name, {}))


def random_request(rng: np.random.Generator, dim: int = 12) -> RoutingRequest:
    signature = unit_rows(rng.random(dim)) if rng.random() < 0.9 else None
    return RoutingRequest("r", signature, label=LABELS[rng.integers(len(LABELS))])


def decisions(name: str, seed: int) -> list[Decision]:
    policy, rng = create(name, seed), np.random.default_rng(7)
    return [policy.select(random_request(rng), random_view(rng, 6)) for _ in range(60)]


@pytest.mark.parametrize("workers", [1, 2, 3, 16, 64])
def test_decision_is_true_of_an_available_worker(name: str, workers: int) -> None:
    policy, rng = create(name), np.random.default_rng(workers)
    for _ in range(50):
        request, pool = random_request(rng), random_view(rng, workers)
        decision = policy.select(request, pool)
        assert pool.available[decision.worker]
        assert decision.worker_id == pool.worker_ids[decision.worker]
        assert decision.in_flight == pool.in_flight[decision.worker]
        assert decision.policy == name == policy.name
        assert 1 <= decision.band_size <= pool.available.sum()
        _similarities_are_true(decision, request, pool)


def _similarities_are_true(decision: Decision, request: RoutingRequest, pool: PoolView) -> None:
    if decision.best_similarity is None:
        assert decision.similarity is None
        return
    assert request.signature is not None
    assert pool.centroids is not None
    cosine = pool.centroids.astype(np.float64) @ request.signature
    comparable = cosine[pool.available & pool.has_centroid]
    assert decision.best_similarity == pytest.approx(comparable.max(), abs=1e-6)
    if decision.similarity is not None:
        assert decision.similarity == pytest.approx(cosine[decision.worker], abs=1e-6)


def test_fields_are_plain_python_values(name: str) -> None:
    for decision in decisions(name, 0):
        assert type(decision.worker) is type(decision.in_flight) is type(decision.band_size) is int
        assert {type(decision.similarity), type(decision.best_similarity)} <= {float, type(None)}


def test_no_worker(name: str) -> None:
    for pool in (pool_view([]), pool_view([0, 0], available=[False, False])):
        with pytest.raises(NoWorkerError, match=f"none of {len(pool.worker_ids)} decode workers"):
            create(name).select(RoutingRequest("r"), pool)


def test_repeatable_by_seed(name: str) -> None:
    assert decisions(name, 3) == decisions(name, 3)


def test_does_not_change_its_arguments(name: str) -> None:
    rng = np.random.default_rng(0)
    request, pool = random_request(rng), random_view(rng, 5)
    for array in (pool.in_flight, pool.in_flight_tokens, pool.available, pool.centroids, pool.has_centroid):
        assert array is not None
        array.setflags(write=False)
    before = deepcopy((request, pool))
    create(name).select(request, pool)
    np.testing.assert_equal(_fields((request, pool)), _fields(before))


def _fields(values: tuple[RoutingRequest, PoolView]) -> list[Any]:
    return [getattr(value, field) for value in values for field in value.__slots__]


def test_survives_a_pool_that_grows_and_shrinks(name: str) -> None:
    policy, rng = create(name), np.random.default_rng(1)
    for workers in (3, 1, 8, 2, 64, 1):
        pool = random_view(rng, workers)
        assert pool.available[policy.select(random_request(rng), pool).worker]


def test_without_a_profile(name: str) -> None:
    decision = create(name).select(RoutingRequest("r", unit_rows([1, 0])), pool_view([2, 1]))
    assert decision.similarity is None
    assert decision.worker in (0, 1)
