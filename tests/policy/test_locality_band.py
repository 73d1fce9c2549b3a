"""The locality band against a table and against a plain reading of the paper."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr.policy import create_policy
from eldr.types import Decision, PoolView, RoutingRequest
from support.pools import pool_view, random_view, unit_rows


def select(pool: PoolView, signature: object, tau: float = 0.1) -> Decision:
    policy = create_policy("locality_band", rng=np.random.default_rng(0), tau=tau)
    return policy.select(RoutingRequest("r", None if signature is None else unit_rows(signature)), pool)


# Cosines of (1, 0) to these: 1.0, 0.95, 0.6.
CENTROIDS = unit_rows([[1, 0], [0.95, 0.312249900], [0.6, 0.8]])


@pytest.mark.parametrize(
    ("in_flight", "available", "tau", "expected", "band_size"),
    [
        ([0, 0, 0], [1, 1, 1], 0.1, 0, 2),  # equal load: the nearest
        ([2, 1, 0], [1, 1, 1], 0.1, 1, 2),  # the least loaded in the band, not in the pool
        ([2, 1, 0], [1, 1, 1], 0.0, 0, 1),  # no band: the nearest, whatever its load
        ([2, 1, 0], [1, 1, 1], 0.5, 2, 3),
        ([2, 1, 0], [0, 1, 1], 0.1, 1, 1),  # s* is over available workers only
        ([2, 9, 0], [0, 1, 1], 0.4, 2, 2),
        ([2, 1, 9], [0, 0, 1], 0.1, 2, 1),
    ],
)
def test_table(in_flight: list[int], available: list[int], tau: float, expected: int, band_size: int) -> None:
    pool = pool_view(in_flight, available=[bool(a) for a in available], centroids=CENTROIDS)
    decision = select(pool, [1, 0], tau)
    assert (decision.worker, decision.band_size, decision.fallback) == (expected, band_size, None)


def test_equal_loads_and_similarities_go_by_worker_order() -> None:
    pool = pool_view([1, 1, 1], centroids=unit_rows([[0, 1], [1, 0], [1, 0]]))
    assert select(pool, [1, 0]).worker == 1


def test_a_worker_without_a_centroid_is_always_in_the_band() -> None:
    centroids = np.vstack([CENTROIDS, np.zeros((1, 2), np.float32)])
    new = select(pool_view([1, 1, 0, 0], centroids=centroids), [1, 0])
    assert (new.worker, new.band_size) == (3, 3)
    assert new.similarity is None
    assert new.best_similarity == pytest.approx(1)
    assert select(pool_view([1, 1, 0, 1], centroids=centroids), [1, 0]).worker == 0


@pytest.mark.parametrize(
    ("pool", "signature", "fallback"),
    [
        (pool_view([2, 1, 3], centroids=CENTROIDS), None, "no_signature"),
        (pool_view([2, 1, 3]), [1, 0], "no_profile"),
        (pool_view([2, 1, 3], centroids=CENTROIDS), [1, 0, 0], "other_profile"),
        (pool_view([2, 1, 3], centroids=np.zeros((3, 2), np.float32)), [1, 0], "no_centroid"),
        (
            pool_view([2, 1, 3], available=[True, True, False], centroids=CENTROIDS * [[0], [0], [1]]),
            [1, 0],
            "no_centroid",
        ),
    ],
)
def test_goes_by_load_where_similarity_is_missing(
    pool: PoolView, signature: list[float] | None, fallback: str
) -> None:
    decision = select(pool, signature)
    assert (decision.worker, decision.fallback) == (1, fallback)
    assert (decision.similarity, decision.best_similarity) == (None, None)
    assert decision.band_size == pool.available.sum()


@given(seed=st.integers(0, 2**32), workers=st.integers(1, 64), tau=st.sampled_from([0, 0.02, 0.1, 0.3, 2]))
def test_equals_the_plain_reading(seed: int, workers: int, tau: float) -> None:
    rng = np.random.default_rng(seed)
    pool, signature = random_view(rng, workers), unit_rows(rng.random(12))
    expected = _oracle(pool, signature, tau)
    decision = select(pool, signature, tau)
    if expected is None:
        assert decision.fallback == "no_centroid"
    else:
        assert (decision.worker, decision.band_size) == expected


def _oracle(pool: PoolView, signature: np.ndarray, tau: float) -> tuple[int, int] | None:
    """Worker and band size, one worker at a time, or None where nothing can be compared."""
    assert pool.centroids is not None
    cosine = [float(c) for c in pool.centroids @ unit_rows(signature)]
    up = [k for k in range(len(cosine)) if pool.available[k]]
    known = [k for k in up if pool.has_centroid[k]]
    if not known:
        return None
    best = max(cosine[k] for k in known)
    band = [k for k in up if k not in known or cosine[k] >= best - tau]
    order = min(band, key=lambda k: (pool.in_flight[k], -cosine[k] if k in known else np.inf, k))
    return order, len(band)
