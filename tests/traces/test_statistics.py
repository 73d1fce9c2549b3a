"""Against plain loops, and cases whose answer is known."""

import numpy as np
import pytest

from eldr.traces import ExpertTraces, statistics
from eldr.traces.synthetic import Scales, SyntheticMoE, generate


def made_up(**scales: float) -> ExpertTraces:
    off = dict.fromkeys(("popularity", "domain", "topic", "request", "domain_phase", "phase"), 0.0)
    moe = SyntheticMoE("m", 2, 16, 2, {"a": 1, "b": 1, "c": 1}, Scales(**{**off, **scales}))
    return generate(moe, 120, prompt_tokens=3000, seed=1)


def test_layer_cosines_by_loops() -> None:
    domains = np.random.default_rng(0).random((3, 2, 5))
    expected = np.empty((3, 3))
    for a in range(3):
        for b in range(3):
            layers = [
                x @ y / np.linalg.norm(x) / np.linalg.norm(y)
                for x, y in zip(domains[a], domains[b], strict=True)
            ]
            expected[a, b] = np.mean(layers)
    np.testing.assert_allclose(statistics.layer_cosines(domains), expected)


def test_shares_of_nothing_are_nothing() -> None:
    np.testing.assert_array_equal(statistics.shares(np.array([[0, 0], [1, 3]])), [[0, 0], [0.25, 0.75]])


def test_independent_active() -> None:
    rates = np.array([[1.0, 0.5, 0.0]])
    assert statistics.independent_active(rates, 2) == pytest.approx(1 + 0.75)


def test_grouping_by_disjoint_experts_is_exact() -> None:
    """Two groups, each sure of two experts of its own: a batch of one needs 2, of both 4."""
    rates = np.zeros((8, 1, 4), np.float32)
    rates[:4, :, :2] = rates[4:, :, 2:] = 1
    mixed, same, change = statistics.grouping_change(rates, np.repeat(["x", "y"], 4), 4)
    assert (mixed, same, change) == (4.0, 2.0, -0.5)


def test_groups_that_are_too_small_take_no_part() -> None:
    rates = np.ones((6, 1, 2), np.float32)
    assert statistics.grouping_change(rates, np.array(["x"] * 5 + ["y"]), 4)[:2] == (2.0, 2.0)


def test_prefill_and_decode_that_differ_only_by_chance_correlate() -> None:
    traces = made_up(domain=1.0)
    assert statistics.domain_correlation(traces) > 0.99
    assert statistics.request_correlation(traces) > 0.98
    assert statistics.domain_share(traces) == pytest.approx(1, abs=0.05)


def test_what_each_phase_has_for_itself_lowers_the_correlation() -> None:
    apart = made_up(domain=1.0, domain_phase=1.0)
    assert 0.3 < statistics.domain_correlation(apart) < 0.8
    alone = made_up(request=1.0)
    assert abs(statistics.domain_share(alone)) < 0.1
    assert statistics.request_correlation(alone) > 0.95


def test_clusters_find_the_domains() -> None:
    traces = made_up(domain=2.0)
    known = statistics.grouping_change(traces.decode_rates(), traces.label, 8)[2]
    assert statistics.cluster_change(traces, 3, 8) == pytest.approx(known, abs=0.05)
    assert known < -0.2
