import pytest

from eldr.clock import Clock, MonotonicClock, VirtualClock


def test_monotonic_clock_does_not_go_back() -> None:
    clock: Clock = MonotonicClock()
    assert clock.now_s() <= clock.now_s()


def test_virtual_clock_moves_when_told() -> None:
    clock = VirtualClock(5.0)
    clock.advance_to(7.5)
    assert clock.now_s() == 7.5
    for past in (7.0, float("nan")):
        with pytest.raises(ValueError, match="cannot go back"):
            clock.advance_to(past)
