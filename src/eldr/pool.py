"""The workers of one role and the ledger of what is in flight on each.

Used from one thread: an event loop or a simulation. No I/O. Several processes may share a ledger.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from eldr.errors import ConfigError, ProfileError
from eldr.ledger import Ledger, Slots
from eldr.types import Matrix, PoolView

Array = TypeVar("Array", bound=npt.NDArray[Any])


@dataclass(frozen=True, slots=True)
class Worker:
    """An engine: its name in metrics and decisions, and the base URL of its HTTP side.

    tls_name: the name that its certificate must have; None for the URL's host.
    """

    id: str
    url: str
    tls_name: str | None = None


@dataclass(slots=True, eq=False)
class _Seat:
    """Where a worker stands in the pool's order and in the ledger, until it is removed."""

    worker: Worker
    index: int
    slot: int
    removed: bool = False


class Reservation:
    """A request's share of a worker's load, given back exactly once.

    As a context manager it is released at the end of the block, however that ends.
    """

    __slots__ = ("_pool", "_seat", "tokens")

    def __init__(self, pool: "WorkerPool", seat: _Seat, tokens: float) -> None:
        self._pool: WorkerPool | None = pool
        self._seat = seat
        self.tokens = tokens

    @property
    def worker(self) -> Worker:
        return self._seat.worker

    def release(self) -> None:
        """Give back what was reserved; does nothing when called again, or once the worker was removed."""
        if self._pool is not None:
            self._pool._release(self._seat, self.tokens)
            self._pool = None

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class WorkerPool:
    """Workers in order of arrival. They may come and go; the indices of a view hold for that view.

    ledger: shared with the pools of other processes for the same role; None for one of its own. What is in
    flight is then what all of them have in flight, and a worker that one of them finds down is out for all.
    """

    def __init__(self, workers: Iterable[Worker] = (), ledger: Ledger | None = None) -> None:
        self._ledger = ledger or Ledger()
        self._seats: dict[str, _Seat] = {}
        self._ids: tuple[str, ...] = ()
        self._slots = np.zeros(0, np.intp)
        self._centroids: Matrix | None = None
        self._has_centroid = np.zeros(0, np.bool_)
        self._up: npt.NDArray[np.bool_] | None = None  # who may be chosen, while nobody else can change it
        for worker in workers:
            self.add(worker)

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, worker_id: object) -> bool:
        return worker_id in self._seats

    @property
    def workers(self) -> tuple[Worker, ...]:
        return tuple(seat.worker for seat in self._seats.values())

    def __getitem__(self, worker_id: str) -> Worker:
        """Return a worker; raises ConfigError for an unknown id."""
        return self._seat(worker_id).worker

    def view(self) -> PoolView:
        """Return a snapshot that later changes of the pool do not touch; its arrays are read-only."""
        in_flight, tokens = self._ledger.loads(self._slots)
        in_flight.setflags(write=False)
        tokens.setflags(write=False)
        return PoolView(
            worker_ids=self._ids,
            in_flight=in_flight,
            in_flight_tokens=tokens,
            available=self._available(),
            centroids=self._centroids,
            has_centroid=self._has_centroid,
        )

    def reserve(self, worker_id: str, tokens: float = 0.0) -> Reservation:
        """Count a request of `tokens` (prompt plus expected output) on a worker until it is released."""
        seat = self._seat(worker_id)
        self._ledger.add(seat.slot, 1, tokens)
        return Reservation(self, seat, tokens)

    def in_flight(self, worker_id: str) -> int:
        """Requests reserved on a worker and not yet released."""
        return int(self._ledger.requests(self._slot_of(worker_id))[0])

    def has_available(self) -> bool:
        """May any worker be chosen?"""
        return bool(self._available().any())

    def available(self, worker_id: str) -> bool:
        return bool(self._ledger.available(self._slot_of(worker_id))[0])

    def set_available(self, worker_id: str, available: bool | None) -> None:
        """Let policies choose a worker, or not: while it is down or draining.

        None is for one that this process has not checked yet: not for it, and no verdict for the others.
        """
        self._ledger.judge(self._seat(worker_id).slot, available)
        self._up = None

    def shut(self, worker_id: str, until_s: float) -> None:
        """Tell the other processes until when this one sends a worker nothing, since its requests failed."""
        self._ledger.shut(self._seat(worker_id).slot, until_s)

    def shut_elsewhere(self) -> dict[str, float]:
        """Until when other processes send some workers nothing: now or before, too."""
        if self._ledger.alone:
            return {}
        until_s = self._ledger.shut_elsewhere(self._slots)
        if until_s is None or not until_s.any():
            return {}
        return {self._ids[index]: float(until_s[index]) for index in np.flatnonzero(until_s)}

    def exclusive(self) -> AbstractContextManager[None]:
        """A block, as short as can be, in which no other process chooses and reserves."""
        return self._ledger.exclusive()

    def set_centroids(self, centroids: Matrix | None, worker_ids: Sequence[str] | None = None) -> None:
        """Give row i of `centroids` [n, D] to the i-th of `worker_ids` (None: the pool's order).

        Workers that are not named have none; None takes all away. Raises ProfileError when rows and workers
        differ in number, ConfigError for an unknown id.
        """
        ids = self._ids if worker_ids is None else tuple(worker_ids)
        if centroids is not None and (centroids.ndim != 2 or len(centroids) != len(ids)):
            raise ProfileError(
                f"{len(centroids)} centroids cannot serve {len(ids)} workers; fit with --workers {len(ids)}"
            )
        rows = [self._seat(worker_id).index for worker_id in ids]
        given = np.zeros(len(self), np.bool_)
        matrix = None
        if centroids is not None:
            matrix = np.zeros((len(self), centroids.shape[1]), np.float32)
            matrix[rows] = centroids
            given[rows] = True
        self._publish_centroids(matrix, given)

    def add(self, worker: Worker) -> None:
        """Append a worker, available, without a centroid; raises ConfigError when its id or URL is there."""
        for other in self.workers:
            if worker.id == other.id or worker.url == other.url:
                raise ConfigError(f"worker {worker.id} ({worker.url}) is there already; give each once")
        slot = self._ledger.claim(f"{worker.id} {worker.url}")
        self._seats[worker.id] = _Seat(worker, len(self), slot)
        self._ids += (worker.id,)
        self._slots = np.append(self._slots, slot)
        self._ledger.judge(slot, True)
        self._up = None
        matrix = None if self._centroids is None else np.pad(self._centroids, ((0, 1), (0, 0)))
        self._publish_centroids(matrix, np.append(self._has_centroid, False))

    def remove(self, worker_id: str) -> None:
        """Take a worker out; what is still reserved on it is forgotten, and may be released."""
        seat = self._seat(worker_id)
        del self._seats[worker_id]
        seat.removed = True
        for position, other in enumerate(self._seats.values()):
            other.index = position
        self._ids = tuple(self._seats)
        self._slots = np.delete(self._slots, seat.index)
        self._ledger.give_up(seat.slot)
        self._up = None
        matrix = None if self._centroids is None else np.delete(self._centroids, seat.index, axis=0)
        self._publish_centroids(matrix, np.delete(self._has_centroid, seat.index))

    def _available(self) -> npt.NDArray[np.bool_]:
        """Who may be chosen [K], read-only."""
        if self._up is None or not self._ledger.alone:
            self._up = _read_only(self._ledger.available(self._slots))
        return self._up

    def _seat(self, worker_id: str) -> _Seat:
        if worker_id not in self._seats:
            raise ConfigError(f"no worker {worker_id!r} in the pool; it has {', '.join(self._ids) or 'none'}")
        return self._seats[worker_id]

    def _slot_of(self, worker_id: str) -> Slots:
        return np.array([self._seat(worker_id).slot])

    def _publish_centroids(self, matrix: Matrix | None, given: npt.NDArray[np.bool_]) -> None:
        """Replace the arrays that views share, and never change them in place."""
        self._centroids = None if matrix is None else _read_only(matrix)
        self._has_centroid = _read_only(given)

    def _release(self, seat: _Seat, tokens: float) -> None:
        if not seat.removed:
            self._ledger.add(seat.slot, -1, -tokens)


def _read_only(array: Array) -> Array:
    array.setflags(write=False)
    return array
