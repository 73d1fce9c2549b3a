"""Experts on ranks, against all combinations that can happen."""

import itertools

import numpy as np
import pytest

from eldr.errors import ConfigError
from eldr.sim import Rates, Recorded
from eldr.sim.placement import KNUTH, Placement, balanced, busiest, replica_of

VLLMS_EXAMPLE = np.array([[0, 1, 2, 3, 0, 1], [0, 2, 0, 1, 0, 3]])
"""physical_to_logical_map in the docstring of vLLM's EplbModelState: 4 experts, 6 physical ones, 3 ranks."""


def test_replicas_are_those_of_vllms_example() -> None:
    placement = Placement(VLLMS_EXAMPLE, 3)
    assert placement.shape == (2, 4)
    assert placement.replicas.tolist() == [[2, 2, 1, 1], [3, 1, 1, 1]]
    assert placement.number.tolist() == [[0, 0, 0, 0, 1, 1], [0, 0, 1, 0, 2, 0]]
    assert placement.by_rank(np.arange(8.0).reshape(2, 4)).tolist() == [
        [[0, 1], [2, 3], [0, 1]],
        [[4, 6], [4, 5], [4, 7]],
    ]


def test_vllm_starts_with_redundant_experts_behind_the_others() -> None:
    assert Placement.linear(1, 4, 3, redundant=2).slots.tolist() == [[0, 1, 2, 3, 0, 1]]


