"""Learning for several router processes: the first learns from the requests of all, the others follow it.

Requests reach the first as datagrams, some of which are lost when it does not keep up. What it found lies in
a file (eldr.adapt.learned), with which a process that takes the place of a dead one begins.
"""

import asyncio
import logging
import pickle
import socket
from contextlib import suppress

from eldr.adapt.learned import FILE, told
from eldr.adapt.live import Learning, learning_for
from eldr.config import Config
from eldr.metrics.records import RequestRecord
from eldr.proxy.learner import Learner, Learners, Live
from eldr.types import ExpertCounts

log = logging.getLogger(__name__)

POLL_S = 0.5

AT_ONCE = 32
"""Datagrams read before requests have their turn again."""


def learners_for(config: Config) -> Learners | None:
    """What learns for a router of these settings, with one process or several; None where nothing does."""
    learning = learning_for(config)
    if learning is None:
        return None
    return SharedLearning(learning).of_process if config.processes > 1 else lambda _: learning


class SharedLearning:
    """Made before the processes are forked; each takes its learner from it."""

    def __init__(self, learning: Learning) -> None:
        self._learning = learning
        self._to_first, self._first = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._to_first.setblocking(False)
        self._first.setblocking(False)

    def of_process(self, row: int) -> Learner:
        """The learner of the process of a row."""
        if row == 0:
            return _First(self._learning, self._first)
        return _Follower(self._learning, self._to_first)


class _First:
    """Learns from its own requests and those of the others."""

    def __init__(self, learning: Learning, others: socket.socket) -> None:
        self._learning, self._others = learning, others
        self.saw = learning.saw

    async def run(self, live: Live) -> None:
        asyncio.get_running_loop().add_reader(self._others, self._read)
        await self._learning.run(live)

    def _read(self) -> None:
        with suppress(BlockingIOError):
            for _ in range(AT_ONCE):
                self._learning.saw(*pickle.loads(self._others.recv(1 << 20)))


class _Follower:
    """Tells the first what it sees, and does what the first found."""

    def __init__(self, learning: Learning, first: socket.socket) -> None:
        self._learning, self._first = learning, first

    def saw(self, record: RequestRecord, counts: ExpertCounts | None) -> None:
        with suppress(BlockingIOError, ConnectionError):  # it is busy, or begun again
            self._first.send(pickle.dumps((record, counts), pickle.HIGHEST_PROTOCOL))

    async def run(self, live: Live) -> None:
        assert live.folder is not None
        now, seen = self._learning.begin(live), None
        while True:
            with suppress(FileNotFoundError):
                written = (live.folder / FILE).stat().st_mtime_ns
                if written != seen and (new := told(live.folder)) is not None:
                    new.put_to_use(now, live, self._learning.seed)
                    now, seen = new, written
            await asyncio.sleep(POLL_S)
