"""Capacity prices: near the best assignment, never over capacity, and the gap is a true bound."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from eldr.profile.balance import assign_balanced
from eldr.profile.prices import gap, raise_prices, repair


@given(seed=st.integers(0, 10_000), n=st.integers(1, 40), k=st.integers(1, 8), grid=st.booleans())
def test_never_over_capacity_and_the_gap_bounds_the_best(seed: int, n: int, k: int, grid: bool) -> None:
    similarity = np.random.default_rng(seed).uniform(0.1, 1, (n, k)).astype(np.float32)
    if grid:
        similarity = np.round(similarity * 2) / 2 + np.float32(0.5)
    capacity = -(-n // k)
    labels, prices = raise_prices(similarity, capacity, np.zeros(k, np.float32))
    fixed = repair(similarity, capacity, labels)
    assert np.bincount(fixed, minlength=k).max() <= capacity
    places = np.repeat(similarity.astype(np.float64), capacity, axis=1)
    best = places[linear_sum_assignment(places, maximize=True)].sum()
    reached = similarity[np.arange(n), fixed].sum(dtype=np.float64)
    assert reached <= best + 1e-5
    assert best <= reached * (1 + gap(similarity, capacity, fixed, prices)) + 1e-4


def test_rows_under_their_prices_go_where_they_gain_most() -> None:
    similarity = np.random.default_rng(0).random((200, 5), dtype=np.float32)
    labels, prices = raise_prices(similarity, 40, np.zeros(5, np.float32))
    assert np.array_equal(labels, (similarity - prices).argmax(axis=1))
    assert np.bincount(labels, minlength=5).max() <= 45
    assert (prices >= 0).all()


@pytest.mark.parametrize(("n", "k"), [(2000, 8), (2000, 40)])
def test_near_the_exact_assignment(n: int, k: int) -> None:
    rng = np.random.default_rng(0)
    similarity = (rng.random(k) * 0.3 + rng.random((n, k)) * 0.7).astype(np.float32)
    exact, near = (assign_balanced(similarity, exact=exact)[0] for exact in (True, False))
    sums = [similarity[np.arange(n), labels].sum(dtype=np.float64) for labels in (exact, near)]
    assert 0.995 * sums[0] < sums[1] <= sums[0] + 1e-3


def test_a_balanced_assignment_is_left_as_it_is() -> None:
    similarity = np.eye(3, dtype=np.float32).repeat(4, axis=0)
    labels, prices = raise_prices(similarity, 4, np.zeros(3, np.float32))
    assert not prices.any()
    assert np.array_equal(repair(similarity, 4, labels), labels)
    assert gap(similarity, 4, labels, prices) == pytest.approx(0)
