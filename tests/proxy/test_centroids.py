"""Which worker serves which centroid, as workers come and go."""

import numpy as np

from eldr.pool import Worker, WorkerPool
from eldr.proxy.centroids import CentroidSeats

ROWS = np.eye(3, dtype=np.float32)


class Seated:
    def __init__(self, *names: str) -> None:
        self.pool = WorkerPool(Worker(name, f"http://{name}") for name in names)
        self.seats = CentroidSeats(self.pool, ROWS)

    def join(self, name: str) -> None:
        self.pool.add(Worker(name, f"http://{name}"))
        self.seats.joined(name)

    def leave(self, name: str) -> None:
        self.pool.remove(name)
        self.seats.left(name)

    def rows(self) -> dict[str, int | None]:
        view = self.pool.view()
        assert view.centroids is not None
        return {
            name: int(view.centroids[index].argmax()) if view.has_centroid[index] else None
            for index, name in enumerate(view.worker_ids)
        }


def test_rows_go_by_order_and_one_too_many_has_none() -> None:
    seated = Seated("a", "b", "c")
    seated.join("d")
    assert seated.rows() == {"a": 0, "b": 1, "c": 2, "d": None}


def test_a_newcomer_takes_over_the_row_of_the_one_that_left() -> None:
    seated = Seated("a", "b", "c")
    seated.leave("b")
    assert seated.rows() == {"a": 0, "c": 2}
    seated.join("new")
    assert seated.rows() == {"a": 0, "c": 2, "new": 1}


def test_one_that_comes_back_has_its_own_row_if_it_is_free() -> None:
    seated = Seated("a", "b", "c")
    seated.leave("a")
    seated.leave("b")
    seated.join("b")
    assert seated.rows() == {"c": 2, "b": 1}
    seated.join("x")
    seated.join("a")
    assert seated.rows() == {"c": 2, "b": 1, "x": 0, "a": None}


def test_fewer_workers_than_rows_at_the_start() -> None:
    seated = Seated("a")
    seated.join("b")
    assert seated.rows() == {"a": 0, "b": 1}
    seated.leave("a")
    seated.leave("b")
    assert seated.rows() == {}
