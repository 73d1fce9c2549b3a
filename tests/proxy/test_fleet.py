"""What a fleet makes of failures, and when a worker may be there again, on a clock of the test's."""

import numpy as np
import pytest

from eldr.clock import VirtualClock
from eldr.config import WorkerConfig
from eldr.errors import NoWorkerError
from eldr.metrics.prometheus import RouterMetrics
from eldr.policy import create_policy
from eldr.proxy.fleet import Fleet
from eldr.settings_fleet import BreakerConfig
from eldr.types import RoutingRequest

REQUEST = RoutingRequest(request_id="r")
CONFIG = BreakerConfig(failures=1, open_s=4.0, longest_open_s=30.0)


def fleet_of(*names: str, clock: VirtualClock) -> Fleet:
    workers = [WorkerConfig(name, f"http://{name}:1") for name in names]
    policy = create_policy("jsq", rng=np.random.default_rng(0))
    return Fleet("decode", workers, policy, RouterMetrics(), clock, CONFIG, check_interval_s=2.0)


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
