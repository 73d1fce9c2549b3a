"""The policies that go by turn, chance, load or label, each by a table."""

from collections import Counter

import numpy as np
import pytest

from eldr.policy import create_policy
from eldr.types import RoutingRequest
from support.pools import pool_view

REQUEST = RoutingRequest("r")


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_round_robin_takes_turns_and_skips_those_that_are_down() -> None:
    policy = create_policy("round_robin", rng=rng())
    up, down = pool_view([9, 0, 0]), pool_view([0, 0, 0], available=[True, False, True])
    taken = [policy.select(REQUEST, pool).worker for pool in (up, up, up, up, down, down, up)]
    assert taken == [0, 1, 2, 0, 2, 0, 1]


def test_random_is_even_over_available_workers() -> None:
    policy = create_policy("random", rng=rng())
    pool = pool_view([50, 0, 0, 0], available=[True, True, False, True])
    taken = Counter(policy.select(REQUEST, pool).worker for _ in range(3000))
    assert set(taken) == {0, 1, 3}
    assert all(900 < count < 1100 for count in taken.values())


@pytest.mark.parametrize(
    ("in_flight", "available", "expected"),
    [
        ([3, 1, 2], None, 1),
        ([2, 1, 1], None, 1),
        ([0, 0, 0], None, 0),
        ([0, 1, 5], [False, False, True], 2),
        ([4], None, 0),
    ],
)
def test_jsq_takes_the_shortest_queue(
    in_flight: list[int], available: list[bool] | None, expected: int
) -> None:
    decision = create_policy("jsq", rng=rng()).select(REQUEST, pool_view(in_flight, available=available))
    assert decision.worker == expected
    assert decision.band_size == (len(in_flight) if available is None else sum(available))


def test_p2c_draws_two_different_workers_and_takes_the_less_loaded() -> None:
    policy = create_policy("p2c", rng=rng())
    pool = pool_view([9, 2, 1, 0])
    taken = Counter(policy.select(REQUEST, pool).worker for _ in range(6000))
    assert taken[0] == 0  # the most loaded never wins a pair
    for worker, share in ((3, 3 / 6), (2, 2 / 6), (1, 1 / 6)):
        assert taken[worker] / 6000 == pytest.approx(share, abs=0.03)


def test_p2c_breaks_ties_evenly() -> None:
    policy = create_policy("p2c", rng=rng())
    taken = Counter(policy.select(REQUEST, pool_view([1, 1])).worker for _ in range(2000))
    assert taken[0] == pytest.approx(1000, abs=100)


@pytest.mark.parametrize(
    ("label", "available", "expected", "band_size", "fallback"),
    [
        ("law", [1, 1, 1, 1], 2, 2, None),
        ("law", [1, 1, 0, 1], 0, 1, None),
        ("law", [0, 1, 0, 1], 1, 2, "no_labelled_worker"),
        ("gone", [1, 1, 1, 1], 1, 4, "no_labelled_worker"),
        ("other", [1, 1, 1, 1], 1, 4, "unknown_label"),
        (None, [1, 1, 1, 1], 1, 4, "no_label"),
    ],
)
def test_domain_label(
    label: str | None, available: list[int], expected: int, band_size: int, fallback: str | None
) -> None:
    table = {"law": ["w0", "w2"], "gone": ["w9"]}
    policy = create_policy("domain_label", rng=rng(), workers=table)
    pool = pool_view([5, 0, 3, 1], available=[bool(a) for a in available])
    decision = policy.select(RoutingRequest("r", label=label), pool)
    assert (decision.worker, decision.band_size, decision.fallback) == (expected, band_size, fallback)
