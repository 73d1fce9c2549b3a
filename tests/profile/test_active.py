"""Expected active experts against counting in simulated batches."""

import numpy as np
import pytest

from eldr.profile.active import activation_rates, compare_grouping, expected_active
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


def test_grouping_by_domain_activates_fewer() -> None:
    calibration = calibration_set(requests=60, domains=3)
    rates = activation_rates(calibration.decode_counts, calibration.top_k)
    domains = np.arange(60) % 3
    by_domain = compare_grouping(rates, domains, (4, 8, 32, 64))
    by_chance = compare_grouping(rates, np.random.default_rng(0).permutation(domains), (8,))[0]
    for figure in by_domain[:2]:
        assert figure.mixed is not None
        assert figure.by_cluster is not None
        assert figure.by_cluster < 0.9 * figure.mixed
    assert by_chance.by_cluster == pytest.approx(by_chance.mixed, rel=0.03)
    assert (by_domain[2].mixed is None, by_domain[2].by_cluster) == (False, None)
    assert (by_domain[3].mixed, by_domain[3].by_cluster) == (None, None)


def test_a_batch_holds_a_request_once() -> None:
    rates = np.random.default_rng(0).random((8, 2, 6), dtype=np.float32)
    figure = compare_grouping(rates, np.zeros(8, np.int64), (8,))[0]
    assert figure.mixed == pytest.approx(expected_active(rates))
    assert figure.by_cluster == pytest.approx(expected_active(rates))


def test_requests_without_a_cluster_count_as_mixed_only() -> None:
    rates = np.full((6, 1, 4), 0.5, np.float32)
    rates[4:] = 0
    figure = compare_grouping(rates, np.array([0, 0, 0, 0, -1, -1]), (4,))[0]
    assert figure.by_cluster == pytest.approx(4 * (1 - 0.5**4))
    assert figure.mixed is not None
    assert figure.mixed < figure.by_cluster
