import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr.sim.segment import SteadySegment, SteppedSegment

times = st.floats(1e-5, 10)


@given(start=st.floats(0, 1e5), first=times, growth=st.floats(0, 1), steps=st.integers(1, 200))
def test_the_end_of_a_step_is_the_sum_of_steps_and_is_found_again(start, first, growth, steps) -> None:
    segment = SteadySegment(start, first, growth, 3.0, steps)
    total = start + sum(first + growth * n for n in range(steps))
    assert segment.end_s(steps) == pytest.approx(total)
    middle = (segment.end_s(steps) + segment.end_s(steps - 1)) / 2
    assert segment.step_at(middle) == steps
    assert segment.active_sum(steps) == pytest.approx(3.0 * steps)


def test_a_moment_between_steps_is_the_next_end() -> None:
    steady = SteadySegment(10.0, 1.0, 0.0, 1.0, 5)
    stepped = SteppedSegment(np.array([11.0, 12.0, 13.0, 14.0, 15.0]), np.arange(5.0))
    for segment in (steady, stepped):
        assert [segment.step_at(t) for t in (10.0, 10.5, 11.0, 11.1, 15.0)] == [1, 1, 1, 2, 5]
    assert stepped.end_s(2) == 12.0
    assert stepped.active_sum(3) == 3.0
