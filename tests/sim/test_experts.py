"""Active experts of batches against a plain count."""

import numpy as np
import pytest

from eldr.errors import ConfigError
from eldr.profile.active import expected_active
from eldr.sim import Rates, Recorded
from eldr.sim.experts import MOST_STEPS
from eldr.sim.placement import Placement


def random_rates(rng: np.random.Generator, kinds: int = 5) -> np.ndarray:
    return rng.random((kinds, 3, 16)).astype(np.float32) * 0.5


def test_expected_union_follows_who_joins_and_leaves() -> None:
    rng = np.random.default_rng(0)
    rates = random_rates(rng)
    rates[1, 0, :4] = 1.0
    batch, members = Rates(rates).open(), []
    for request in range(200):
        if members and rng.random() < 0.5:
            leaver = members.pop(rng.integers(len(members)))
            batch.remove(*leaver)
        else:
            members.append((request, int(rng.integers(5))))
            batch.add(*members[-1])
        if members:
            expected = expected_active(rates[[kind for _, kind in members]])
            assert batch.active(1) == pytest.approx(expected, rel=1e-5)


def test_expected_union_of_two_ranks_is_that_of_the_busier_one() -> None:
    rates = np.zeros((2, 1, 8), np.float32)
    rates[0, 0, [0, 1, 2]] = 1  # rank 0
    rates[1, 0, [4, 5]] = 1  # rank 1
    batch = Rates(rates).open(2)
    batch.add(0, 1)
    assert batch.active(1) == pytest.approx(2)
    batch.add(1, 0)
    assert batch.active(1) == pytest.approx(3)


def test_one_rank_is_the_plain_sum_bit_for_bit() -> None:
    """No placement, and the linear one of one rank: as before there were placements."""
    rng = np.random.default_rng(5)
    rates = random_rates(rng)
    idle = np.log(np.maximum(1 - rates, np.float32(1e-12)))
    plain, linear = Rates(rates).open(), Rates(rates).open(Placement.linear(3, 16, 1))
    total = np.zeros((3, 16))
    for request in range(40):
        kind = int(rng.integers(5))
        for batch in (plain, linear):
            batch.add(request, kind)
        total += idle[kind]
        if request % 3 == 2:
            for batch in (plain, linear):
                batch.remove(request, kind)
            total -= idle[kind]
        expected = float(16 - np.exp(total.astype(np.float32)).sum() / 3)
        assert plain.active(1) == expected
        assert linear.active(1) == expected


def test_recorded_union_is_that_of_the_tokens_of_each_step() -> None:
    rng = np.random.default_rng(1)
    ids = [rng.integers(0, 20, (n, 2, 3)).astype(np.uint8) for n in (4, 7, 100)]
    batch = Recorded(ids, experts=20).open()
    batch.add(7, 0)
    batch.advance(2)
    batch.add(8, 2)
    positions = {0: 2, 2: 0}
    got = batch.active(90)
    assert len(got) == MOST_STEPS  # looks no further ahead
    for step, active in enumerate(got):
        tokens = [ids[k][(at + step) % len(ids[k])] for k, at in positions.items()]
        layers = [len(set(np.concatenate([t[layer] for t in tokens]).tolist())) for layer in range(2)]
        assert active == pytest.approx(np.mean(layers))
    batch.remove(7, 0)
    assert batch.active(1)[0] == pytest.approx(np.mean([len(set(layer)) for layer in ids[2][0].tolist()]))


def test_recorded_union_by_rank() -> None:
    ids = [np.array([[[0, 1, 9]]], np.uint8), np.array([[[2, 10, 11]]], np.uint8)]
    batch = Recorded(ids, experts=16).open(2)
    batch.add(0, 0)
    assert batch.active(1).tolist() == [2.0]
    batch.add(1, 1)
    assert batch.active(1).tolist() == [3.0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Rates(np.zeros((3, 4))),
        lambda: Rates(np.full((1, 1, 4), 1.5)),
        lambda: Rates(np.full((1, 1, 4), np.nan)),
        lambda: Rates(np.zeros((1, 1, 6))).open(4),
        lambda: Recorded([], 8),
        lambda: Recorded([np.zeros((0, 1, 2), np.uint8)], 8),
        lambda: Recorded([np.full((1, 1, 2), 8, np.uint8)], 8),
        lambda: Recorded([np.zeros((1, 1, 2), np.uint8)], 8).open(3),
        lambda: Rates(np.zeros((1, 2, 6))).open(Placement.linear(1, 6, 2)),
        lambda: Rates(np.zeros((1, 2, 6))).open(1).place(Placement.linear(2, 8, 2)),
    ],
)
def test_what_makes_no_sense_is_refused(make) -> None:
    with pytest.raises(ConfigError):
        make()
