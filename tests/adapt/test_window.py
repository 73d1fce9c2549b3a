"""What a router keeps of the requests that it served."""

from typing import Any

import numpy as np
import pytest

from adapt.seen import record
from eldr.adapt.window import GONE, Recorder, Sampler, Seen, Window
from eldr.types import ExpertCounts
from support.mock_engine import TOP_K, domain_counts

COUNTS = ExpertCounts(domain_counts("law", 20), TOP_K, 20, 20)


def served(recorder: Recorder, times: int, every_s: float, start_s: float = 0.0, **given: Any) -> None:
    for number in range(times):
        recorder.add(Seen.of(record(number, decided_s=start_s + number * every_s, **given), COUNTS))


def decided_s(recorder: Recorder) -> list[float]:
    return [one.record.decided_s or 0.0 for one in recorder.seen()]


def test_the_latest_are_kept() -> None:
    recorder = Recorder(10)
    served(recorder, 25, 1.0)
    assert decided_s(recorder) == [float(second) for second in range(15, 25)]


@pytest.mark.parametrize("given", [{"outcome": "broken"}, {"outcome": "cancelled"}])
def test_what_did_not_end_well_is_not_kept(given: dict[str, Any]) -> None:
    recorder = Recorder(10)
    served(recorder, 3, 1.0, **given)
    assert len(recorder) == 0


def test_a_sample_keeps_all_while_there_is_room_even_of_a_burst() -> None:
    sampler = Sampler(100, window_s=600)
    served(sampler, 100, 0.0)
    assert len(sampler) == 100


def test_a_sample_of_much_traffic_goes_back_for_the_window_and_is_even() -> None:
    sampler = Sampler(100, window_s=60)
    served(sampler, 20_000, 0.01)
    times = decided_s(sampler)
    assert 60 <= times[-1] - times[0] <= 130
    gaps = np.diff(times)
    assert gaps.max() <= 2 * gaps.min() + 1e-9


def test_a_sample_gets_denser_when_there_is_less_traffic() -> None:
    sampler = Sampler(100, window_s=60)
    served(sampler, 20_000, 0.01)
    served(sampler, 1000, 1.0, start_s=200)
    assert np.diff(decided_s(sampler)).max() <= 2.0


def test_a_sample_may_grow_and_shrink() -> None:
    sampler = Sampler(4, window_s=60)
    served(sampler, 4, 1.0)
    sampler.hold(8)
    assert (len(sampler), sampler.capacity) == (4, 8)
    sampler.hold(2)
    assert decided_s(sampler) == [2.0, 3.0]


def test_requests_without_counts_are_only_in_the_record_without_gaps() -> None:
    sampler, recorder = Sampler(10, 60), Recorder(10)
    for kept in (sampler, recorder):
        kept.add(Seen.of(record(0, decided_s=0.0), None))
    assert (len(sampler), len(recorder)) == (0, 1)


def test_what_is_stale_is_forgotten() -> None:
    recorder = Recorder(10)
    served(recorder, 10, 1.0)
    recorder.forget(7.0)
    assert decided_s(recorder) == [7.0, 8.0, 9.0]
    recorder.forget()
    assert len(recorder) == 0


def test_a_sample_keeps_all_again_once_it_forgot() -> None:
    sampler = Sampler(100, window_s=60)
    served(sampler, 2_000, 0.01)
    sampler.forget(19.0)
    few = len(sampler)
    served(sampler, 50, 0.01, start_s=20.0)
    assert len(sampler) == few + 50 < 100


def test_columns_are_in_order_of_decision_and_name_workers_by_number() -> None:
    recorder = Recorder(10)
    recorder.add(Seen.of(record(0, decided_s=2.0, worker="d1", output_tokens=1), COUNTS))
    recorder.add(Seen.of(record(1, decided_s=1.0, worker="gone", first_token_s=None), None))
    window = Window.of(recorder.seen(), ("d0", "d1"), (2, 8), TOP_K)
    assert window.worker.tolist() == [GONE, 1]
    assert window.counted.tolist() == [False, True]
    assert window.counts.dtype == np.uint16
    assert np.array_equal(window.counts[1], COUNTS.counts)
    assert np.isnan(window.tpot_s).all()  # no first token; one token
    assert window.decided_s.tolist() == [1.0, 2.0]


def test_counts_that_are_too_large_are_cut() -> None:
    many = ExpertCounts(domain_counts("law", 70_000), TOP_K, 70_000, 70_000)
    kept = Seen.of(record(0, decided_s=0.0), many).counts
    assert kept is not None
    assert kept.max() == 65_535
