"""The ledger: what is reserved is released once, by its amount; views are snapshots."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from eldr.errors import ConfigError, NoWorkerError, ProfileError
from eldr.policy import create_policy
from eldr.pool import Reservation, Worker, WorkerPool
from eldr.types import RoutingRequest
from support.pools import unit_rows


def pool_of(k: int) -> WorkerPool:
    return WorkerPool(worker(i) for i in range(k))


def worker(i: int) -> Worker:
    return Worker(f"w{i}", f"http://host:{8000 + i}")


def test_reserve_and_release() -> None:
    pool = pool_of(2)
    first, second = pool.reserve("w1", 100), pool.reserve("w1", 30.5)
    assert pool.view().in_flight.tolist() == [0, 2]
    assert pool.view().in_flight_tokens.tolist() == [0, 130.5]
    first.release()
    first.release()
    assert (pool.in_flight("w1"), pool.view().in_flight_tokens[1]) == (1, 30.5)
    second.release()
    assert (pool.in_flight("w1"), pool.view().in_flight_tokens[1]) == (0, 0)
    assert second.worker == pool["w1"]


def test_released_at_the_end_of_a_block_however_it_ends() -> None:
    pool = pool_of(1)
    with pytest.raises(NoWorkerError, match="1 in flight"), pool.reserve("w0", 5):
        raise NoWorkerError(f"{pool.in_flight('w0')} in flight")
    assert pool.in_flight("w0") == 0
    with pool.reserve("w0", 5) as reservation:
        reservation.release()
    assert pool.in_flight("w0") == 0


def test_a_view_is_a_read_only_snapshot() -> None:
    pool = pool_of(2)
    pool.set_centroids(unit_rows([[1, 0], [0, 1]]))
    view = pool.view()
    pool.reserve("w0", 7)
    pool.set_available("w1", False)
    pool.set_centroids(None)
    pool.remove("w0")
    assert view.worker_ids == ("w0", "w1")
    assert view.in_flight.tolist() == view.in_flight_tokens.tolist() == [0, 0]
    assert view.available.tolist() == view.has_centroid.tolist() == [True, True]
    assert view.centroids is not None
    for array in (view.in_flight, view.in_flight_tokens, view.available, view.centroids, view.has_centroid):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_removal_keeps_the_load_of_the_others_and_late_releases_are_harmless() -> None:
    pool = pool_of(3)
    gone, kept = pool.reserve("w0", 10), pool.reserve("w2", 20)
    pool.remove("w0")
    assert pool.view().worker_ids == ("w1", "w2")
    assert pool.view().in_flight.tolist() == [0, 1]
    pool.add(worker(0))
    gone.release()
    assert pool.view().in_flight.tolist() == [0, 1, 0]
    kept.release()
    assert pool.view().in_flight.tolist() == [0, 0, 0]
    assert "w0" in pool
    assert "w9" not in pool
    assert [w.id for w in pool.workers] == ["w1", "w2", "w0"]


def test_centroids_follow_their_workers() -> None:
    pool = pool_of(3)
    pool.set_centroids(unit_rows([[1, 0], [0, 1], [1, 1]]))
    pool.remove("w1")
    pool.add(worker(3))
    view = pool.view()
    assert view.centroids is not None
    assert np.allclose(view.centroids, unit_rows([[1, 0], [1, 1], [0, 0]]))
    assert view.has_centroid.tolist() == [True, True, False]
    pool.set_centroids(unit_rows([[0, 1]]), ["w3"])
    assert pool.view().has_centroid.tolist() == [False, False, True]
    pool.set_centroids(None)
    assert pool.view().centroids is None
    assert not pool.view().has_centroid.any()


def test_a_new_worker_gets_traffic_at_once() -> None:
    pool = pool_of(2)
    pool.set_centroids(unit_rows([[1, 0], [0, 1]]))
    pool.reserve("w0")
    pool.reserve("w1")
    pool.add(worker(2))
    policy = create_policy("locality_band", rng=np.random.default_rng(0))
    assert policy.select(RoutingRequest("r", unit_rows([1, 0])), pool.view()).worker_id == "w2"


@pytest.mark.parametrize("name", ["jsq", "locality_band"])
def test_eight_at_once_on_two_equal_workers_split_evenly(name: str) -> None:
    pool, policy = pool_of(2), create_policy(name, rng=np.random.default_rng(0))
    for _ in range(8):
        pool.reserve(policy.select(RoutingRequest("r"), pool.view()).worker_id)
    assert pool.view().in_flight.tolist() == [4, 4]


def test_what_is_refused() -> None:
    pool = pool_of(2)
    with pytest.raises(ConfigError, match="no worker 'w9' in the pool; it has w0, w1"):
        pool.reserve("w9")
    for twin in (Worker("w1", "http://new"), Worker("new", worker(0).url)):
        with pytest.raises(ConfigError, match="is there already"):
            pool.add(twin)
    with pytest.raises(ProfileError, match="3 centroids cannot serve 2 workers; fit with --workers 2"):
        pool.set_centroids(unit_rows(np.ones((3, 4))))


class Ledger(RuleBasedStateMachine):
    """Against a plain list of open reservations, in any order of reserving, releasing and removing."""

    reservations = Bundle("reservations")

    def __init__(self) -> None:
        super().__init__()
        self.pool = pool_of(3)
        self.open: list[Reservation] = []
        self.next = 3

    @rule(target=reservations, choice=st.integers(0, 10), tokens=st.floats(0, 1e6))
    def reserve(self, choice: int, tokens: float) -> Reservation | object:
        if not len(self.pool):
            return multiple()
        worker_id = self.pool.workers[choice % len(self.pool)].id
        self.open.append(self.pool.reserve(worker_id, tokens))
        return self.open[-1]

    @rule(reservation=reservations)
    def release(self, reservation: Reservation) -> None:
        reservation.release()
        self.open = [r for r in self.open if r is not reservation]

    @rule(reservation=consumes(reservations))
    def release_for_good(self, reservation: Reservation) -> None:
        self.release(reservation)

    @rule()
    def add(self) -> None:
        self.pool.add(worker(self.next))
        self.next += 1

    @rule(choice=st.integers(0, 10))
    def remove(self, choice: int) -> None:
        if len(self.pool):
            worker_id = self.pool.workers[choice % len(self.pool)].id
            self.pool.remove(worker_id)
            self.open = [r for r in self.open if r.worker.id != worker_id]

    @invariant()
    def load_is_the_sum_of_what_is_open(self) -> None:
        view = self.pool.view()
        for k, worker_id in enumerate(view.worker_ids):
            mine = [r.tokens for r in self.open if r.worker.id == worker_id]
            assert view.in_flight[k] == len(mine)
            assert view.in_flight_tokens[k] == pytest.approx(sum(mine), abs=1e-6)


TestLedger = Ledger.TestCase
TestLedger.settings = settings(max_examples=60, stateful_step_count=25)
