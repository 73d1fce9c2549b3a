"""The circuit breaker as a state machine on a clock that the test moves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr.clock import VirtualClock
from eldr.proxy.breaker import Breaker
from eldr.settings_fleet import BreakerConfig

CONFIG = BreakerConfig(failures=3, open_s=1.0, longest_open_s=5.0, calm_s=60.0)


class Bench:
    """A breaker and its clock."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.breaker = Breaker(CONFIG, self.clock)

    def after(self, seconds: float) -> None:
        self.clock.advance_to(self.clock.now_s() + seconds)

    def request(self, ok: bool) -> None:
        generation = self.breaker.begin()
        if ok:
            self.breaker.answered(generation)
            self.breaker.succeeded(generation)
        else:
            self.breaker.failed(generation)
        self.breaker.end(generation)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_failures_in_a_row_open_it_and_a_whole_answer_between_them_does_not(bench: Bench) -> None:
    for ok in (False, False, True, False, False):
        bench.request(ok)
        assert bench.breaker.state == "closed"
    bench.request(False)
    assert bench.breaker.state == "open"
    assert not bench.breaker.allows()


def doubt(bench: Bench, count: int = 1) -> None:
    for _ in range(count):
        generation = bench.breaker.begin()
        bench.breaker.doubted(generation)
        bench.breaker.end(generation)


def test_transfers_that_fail_together_count_once_since_a_prefill_worker_may_have_died(bench: Bench) -> None:
    for _ in range(2):
        doubt(bench, 100)
        bench.after(1.0)
    assert bench.breaker.state == "closed"
    bench.breaker.answered(bench.breaker.begin())
    doubt(bench, 100)
    assert bench.breaker.state == "closed"


def test_transfers_that_fail_for_seconds_without_a_good_answer_open_it(bench: Bench) -> None:
    for _ in range(3):
        assert bench.breaker.state == "closed"
        doubt(bench, 2)
        bench.after(1.0)
    assert bench.breaker.generation == 1


def test_it_opens_with_that_of_another_process_and_closes_by_a_trial_of_its_own(bench: Bench) -> None:
    bench.after(10.0)
    assert not bench.breaker.follow(9.0)
    assert bench.breaker.follow(12.0)
    assert (bench.breaker.state, bench.breaker.shut_until_s) == ("open", 12.0)
    assert not bench.breaker.follow(12.0)
    bench.after(2.0)
    bench.breaker.reached()  # it was requests that failed
    assert bench.breaker.state == "half_open"
    bench.request(True)
    assert (bench.breaker.state, bench.breaker.shut_until_s) == ("closed", 0.0)


def test_one_that_checks_opened_is_no_news_to_other_processes_which_check_themselves(bench: Bench) -> None:
    bench.breaker.trip()
    assert bench.breaker.shut_until_s == 0.0


def test_a_beginning_answer_is_not_yet_a_whole_one(bench: Bench) -> None:
    for _ in range(3):  # a worker that dies in the middle of every stream
        generation = bench.breaker.begin()
        bench.breaker.answered(generation)
        bench.breaker.failed(generation)
        bench.breaker.end(generation)
    assert bench.breaker.state == "open"


def test_half_open_lets_one_request_through_at_a_time(bench: Bench) -> None:
    bench.breaker.trip()
    bench.after(1.0)
    assert bench.breaker.state == "half_open"
    first = bench.breaker.begin()
    assert not bench.breaker.allows()
    bench.breaker.end(first)  # its client left: no verdict
    assert bench.breaker.state == "half_open"
    assert bench.breaker.allows()


def test_a_trial_that_takes_longer_than_the_breaker_was_open_blocks_no_other(bench: Bench) -> None:
    bench.breaker.trip()
    bench.after(1.0)
    hanging = bench.breaker.begin()
    bench.after(0.9)
    assert not bench.breaker.allows()
    bench.after(0.1)
    assert bench.breaker.allows()
    second = bench.breaker.begin()
    assert not bench.breaker.allows()  # again for as long
    bench.breaker.answered(second)
    assert bench.breaker.state == "closed"
    bench.breaker.end(second)
    bench.breaker.end(hanging)
    assert bench.breaker.allows()


