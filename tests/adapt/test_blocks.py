"""Comparisons of two policies on the same requests, and their noise."""

import numpy as np
import pytest

from eldr.adapt.blocks import Change, mean_change, tail_change

BLOCKS, EACH = 10, 30
BLOCK = np.repeat(np.arange(BLOCKS), EACH)


def tpot(seed: int, scale: float = 1.0) -> np.ndarray:
    """Requests of a block share their luck."""
    rng = np.random.default_rng(seed)
    return scale * (0.01 + 0.0005 * rng.standard_normal(BLOCKS)[BLOCK] + 0.001 * rng.random(len(BLOCK)))


def test_the_ratio_is_that_of_the_means() -> None:
    new, old = tpot(0, 0.9), tpot(1)
    change = mean_change(new, old, BLOCK, 0.95)
    assert change.ratio == pytest.approx(new.mean() / old.mean() - 1)
    assert change.low < change.ratio < change.high
    assert change.below


def test_the_same_is_no_change() -> None:
    assert mean_change(tpot(0), tpot(0), BLOCK, 0.99) == Change(0.0, 0.0, 0.0)
    assert tail_change(tpot(0), tpot(0), BLOCK, 0.99, 0) == Change(0.0, 0.0, 0.0)


def test_an_interval_covers_as_often_as_its_level_says() -> None:
    missed = sum(
        change.below or change.above
        for change in (mean_change(tpot(2 * s), tpot(2 * s + 1), BLOCK, 0.95) for s in range(500))
    )
    assert 12 <= missed <= 40  # of 500 at 95 %


def test_blocks_that_count_as_fewer_make_the_interval_wider() -> None:
    one, four = (mean_change(tpot(0), tpot(1), BLOCK, 0.95, alike) for alike in (1.0, 4.0))
    assert four.ratio == one.ratio
    assert four.high - four.ratio == pytest.approx(2 * (one.high - one.ratio))


def test_blocks_without_a_request_are_left_out() -> None:
    some = BLOCK < 4
    change = mean_change(tpot(0)[some], tpot(1)[some], BLOCK[some] * 2, 0.95)
    assert change == mean_change(tpot(0)[some], tpot(1)[some], BLOCK[some], 0.95)


def test_a_longer_tail_of_few_requests_is_seen() -> None:
    new = tpot(0)
    new[::20] *= 1.5
    change = tail_change(new, tpot(0), BLOCK, 0.9, 0)
    assert change.above
    assert change.ratio == pytest.approx(0.5, abs=0.15)
    assert not mean_change(new, tpot(0), BLOCK, 0.9).ratio > 0.04
