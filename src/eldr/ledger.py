"""What is in flight on each worker of one role, in memory that several router processes can share.

One row a process, one column a worker. A process writes only its own row, and readers add the rows up, so
counts need no lock. Choosing a worker and counting the request on it must not be interrupted by another
process: that is what `exclusive` is for. Why this way: docs/adr/0007-shared-ledger.md.
"""

import fcntl
import hashlib
import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from eldr.errors import ConfigError

CAPACITY = 4096
"""Workers of one role, at most."""

PATIENCE_S = 0.25
"""How long a process waits for the others before it chooses by counts that may be a moment old."""

Slots = npt.NDArray[np.intp]

_ALONE = nullcontext()


class Ledger:
    """The ledger as the process that owns `row` uses it; by default there is only this process.

    `shared` makes one for several: before they are forked, since they inherit its memory and its lock.
    """

    def __init__(self, rows: int = 1, row: int = 0, memory: mmap.mmap | None = None, lock: int = -1) -> None:
        self._memory, self._lock, self._row = memory, lock, row
        self._patience_s = PATIENCE_S
        buffer, start = memory if memory is not None else bytearray(_bytes(rows)), 0
        self._columns = []
        for kind in ("i8", "f8", "f8", "?", "?", "?"):
            column = np.frombuffer(buffer, kind, rows * CAPACITY, start).reshape(rows, CAPACITY)
            self._columns.append(column)
            start += column.nbytes
        self._requests, self._tokens, self._shut_until_s, self._up, self._down, self._known = self._columns
        self._keys = np.frombuffer(buffer, "S16", CAPACITY, start)
        self._own_requests, self._own_tokens = self._requests[row], self._tokens[row]
        self.alone = rows == 1
        """Is there no other process?"""

    @classmethod
    def shared(cls, rows: int) -> "Ledger":
        """A ledger for `rows` processes that will be forked from this one. Its memory ends with the last."""
        lock, path = tempfile.mkstemp(prefix="eldr-lock-")
        os.unlink(path)
        return cls(rows, 0, mmap.mmap(-1, _bytes(rows)), lock)

    def of_process(self, row: int) -> "Ledger":
        """The same ledger as the process of another row uses it."""
        return Ledger(len(self._requests), row, self._memory, self._lock)

    def clear(self, row: int) -> None:
        """Give back all that a process held, once it is dead."""
        for column in self._columns:
            column[row] = 0

    def claim(self, name: str) -> int:
        """The slot of a worker, the same in all processes. Raises ConfigError when there is none left."""
        key = hashlib.blake2b(name.encode(errors="surrogateescape"), digest_size=8).hexdigest().encode()
        with self.exclusive():
            known = self._known.any(axis=0)
            places = np.flatnonzero(known & (self._keys == key))
            if not len(places):
                places = np.flatnonzero(~known)
            if not len(places):
                raise ConfigError(f"worker {name}: a router takes at most {CAPACITY} workers of a role")
            slot = int(places[0])
            self._keys[slot] = key
            self._known[self._row, slot] = 1
            return slot

    def give_up(self, slot: int) -> None:
        """Forget a worker in this process, with all that is in flight on it."""
        for column in self._columns:
            column[self._row, slot] = 0

    def add(self, slot: int, requests: int, tokens: float) -> None:
        """Change what this process has in flight on a worker."""
        left = self._own_requests[slot] + requests
        self._own_requests[slot] = left
        self._own_tokens[slot] = (
            self._own_tokens[slot] + tokens if left else 0.0
        )  # sums of fractions leave a rest

    def loads(self, slots: Slots) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Requests and tokens in flight on some workers, of all processes, in arrays of the caller's own."""
        if self.alone:
            return self._own_requests.take(slots), self._own_tokens.take(slots)
        return _sums(self._requests, slots), _sums(self._tokens, slots)

    def requests(self, slots: Slots) -> npt.NDArray[np.int64]:
        """Requests in flight on some workers, of all processes."""
        return _sums(self._requests, slots)

    def judge(self, slot: int, up: bool | None) -> None:
        """Say that a worker is up or down; None takes back what this process said."""
        self._up[self._row, slot], self._down[self._row, slot] = bool(up), up is not None and not up

    def available(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Workers that this process found up and no process finds down."""
        up: npt.NDArray[np.bool_] = self._up[self._row].take(slots)
        return up if self.alone else up & ~self._down.take(slots, axis=1).any(axis=0)

    def shut(self, slot: int, until_s: float) -> None:
        """Say until when (monotonic clock) a worker gets no requests, since they failed; 0: it does."""
        self._shut_until_s[self._row, slot] = until_s

    def shut_elsewhere(self, slots: Slots) -> npt.NDArray[np.float64] | None:
        """Until when other processes say so, 0 where none does; None where there is no other process."""
        if self.alone:
            return None
        said = self._shut_until_s.take(slots, axis=1)
        said[self._row] = 0.0
        latest: npt.NDArray[np.float64] = said.max(axis=0, initial=0.0)
        return latest

    def exclusive(self) -> AbstractContextManager[None]:
        """Keep other processes from choosing, at most as long as they have patience.

        The kernel frees the lock of a process that dies. One that was stopped while it held it delays the
        others once, and does not stop them: until it goes on they choose by counts that may be old.
        """
        return _ALONE if self._lock < 0 else self._locked()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        held = self._acquire()
        try:
            yield
        finally:
            if held:
                fcntl.lockf(self._lock, fcntl.LOCK_UN)

    def _acquire(self) -> bool:
        until_s = time.monotonic() + self._patience_s
        while True:
            try:
                fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._patience_s = PATIENCE_S
                return True
            except BlockingIOError:
                if time.monotonic() >= until_s:
                    self._patience_s = 0.0  # a wait for every choice would stop this process, too
                    return False
                time.sleep(20e-6)


def _bytes(rows: int) -> int:
    """Size of requests, tokens, times, verdicts and known workers of each process, and the workers' keys."""
    return CAPACITY * (rows * (8 + 8 + 8 + 1 + 1 + 1) + 16)


def _sums(column: npt.NDArray[Any], slots: Slots) -> npt.NDArray[Any]:
    """What all processes have at some slots."""
    total: npt.NDArray[Any] = column.take(slots, axis=1).sum(axis=0)
    return total