def test_a_good_answer_closes_it_on_probation(bench: Bench) -> None:
    bench.breaker.trip()
    bench.after(1.0)
    trial = bench.breaker.begin()
    bench.breaker.answered(trial)
    assert bench.breaker.state == "closed"
    bench.breaker.failed(trial)
    assert bench.breaker.state == "open"


def test_a_passed_check_closes_what_a_refused_connection_opened_once_its_time_is_over(bench: Bench) -> None:
    bench.breaker.trip()
    bench.breaker.reached()
    assert bench.breaker.state == "open"
    bench.after(1.0)
    bench.breaker.reached()
    assert bench.breaker.state == "closed"
    bench.request(False)  # it was on probation
    assert bench.breaker.state == "open"


def test_a_passed_check_says_nothing_of_a_worker_whose_requests_failed(bench: Bench) -> None:
    for _ in range(3):
        bench.request(False)
    bench.after(1.0)
    bench.breaker.reached()
    assert bench.breaker.state == "half_open"


def test_a_whole_answer_ends_the_probation(bench: Bench) -> None:
    bench.breaker.trip()
    bench.after(1.0)
    bench.request(True)
    bench.request(False)
    bench.request(False)
    assert bench.breaker.state == "closed"


def test_flapping_is_damped(bench: Bench) -> None:
    open_for = []
    for _ in range(5):
        bench.breaker.trip()
        open_for.append(bench.breaker.remaining_s)
        bench.after(bench.breaker.remaining_s)
        bench.request(True)
    assert open_for == [1, 2, 4, 5, 5]
    bench.after(61)
    bench.breaker.trip()
    assert bench.breaker.remaining_s == 1


def test_many_requests_that_die_at_once_are_one_opening(bench: Bench) -> None:
    running = [bench.breaker.begin() for _ in range(64)]
    for generation in running:
        bench.breaker.failed(generation)
        bench.breaker.end(generation)
    assert bench.breaker.remaining_s == 1


def test_verdicts_from_before_the_opening_are_ignored(bench: Bench) -> None:
    old = bench.breaker.begin()
    bench.breaker.trip()
    bench.after(1.0)
    bench.breaker.answered(old)
    bench.breaker.succeeded(old)
    assert bench.breaker.state == "half_open"
    trial = bench.breaker.begin()
    bench.breaker.end(old)
    assert not bench.breaker.allows()  # the trial still runs
    bench.breaker.answered(trial)
    bench.breaker.failed(old)
    assert bench.breaker.state == "closed"


def test_a_thousand_openings_do_not_overflow(bench: Bench) -> None:
    for _ in range(1100):
        bench.breaker.trip()
        bench.after(bench.breaker.remaining_s)
    assert bench.breaker.state == "half_open"


@given(
    st.lists(st.sampled_from(["begin", "answered", "succeeded", "failed", "end", "trip", "wait", "reached"]))
)
def test_it_never_stays_shut(events: list[str]) -> None:
    bench = Bench()
    running: list[int] = []
    for event in events:
        if event == "begin" and bench.breaker.allows():
            running.append(bench.breaker.begin())
        elif event in ("answered", "succeeded", "failed") and running:
            getattr(bench.breaker, event)(running[0])
        elif event == "end" and running:
            bench.breaker.end(running.pop(0))
        elif event in ("trip", "reached"):
            getattr(bench.breaker, event)()
        elif event == "wait":
            bench.after(1.5)
    for generation in running:
        bench.breaker.end(generation)
    bench.after(CONFIG.longest_open_s)
    assert bench.breaker.allows()
    bench.request(True)
    assert bench.breaker.state == "closed"
