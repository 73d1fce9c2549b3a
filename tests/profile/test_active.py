"""Expected active experts against counting in simulated batches."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr.profile.active import LEAST, Group, activation_rates, compare_grouping, expected_active
from support.synthetic import calibration_set


def test_rates_sum_to_top_k() -> None:
    calibration = calibration_set(requests=5, top_k=3)
    rates = activation_rates(calibration.decode_counts, 3)
    np.testing.assert_allclose(rates.sum(axis=2), 3, rtol=1e-5)
    assert rates.max() <= 1
    assert not activation_rates(np.zeros((1, 2, 4), np.uint32), 3).any()


def test_expected_active_by_hand() -> None:
    rates = np.array([[[1.0, 0.5, 0.5]], [[1.0, 0.5, 0.5]]], np.float32)
    assert expected_active(rates) == pytest.approx(1 + 0.75 + 0.75)
    assert expected_active(rates[:1]) == pytest.approx(2)


def test_expected_active_equals_counting() -> None:
    rng = np.random.default_rng(0)
    rates = rng.random((4, 2, 6), dtype=np.float32)
    steps = rng.random((20_000, *rates.shape)) < rates
    counted = steps.any(axis=1).sum(axis=2).mean()
    assert expected_active(rates) == pytest.approx(counted, rel=0.01)


def exactly(rates: np.ndarray, batch: int) -> float:
    """Mean over all sets of `batch` distinct requests, which is unbiased for others of their kind."""
    return float(
        np.mean([expected_active(rates[list(s)]) for s in itertools.combinations(range(len(rates)), batch)])
    )


@given(seed=st.integers(0, 1000), n=st.integers(2, 9), batch=st.integers(1, 4))
def test_a_group_equals_the_mean_over_all_its_batches(seed: int, n: int, batch: int) -> None:
    rates = np.random.default_rng(seed).beta(2, 6, (n, 2, 5)).astype(np.float32)
    batch = min(n, batch)
    tolerance = 1e-5 if batch <= 2 else 0.02  # up to two the correction is exact
    assert Group(rates).active(batch) == pytest.approx(exactly(rates, batch), rel=tolerance)


def test_a_small_sample_of_a_kind_tells_of_large_batches() -> None:
    rng = np.random.default_rng(0)
    kind = rng.beta(0.5, 4, (4000, 1, 32)).astype(np.float32)
    for batch in (8, 32, 128):
        sampled = [Group(kind[rng.choice(4000, 16)]).active(batch) for _ in range(200)]
        assert np.mean(sampled) == pytest.approx(Group(kind).active(batch), rel=0.01)


def test_degenerate_groups() -> None:
    assert Group(np.full((1, 2, 4), 0.5, np.float32)).active(3) == pytest.approx(4 * (1 - 0.5**3))
    never, always = np.zeros((5, 2, 4), np.float32), np.ones((5, 2, 4), np.float32)
    assert [Group(never).active(b) for b in (0, 1, 128)] == [0, 0, 0]
    assert [Group(always).active(b) for b in (0, 1, 128)] == [0, 4, 4]


def test_grouping_by_domain_activates_fewer() -> None:
    calibration = calibration_set(requests=60, domains=3)
    rates = activation_rates(calibration.decode_counts, calibration.top_k)
    domains = np.arange(60) % 3
    for figure in compare_grouping(rates, domains, (4, 8, 32)):
        assert figure.mixed is not None
        assert figure.by_cluster is not None
        assert figure.change == pytest.approx(figure.by_cluster / figure.mixed - 1)
        assert figure.change < -0.05
    shuffled = np.random.default_rng(0).permutation(domains)
    assert compare_grouping(rates, shuffled, (8,))[0].change == pytest.approx(0, abs=0.02)


@given(seed=st.integers(0, 1000), clusters=st.integers(1, 4), batch=st.integers(1, 200))
def test_active_experts_stay_in_range(seed: int, clusters: int, batch: int) -> None:
    calibration = calibration_set(requests=24, seed=seed, layers=1, experts=8)
    rates = activation_rates(calibration.decode_counts, calibration.top_k)
    figure = compare_grouping(rates, np.arange(24) % clusters, (batch,))[0]
    assert figure.mixed is not None
    assert 1.9 <= figure.mixed <= 8
    assert (figure.by_cluster is None) == (24 / clusters < LEAST)


def test_requests_without_a_cluster_count_as_mixed_only() -> None:
    rates = np.full((12, 1, 4), 0.5, np.float32)
    rates[8:] = 0
    figure = compare_grouping(rates, np.array([0] * 8 + [-1] * 4), (4,))[0]
    assert figure.by_cluster == pytest.approx(4 * (1 - 0.5**4))
    assert figure.mixed is not None
    assert figure.mixed < figure.by_cluster


def test_too_few_requests_say_nothing() -> None:
    rates = np.full((9, 1, 4), 0.5, np.float32)
    few = compare_grouping(rates[:7], np.zeros(7, int), (4,))[0]
    assert (few.mixed, few.by_cluster, few.change) == (None, None, None)
    apart = compare_grouping(rates, np.arange(9), (4,))[0]
    assert apart.mixed is not None
    assert (apart.by_cluster, apart.change) == (None, None)
