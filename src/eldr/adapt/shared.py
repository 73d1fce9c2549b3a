"""Learning for several router processes: the first learns from the requests of all, the others follow it.

Requests reach the first as datagrams, some of which are lost when it does not keep up. What it found lies in
a file (eldr.adapt.learned), with which a process that takes the place of a dead one begins.
"""

import asyncio
import errno
import logging
import pickle
import socket
from collections import deque
from contextlib import suppress
from pathlib import Path

from eldr.adapt.learned import FILE, Learned, told
from eldr.adapt.live import Learning, learning_for
from eldr.config import Config
from eldr.metrics.records import RequestRecord
from eldr.proxy.learner import Learner, Learners, Live
from eldr.types import ExpertCounts

log = logging.getLogger(__name__)

POLL_S = 0.5

AT_ONCE = 32
"""Datagrams read before requests have their turn again."""

MOST_UNSENT = 256
"""Requests that wait until the first has room: the kernel keeps ten datagrams."""


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
        loop = asyncio.get_running_loop()
        loop.add_reader(self._others, self._read)
        try:
            await self._learning.run(live)
        finally:
            loop.remove_reader(self._others)

    def _read(self) -> None:
        with suppress(BlockingIOError):
            for _ in range(AT_ONCE):
                record, counts, missed = pickle.loads(self._others.recv(1 << 20))
                if missed:
                    self._learning.missed()
                self._learning.saw(record, counts)


class _Follower:
    """Tells the first what it sees, and does what the first found."""

    def __init__(self, learning: Learning, first: socket.socket) -> None:
        self._learning, self._first = learning, first
        self._unsent: deque[tuple[RequestRecord, ExpertCounts | None]] = deque()
        self._missed = False

    def saw(self, record: RequestRecord, counts: ExpertCounts | None) -> None:
        if len(self._unsent) == MOST_UNSENT:
            self._unsent.popleft()
            self._missed = True
        self._unsent.append((record, counts))
        self._send()

    def _send(self) -> None:
        """Send what the first has room for. What is more than a datagram holds is left out."""
        with suppress(OSError):  # no room, or nobody there: later
            while self._unsent:
                data = pickle.dumps((*self._unsent[0], self._missed), pickle.HIGHEST_PROTOCOL)
                try:
                    self._first.send(data)
                    self._missed = False
                except OSError as error:
                    if error.errno != errno.EMSGSIZE:
                        raise
                    self._missed = True
                self._unsent.popleft()

    async def run(self, live: Live) -> None:
        assert live.folder is not None
        now, seen = self._learning.begin(live), 0
        while True:
            if (written := _written_ns(live.folder)) != seen:
                seen, now = written, self._followed(now, live, live.folder)
            self._send()
            await asyncio.sleep(POLL_S)

    def _followed(self, now: Learned, live: Live, folder: Path) -> Learned:
        """What the first found lately, put to use; `now` where that cannot be."""
        try:
            if (read := told(folder)) is None:
                return now
            new = read.sharing_profile(now)
            new.put_to_use(now, live, self._learning.seed)
        except Exception:  # whatever it is, it must not end the following
            log.exception("what the first process learned cannot be used; this one routes as before")
            return now
        return new


def _written_ns(folder: Path) -> int:
    """When something was written down last; 0 where nothing was."""
    try:
        return (folder / FILE).stat().st_mtime_ns
    except FileNotFoundError:
        return 0
