"""Requests that the ledger does not know of, on a clock that the test moves."""

from eldr.clock import VirtualClock
from eldr.proxy.drift import HALF_LIFE_S, LoadDrift
from support.pools import pool_view


def test_it_is_added_and_fades_to_nothing() -> None:
    clock = VirtualClock()
    drift, view = LoadDrift(clock), pool_view([1, 0, 5])
    drift.note("w1", 8)
    seen = []
    for _ in range(6):
        seen.append(drift.corrected(view).in_flight.tolist())
        clock.advance_to(clock.now_s() + HALF_LIFE_S)
    assert [load[1] for load in seen] == [8, 4, 2, 1, 0, 0]
    assert all((load[0], load[2]) == (1, 5) for load in seen)
    assert drift.corrected(view) is view


def test_the_pools_own_view_is_not_touched() -> None:
    drift, view = LoadDrift(VirtualClock()), pool_view([1, 0])
    drift.note("w0", 3)
    corrected = drift.corrected(view)
    assert (view.in_flight.tolist(), corrected.in_flight.tolist()) == ([1, 0], [4, 0])
    assert not corrected.in_flight.flags.writeable


def test_less_than_the_ledger_is_no_drift_and_a_worker_that_left_is_forgotten() -> None:
    drift, view = LoadDrift(VirtualClock()), pool_view([1, 0])
    drift.note("w0", -2)
    drift.note("gone", 4)
    assert drift.corrected(view).in_flight.tolist() == [1, 0]
    drift.note("w0", 2)
    drift.forget("w0")
    assert drift.corrected(view).in_flight.tolist() == [1, 0]
