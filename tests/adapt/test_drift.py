"""Drift: seen when there is some, and not more often than stated when there is none."""

import numpy as np
import pytest

from eldr.adapt import drift as module
from eldr.adapt.drift import drift
from eldr.types import Matrix

CENTROIDS = np.eye(6, dtype=np.float32)


def drawn(rng: np.random.Generator, shares: list[float], rows: int, spread: float = 0.4) -> Matrix:
    kinds = rng.choice(len(shares), rows, p=shares)
    made = np.abs(np.eye(6)[kinds] + spread * rng.normal(size=(rows, 6)))
    return (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)


SHARES = [0.4, 0.3, 0.15, 0.1, 0.04, 0.01]


@pytest.mark.parametrize("rows", [100, 500])
def test_false_alarms_are_at_most_as_often_as_stated(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a rate that can be measured: 4 of 400 expected at most; 13 or more has a chance below 1 in 5,000."""
    monkeypatch.setattr(module, "FALSE_ALARMS", 0.01)
    rng = np.random.default_rng(1)
    alarms = sum(
        drift(drawn(rng, SHARES, rows), drawn(rng, SHARES, rows), CENTROIDS).alarm for _ in range(400)
    )
    assert alarms <= 12


def test_a_mix_that_jumps_is_seen_in_the_shares() -> None:
    rng = np.random.default_rng(0)
    found = drift(drawn(rng, SHARES, 200), drawn(rng, [0.1, 0.1, 0.1, 0.6, 0.05, 0.05], 200), CENTROIDS)
    assert found.alarm
    assert found.mix < found.fit
    assert "shares of clusters" in str(found)


def test_requests_that_no_cluster_knows_are_seen_in_the_distances() -> None:
    rng = np.random.default_rng(0)
    found = drift(drawn(rng, SHARES, 200), drawn(rng, SHARES, 200, spread=0.8), CENTROIDS)
    assert found.alarm
    assert found.fit < found.mix
    assert "distances to centroids" in str(found)


def test_too_few_are_not_tested() -> None:
    rng = np.random.default_rng(0)
    found = drift(drawn(rng, [1, 0, 0, 0, 0, 0], 99), drawn(rng, [0, 1, 0, 0, 0, 0], 500), CENTROIDS)
    assert found.p_value == 1
    assert not found.alarm


def test_one_cluster_alone_is_tested_by_distance_only() -> None:
    rng = np.random.default_rng(0)
    before, now = drawn(rng, SHARES, 150), drawn(rng, SHARES, 150, spread=1.0)
    found = drift(before, now, CENTROIDS[:1])
    assert found.mix == 1
    assert 0 <= found.fit <= 1