def expected_maximum(rates: np.ndarray, placement: Placement) -> float:
    """All choices of all requests (rates [B, L, E]), and all replicas that their tokens may go to."""
    layers, experts = placement.shape
    width, total = placement.slots.shape[1] // placement.ranks, 0.0
    for layer in range(layers):
        slots_of = [np.flatnonzero(placement.slots[layer] == e) for e in range(experts)]
        # a request uses each expert or not, and if so one slot of it: None or the slot
        ways = [
            [(1 - p, None), *((p / len(slots), slot) for slot in slots)]
            for row in rates[:, layer]
            for p, slots in zip(row, slots_of, strict=True)
        ]
        for way in itertools.product(*ways):
            used = {slot // width * width + slot % width for _, slot in way if slot is not None}
            most = max(sum(slot // width == rank for slot in used) for rank in range(placement.ranks))
            total += np.prod([chance for chance, _ in way]) * most
    return total / layers


@pytest.mark.parametrize(
    ("placement", "tolerance"),
    [
        (Placement.linear(2, 4, 1), 1e-5),
        (Placement.linear(2, 4, 2), 1e-5),
        (Placement.linear(2, 4, 4), 1e-5),
        (Placement(np.array([[3, 0, 1, 2], [0, 2, 1, 3]]), 2), 1e-5),
        (Placement(VLLMS_EXAMPLE, 3), 0.04),
        (Placement(VLLMS_EXAMPLE, 1), 1e-5),
    ],
)
@pytest.mark.parametrize("high", [0.3, 0.9])
def test_expected_maximum_against_all_combinations(
    placement: Placement, tolerance: float, high: float
) -> None:
    rates = np.random.default_rng(7).uniform(0, high, (2, 2, 4)).astype(np.float32)
    batch = Rates(rates).open(placement)
    for kind in range(2):
        batch.add(kind, kind)
    assert batch.active(1) == pytest.approx(expected_maximum(rates, placement), rel=tolerance)


def test_expected_maximum_of_many_experts_against_draws() -> None:
    """8 ranks of 16, where every rank has the same mean: the maximum is well above it."""
    rng = np.random.default_rng(0)
    chance = np.tile(rng.uniform(0.05, 0.95, 16), (1, 8, 1))
    drawn = (rng.random((20_000, 8, 16)) < chance).sum(axis=2).max(axis=1).mean()
    assert busiest(chance)[0] == pytest.approx(drawn, rel=5e-3)
    assert drawn > 1.2 * chance[0, 0].sum()


def test_a_token_goes_to_the_replica_that_vllm_hashes_its_row_to() -> None:
    """The kernel's arithmetic, in Python's own numbers."""
    replicas = np.arange(1, 6)
    for row in (0, 1, 2, 7, 500):
        assert replica_of(row, replicas).tolist() == [(row * KNUTH) % 2**32 % count for count in replicas]
    shares = np.bincount([replica_of(row, np.array([3]))[0] for row in range(3000)])
    assert shares == pytest.approx([1000] * 3, rel=0.05)


@pytest.mark.parametrize(
    "placement", [Placement(VLLMS_EXAMPLE, 3), Placement(np.array([[3, 0, 1, 2], [0, 2, 1, 3]]), 2)]
)
def test_recorded_tokens_on_ranks_against_a_plain_count(placement: Placement) -> None:
    rng = np.random.default_rng(2)
    ids = [np.stack([[rng.permutation(4)[:2] for _ in range(2)] for _ in range(9)]) for _ in range(5)]
    batch = Recorded(ids, experts=4).open(placement)
    for request in range(5):
        batch.add(request, request)
    batch.remove(1, 1)
    width = placement.slots.shape[1] // placement.ranks
    for step, active in enumerate(batch.active(9)):
        most = []
        for layer in range(2):
            used = set()
            for row, kind in enumerate((0, 2, 3, 4)):
                for expert in ids[kind][step, layer]:
                    physical = np.flatnonzero(placement.slots[layer] == expert)
                    used.add(physical[(row * KNUTH) % 2**32 % len(physical)])
            most.append(max(sum(slot // width == rank for slot in used) for rank in range(placement.ranks)))
        assert active == np.mean(most)


def test_experts_that_move_count_from_then_on() -> None:
    rates = np.zeros((2, 1, 4), np.float32)
    rates[0, 0, [0, 1]] = rates[1, 0, [0, 1]] = 1
    batch = Rates(rates).open(2)
    batch.add(0, 0)
    batch.add(1, 1)
    assert batch.active(1) == pytest.approx(2)
    batch.place(Placement(np.array([[0, 2, 1, 3]]), 2))
    assert batch.active(1) == pytest.approx(1)
    batch.place(Placement(np.array([[0, 1, 2, 3, 0, 0]]), 2))
    fresh = Rates(rates).open(Placement(np.array([[0, 1, 2, 3, 0, 0]]), 2))
    fresh.add(0, 0)
    fresh.add(1, 1)
    assert batch.active(1) == fresh.active(1)


def test_balanced_placement_copies_the_heaviest_and_evens_the_ranks() -> None:
    placement = balanced(np.array([[90.0, 10.0, 30.0, 20.0]]), ranks=3, redundant=2)
    # 90 -> 45 + 45 -> 30 + 30 + 30; then 30 (0), 30, 30, 30 (2), 20, 10
    assert placement.replicas.tolist() == [[3, 1, 1, 1]]
    held = placement.by_rank(np.array([[90.0, 10.0, 30.0, 20.0]]) / placement.replicas).sum(axis=2)
    assert sorted(held[0]) == [40.0, 50.0, 60.0]


def test_balanced_placement_is_more_even_than_the_linear_one() -> None:
    load = np.random.default_rng(3).exponential(size=(6, 32))
    even = balanced(load, ranks=4, redundant=8)
    assert even.slots.shape == (6, 40)
    most = [p.by_rank(load / p.replicas).sum(axis=2).max(axis=1) for p in (even, Placement.linear(6, 32, 4))]
    assert (most[0] < 1.1 * load.sum(axis=1) / 4).all()
    assert (most[1] > most[0]).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Placement(np.zeros((0, 4), int), 1),
        lambda: Placement(np.array([0, 1]), 1),
        lambda: Placement(np.array([[0.0, 1.0]]), 1),
        lambda: Placement(np.array([[0, -1]]), 1),
        lambda: Placement(np.array([[0, 1, 2]]), 2),
        lambda: Placement(np.array([[0, 1], [0, 0]]), 1),
        lambda: Placement(np.array([[0, 1]]), 0),
        lambda: balanced(np.ones((1, 4)), ranks=3),
    ],
)
def test_what_is_no_placement_is_refused(make) -> None:
    with pytest.raises(ConfigError):
        make()
