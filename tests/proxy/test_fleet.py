"""What a fleet makes of failures, and when a worker may be there again, on a clock of the test's."""

import numpy as np
import pytest

from eldr.clock import VirtualClock
from eldr.config import WorkerConfig
from eldr.errors import NoWorkerError
from eldr.ledger import Ledger
from eldr.metrics.prometheus import RouterMetrics
from eldr.policy import create_policy
from eldr.proxy.fleet import Fleet
from eldr.settings_fleet import BreakerConfig
from eldr.types import RoutingRequest

REQUEST = RoutingRequest(request_id="r")
CONFIG = BreakerConfig(failures=1, open_s=4.0, longest_open_s=30.0)


def fleet_of(*names: str, clock: VirtualClock, ledger: Ledger | None = None) -> Fleet:
    workers = [WorkerConfig(name, f"http://{name}:1") for name in names]
    policy = create_policy("jsq", rng=np.random.default_rng(0))
    return Fleet("decode", workers, policy, RouterMetrics(), clock, CONFIG, ledger, check_interval_s=2.0)


def retry_after_s(fleet: Fleet) -> float | None:
    with pytest.raises(NoWorkerError) as caught:
        fleet.require_worker()
    return caught.value.retry_after_s


def test_a_connection_that_fails_late_takes_no_worker_out_that_has_come_back() -> None:
    clock = VirtualClock()
    fleet = fleet_of("d0", clock=clock)
    with fleet.take(REQUEST, 0.0) as slow, fleet.take(REQUEST, 0.0) as quick:
        fleet.refused(quick)
        assert not fleet.has_worker()
        clock.advance_to(4.0)
        fleet.mark("d0", up=True)
        fleet.reached("d0")
        fleet.refused(slow)
        assert fleet.has_worker()


def test_a_connection_that_fails_takes_no_other_worker_out_that_took_the_name() -> None:
    clock = VirtualClock()
    fleet = fleet_of("d0", clock=clock)
    with fleet.take(REQUEST, 0.0) as old:
        fleet.remove("d0")
        fleet.add(type(old.worker)("d0", "http://elsewhere:1"))
        fleet.mark("d0", up=True)
        fleet.refused(old)
    assert fleet.has_worker()


def test_it_is_told_to_come_again_when_the_first_breaker_lets_it() -> None:
    clock = VirtualClock()
    fleet = fleet_of("d0", "d1", clock=clock)
    for name in ("d0", "d1"):
        with fleet.take(REQUEST, 0.0) as attempt:
            assert attempt.worker.id == name
            attempt.failed()
        clock.advance_to(clock.now_s() + 1.0)
    assert retry_after_s(fleet) == 2.0  # of the 4 s of d0


def test_it_is_told_to_come_again_after_the_next_check_of_a_worker_that_is_down() -> None:
    clock = VirtualClock()
    fleet = fleet_of("d0", clock=clock)
    fleet.mark("d0", up=False)
    assert retry_after_s(fleet) == 2.0
    with pytest.raises(NoWorkerError) as caught:
        fleet_of(clock=clock).require_worker()
    assert caught.value.retry_after_s == 2.0


def test_a_worker_that_drains_is_nobody_to_wait_for() -> None:
    clock = VirtualClock()
    fleet = fleet_of("d0", "d1", clock=clock)
    with fleet.take(REQUEST, 0.0) as attempt:
        attempt.failed()
    fleet.set_draining("d1", True)
    assert retry_after_s(fleet) == 4.0


def test_a_worker_whose_requests_fail_in_one_process_is_out_in_all() -> None:
    clock, shared = VirtualClock(), Ledger.shared(2)
    first, second = (fleet_of("d0", clock=clock, ledger=shared.of_process(row)) for row in (0, 1))
    with first.take(REQUEST, 0.0) as attempt:
        attempt.failed()
    assert not second.has_worker()
    assert second.breaker_state("d0") == "open"
    clock.advance_to(4.0)
    assert (first.breaker_state("d0"), second.breaker_state("d0")) == ("half_open", "half_open")
    with second.take(REQUEST, 0.0) as trial:
        assert not second.has_worker()
        trial.answered(200)
        assert second.has_worker()
