"""Balanced clusters: the assignment against scipy's, the clustering against its invariants."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from eldr.errors import CalibrationError
from eldr.profile import kmeans
from eldr.profile.balance import assign_balanced
from eldr.profile.kmeans import BalancedKMeans, cluster_sums, marginal_gains, seed_centroids
from support.pools import unit_rows


def best_sum(similarity: np.ndarray) -> float:
    """The largest sum by the Hungarian method on columns repeated ceil(N / K) times."""
    capacity = -(-similarity.shape[0] // similarity.shape[1])
    places = np.repeat(similarity.astype(np.float64), capacity, axis=1)
    return float(places[linear_sum_assignment(places, maximize=True)].sum())


def sum_of(similarity: np.ndarray, labels: np.ndarray) -> float:
    return float(similarity[np.arange(len(labels)), labels].sum(dtype=np.float64))


@given(seed=st.integers(0, 10_000), n=st.integers(1, 40), k=st.integers(1, 8), grid=st.booleans())
def test_assignment_is_balanced_and_warm_prices_change_nothing(seed: int, n: int, k: int, grid: bool) -> None:
    rng = np.random.default_rng(seed)
    similarity = rng.uniform(-1, 1, (n, k)).astype(np.float32)
    if grid:  # many ties
        similarity = np.round(similarity * 2) / 2
    labels, prices = assign_balanced(similarity)
    sizes = np.bincount(labels, minlength=k)
    assert sizes.max() <= -(-n // k)
    if n >= k:
        assert sizes.min() >= 1
    if n < k:
        assert sum_of(similarity, labels) == pytest.approx(best_sum(similarity), abs=1e-6)
    assert sum_of(similarity, labels) <= best_sum(similarity) + 1e-6
    assert n >= k or len(set(labels)) == n  # too few rows for all clusters: none is moved to fill one
    if grid and n % k:
        return  # equally good assignments leave different clusters empty, and filling these costs differently
    again, _ = assign_balanced(similarity, prices)
    assert sum_of(similarity, again) == pytest.approx(sum_of(similarity, labels), abs=1e-6)
    moved = (similarity + rng.normal(0, 0.1, similarity.shape)).clip(-1, 1).astype(np.float32)
    warm, _ = assign_balanced(moved, prices)
    cold, _ = assign_balanced(moved)
    assert sum_of(moved, warm) == pytest.approx(sum_of(moved, cold), abs=1e-6)


@given(
    seed=st.integers(0, 10_000), capacity=st.integers(1, 12), k=st.integers(1, 8), spare=st.integers(0, 11)
)
def test_assignment_reaches_the_best_sum(seed: int, capacity: int, k: int, spare: int) -> None:
    n = capacity * k - spare % min(capacity, k)  # too few spare places to leave a cluster empty
    similarity = np.random.default_rng(seed).uniform(-1, 1, (n, k)).astype(np.float32)
    labels, prices = assign_balanced(similarity)
    assert sum_of(similarity, labels) == pytest.approx(best_sum(similarity), abs=1e-6)
    priced = similarity.astype(np.float64) - prices
    np.testing.assert_allclose(priced[np.arange(n), labels], priced.max(axis=1), atol=1e-6)


def test_skewed_rows_fill_the_clusters() -> None:
    similarity = np.tile(np.array([[0.9, 0.5, 0.1]], np.float32), (9, 1))
    labels, _ = assign_balanced(similarity)
    assert np.bincount(labels).tolist() == [3, 3, 3]


def groups(sizes: list[int], dim: int = 20, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(len(sizes)), sizes)
    centers = rng.random((len(sizes), dim)) ** 4
    return unit_rows(centers[truth] + rng.random((len(truth), dim)) * 0.1), truth


@pytest.mark.parametrize(("n", "k"), [(100, 4), (101, 4), (37, 5), (5, 4), (8, 8), (1, 1), (60, 7)])
def test_sizes_and_unit_centroids(n: int, k: int) -> None:
    rows = unit_rows(np.random.default_rng(n).random((n, 12)))
    fitted = BalancedKMeans(k).fit(rows)
    assert fitted.sizes_.sum() == n
    assert 1 <= fitted.sizes_.min() <= fitted.sizes_.max() <= -(-n // k)
    assert np.array_equal(np.bincount(fitted.labels_, minlength=k), fitted.sizes_)
    np.testing.assert_allclose(np.linalg.norm(fitted.centroids_, axis=1), 1, atol=1e-5)
    assert fitted.objective_ == pytest.approx(sum_of(rows @ fitted.centroids_.T, fitted.labels_), abs=1e-3)


def test_finds_equal_groups_exactly() -> None:
    rows, truth = groups([25, 25, 25, 25])
    labels = BalancedKMeans(4).fit(rows).labels_
    assert len(set(zip(truth, labels, strict=True))) == 4


def test_a_large_group_is_shared_out() -> None:
    rows, truth = groups([60, 20, 20])
    fitted = BalancedKMeans(4).fit(rows)
    assert fitted.sizes_.max() == 25
    assert len(set(fitted.labels_[truth == 0])) >= 3


def test_repeatable_by_seed_and_the_best_start_wins() -> None:
    rows = unit_rows(np.random.default_rng(1).random((80, 6)))
    once, again = BalancedKMeans(6, seed=3).fit(rows), BalancedKMeans(6, seed=3).fit(rows)
    assert np.array_equal(once.labels_, again.labels_)
    assert np.array_equal(once.centroids_, again.centroids_)
    rng = np.random.default_rng(3)
    starts = [once._run(rows, seed_centroids(rows, 6, rng)).objective for _ in range(once.starts)]
    assert min(starts) < once.objective_ == max(starts)


def test_identical_rows() -> None:
    rows = unit_rows(np.ones((10, 4)))
    fitted = BalancedKMeans(3).fit(rows)
    assert fitted.objective_ == pytest.approx(10, abs=1e-4)
    assert fitted.sizes_.max() <= 4
    assert len(np.unique(seed_centroids(np.arange(10.0)[:, None] * 0 + 1, 3, np.random.default_rng(0)))) == 1


def test_rows_that_cancel_out_keep_a_centroid() -> None:
    rows = unit_rows([[1, 0], [-1, 0]])
    np.testing.assert_allclose(np.linalg.norm(BalancedKMeans(1).fit(rows).centroids_, axis=1), 1)


@pytest.mark.parametrize("k", [0, 4])
def test_too_few_rows(k: int) -> None:
    with pytest.raises(CalibrationError, match=f"3 signatures cannot make {k} clusters"):
        BalancedKMeans(k).fit(unit_rows(np.eye(3)))


def test_many_rows_are_sampled_first(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, truth = groups([60, 60, 60])
    whole = BalancedKMeans(3).fit(rows)
    monkeypatch.setattr(kmeans, "SAMPLE", 50)
    monkeypatch.setattr(kmeans, "EXACT", 200)
    sampled = BalancedKMeans(3).fit(rows)
    assert sampled.sizes_.tolist() == [60, 60, 60]
    assert len(set(zip(truth, sampled.labels_, strict=True))) == 3
    assert sampled.objective_ == pytest.approx(whole.objective_, rel=1e-6)


@given(seed=st.integers(0, 1000), n=st.integers(2, 12), k=st.integers(1, 4))
def test_marginal_gains_are_changes_of_the_objective(seed: int, n: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    rows, labels = unit_rows(rng.normal(size=(n, 5))), rng.integers(0, k, n)

    def objective(members: np.ndarray) -> float:
        return float(np.linalg.norm(rows[members].sum(axis=0, dtype=np.float64)))

    gains = marginal_gains(rows, cluster_sums(rows, labels, k), labels)
    for i, cluster in np.ndindex(gains.shape):
        others = (labels == cluster) & (np.arange(n) != i)
        added = others | (np.arange(n) == i)
        assert gains[i, cluster] == pytest.approx(objective(added) - objective(others), abs=1e-3)


def test_better_than_lloyd_alone() -> None:
    rows, _ = groups([4] * 16)
    full = BalancedKMeans(16, starts=1)
    start = seed_centroids(rows, 16, np.random.default_rng(0))
    lloyd = full._lloyd(rows, start, exact=True)
    assert (
        full._run(rows, start).objective >= np.linalg.norm(cluster_sums(rows, lloyd, 16), axis=1).sum() - 1e-3
    )
