"""The ledger between processes: counts add up, choosing is exclusive, the dead hold nothing."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from eldr import ledger as module
from eldr.errors import ConfigError
from eldr.ledger import CAPACITY, Ledger
from eldr.policy import create_policy
from eldr.pool import Worker, WorkerPool
from eldr.types import RoutingRequest

WORKERS = [Worker("d0", "http://h:1"), Worker("d1", "http://h:2")]


def forked(work: Callable[[], None]) -> int:
    """The id of a child that runs `work` and ends with status 0, or 1 after an error."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc(file=sys.stderr)
        os._exit(1)


@contextmanager
def child(work: Callable[[], None]) -> Iterator[int]:
    pid = forked(work)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def until(true: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 60
    while not true():
        assert time.monotonic() < until_s
        time.sleep(0.005)


def test_requests_of_processes_that_choose_at_once_split_evenly() -> None:
    """The race that one lock is for: each process sees what the others have just taken."""
    shared, n, rounds = Ledger.shared(5), 4, 50

    def work(row: int) -> None:
        pool, policy = (
            WorkerPool(WORKERS, shared.of_process(row)),
            create_policy("jsq", rng=np.random.default_rng(row)),
        )
        for number in range(rounds):
            with pool.exclusive():
                pool.reserve(policy.select(RoutingRequest(f"{row}/{number}"), pool.view()).worker_id, 1.5)
                load = pool.view().in_flight
                assert abs(int(load[0]) - int(load[1])) <= 1, load

    pids = [forked(lambda row=row: work(row)) for row in range(1, n + 1)]  # type: ignore[misc]
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * n
    view = WorkerPool(WORKERS, shared).view()
    assert view.in_flight.tolist() == [n * rounds / 2, n * rounds / 2]
    assert view.in_flight_tokens.sum() == 1.5 * n * rounds


def test_a_killed_process_returns_what_it_held_and_what_it_said() -> None:
    shared = Ledger.shared(2)
    pool = WorkerPool(WORKERS, shared)
    pool.reserve("d0", 10)

    def work() -> None:
        other = WorkerPool(WORKERS, shared.of_process(1))
        other.set_available("d1", False)
        other.reserve("d0", 5)
        time.sleep(60)

    with child(work):
        until(lambda: pool.in_flight("d0") == 2)
        assert pool.view().available.tolist() == [True, False]
        assert pool.view().in_flight_tokens.tolist() == [15, 0]
    shared.clear(1)
    assert pool.view().in_flight.tolist() == [1, 0]
    assert pool.view().in_flight_tokens.tolist() == [10, 0]
    assert pool.view().available.all()


def test_the_lock_of_a_killed_process_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Ledger.shared(2)
    pool = WorkerPool(WORKERS, shared)

    def work() -> None:
        with shared.of_process(1).exclusive():
            pool.reserve("d0")  # says, in the memory of both, that the lock is held
            time.sleep(60)

    with child(work):
        until(lambda: pool.in_flight("d0") == 1)
        assert not shared._acquire()
    waits: list[float] = []
    monkeypatch.setattr(module.time, "sleep", waits.append)
    with pool.exclusive():
        pass
    assert waits == []


def test_a_stopped_holder_delays_the_others_and_does_not_stop_them(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Ledger.shared(2)
    pool = WorkerPool(WORKERS, shared)

    def work() -> None:
        with shared.of_process(1).exclusive():
            pool.reserve("d0")
            os.kill(os.getpid(), signal.SIGSTOP)

    with child(work):
        until(lambda: pool.in_flight("d0") == 1)
        with pool.exclusive():
            pool.reserve("d1")
        waits: list[float] = []
        monkeypatch.setattr(module.time, "sleep", waits.append)
        for _ in range(10):
            with pool.exclusive():
                pass
        assert waits == []
    assert pool.view().in_flight.tolist() == [1, 1]


def test_workers_in_another_order_and_unknown_to_others_are_counted_right() -> None:
    shared = Ledger.shared(2)
    mine, other = WorkerPool(WORKERS, shared), WorkerPool(WORKERS[::-1], shared.of_process(1))
    other.add(Worker("new", "http://h:3"))
    other.reserve("d1")
    other.reserve("new")
    assert mine.view().in_flight.tolist() == [0, 1]
    mine.add(Worker("new", "http://h:3"))
    assert mine.view().in_flight.tolist() == [0, 1, 1]
    other.remove("new")
    assert mine.in_flight("new") == 0
    mine.remove("new")
    mine.add(Worker("new", "http://h:4"))  # another engine of that name, in the place that became free
    assert mine.in_flight("new") == 0


def test_what_one_shuts_the_others_know() -> None:
    shared = Ledger.shared(2)
    mine, other = WorkerPool(WORKERS, shared), WorkerPool(WORKERS, shared.of_process(1))
    other.shut("d1", 12.5)
    assert (mine.shut_elsewhere(), other.shut_elsewhere()) == ({"d1": 12.5}, {})
    shared.clear(1)
    assert mine.shut_elsewhere() == {}
    alone = WorkerPool(WORKERS)
    alone.shut("d1", 12.5)
    assert alone.shut_elsewhere() == {}


def test_one_that_was_not_checked_yet_is_out_here_and_no_verdict_for_others() -> None:
    shared = Ledger.shared(2)
    mine, other = WorkerPool(WORKERS, shared), WorkerPool(WORKERS, shared.of_process(1))
    other.set_available("d0", None)
    assert (mine.available("d0"), other.available("d0")) == (True, False)
    other.set_available("d0", True)
    assert (mine.available("d0"), other.available("d0")) == (True, True)
    other.set_available("d0", False)
    mine.set_available("d0", True)
    assert (mine.available("d0"), other.available("d0")) == (False, False)


def test_a_full_ledger() -> None:
    full = Ledger()
    slots = [full.claim(str(number)) for number in range(CAPACITY)]
    with pytest.raises(ConfigError, match=f"at most {CAPACITY} workers"):
        full.claim("one more")
    full.give_up(slots[7])
    assert full.claim("one more") == slots[7]
    assert full.requests(np.array(slots)).sum() == 0
