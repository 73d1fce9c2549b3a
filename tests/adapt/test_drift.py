"""Drift: seen when there is some, and not more often than stated when there is none."""

import numpy as np
import numpy.typing as npt
import pytest

from eldr.adapt import drift as module
from eldr.adapt.drift import changed, drift, settled
from eldr.types import Matrix

SHARES = [0.4, 0.3, 0.15, 0.1, 0.04, 0.01]
OTHERS = [0.1, 0.1, 0.1, 0.6, 0.05, 0.05]


def drawn(rng: np.random.Generator, shares: list[float], rows: int, run: int = 1) -> Matrix:
    """run: so many of one kind in a row."""
    kinds = np.repeat(rng.choice(len(shares), rows // run, p=shares), run)
    made = np.abs(np.eye(6)[kinds] + 0.4 * rng.normal(size=(rows, 6)))
    return (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize(("rows", "run"), [(200, 1), (1000, 1), (1000, 5)])
def test_false_alarms_are_at_most_as_often_as_stated(rows: int, run: int) -> None:
    """At a rate that can be measured: 3 of 60 expected at 0.05; more than 9 has a chance below 1 in 1,000."""
    rng = np.random.default_rng(1)
    values = [changed(drawn(rng, SHARES, rows, run), seed)[0] for seed in range(60)]
    assert sum(value < 0.05 for value in values) <= 9


@pytest.mark.parametrize("old", [150, 300, 850])
def test_a_mix_that_jumps_is_seen_wherever_it_does(old: int) -> None:
    rng = np.random.default_rng(0)
    p_value, row = changed(np.concatenate([drawn(rng, SHARES, old), drawn(rng, OTHERS, 1000 - old)]))
    assert p_value < module.FALSE_ALARMS
    assert abs(row - old) < 40


def times(rng: np.random.Generator, rows: int) -> npt.NDArray[np.float64]:
    return np.sort(rng.uniform(0, rows / 10, rows))


def test_drift_tells_from_when_on_requests_are_others() -> None:
    rng = np.random.default_rng(0)
    decided_s = times(rng, 600)
    signatures = np.concatenate([drawn(rng, SHARES, 400), drawn(rng, OTHERS, 200)])
    found = drift(signatures, decided_s, decided_s + rng.uniform(1, 5, 600))
    assert found.alarm
    assert found.since_s == pytest.approx(decided_s[400], abs=4)
    assert "differ from earlier ones" in str(found)


def test_lengths_that_go_with_subjects_are_not_taken_for_drift() -> None:
    """Kind 0 takes 40 s, the others 1 s, so of the last that were decided only the others have ended."""
    rng = np.random.default_rng(0)
    kinds, decided_s = rng.integers(0, 6, 1000), times(rng, 1000)
    finish_s = decided_s + np.where(kinds == 0, 40.0, 1.0)
    ended = finish_s < 100
    signatures = np.eye(6, dtype=np.float32)[kinds][ended]
    assert changed(signatures)[0] < module.FALSE_ALARMS  # by decision it would be
    assert drift(signatures, decided_s[ended], finish_s[ended]).p_value > 0.01


def test_what_ended_before_the_last_drift_is_left_out() -> None:
    rng = np.random.default_rng(0)
    decided_s = times(rng, 800)
    signatures = np.concatenate([drawn(rng, SHARES, 400), drawn(rng, OTHERS, 400)])
    assert drift(signatures, decided_s, decided_s + 1).alarm
    assert not drift(signatures, decided_s, decided_s + 1, after_s=decided_s[400] + 1).alarm


@pytest.mark.parametrize("rows", [199, 215])
def test_too_few_are_not_tested(rows: int) -> None:
    """Of 215 those that ended at first are left out, since others of their time had not."""
    rng = np.random.default_rng(0)
    decided_s = times(rng, rows)
    signatures = np.concatenate([drawn(rng, SHARES, 100), drawn(rng, OTHERS, rows - 100)])
    found = drift(signatures, decided_s, decided_s + np.resize([1.0, 5.0], rows))
    assert found.p_value == 1
    assert not found.alarm


def test_of_what_was_decided_lately_nearly_all_has_ended() -> None:
    decided_s = np.arange(100.0)
    assert settled(decided_s, decided_s + 10).tolist() == [True] * 100  # all took as long, and have ended
    finish_s = decided_s + np.resize([1.0, 10.0], 100)
    ended = finish_s < 99
    assert decided_s[ended][settled(decided_s[ended], finish_s[ended])].max() == 87
    assert settled(decided_s, decided_s + 1000 * (decided_s > 0)).sum() > 50  # the first half of the time


def test_nothing_is_settled_where_there_is_nothing() -> None:
    assert settled(np.zeros(0), np.zeros(0)).tolist() == []
