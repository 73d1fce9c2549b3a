"""Several router processes on one port: forked, watched, and begun again when they die.

They share the ledgers (eldr.ledger) and the files that their metrics are counted in. Each has a socket of its
own on the port (SO_REUSEPORT), so that the kernel spreads connections; the parent keeps all of them open, so
that connections to a process that died wait for the next one. docs/adr/0007-shared-ledger.md.
"""

import logging
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from eldr.errors import EldrError
from eldr.ledger import Ledger
from eldr.metrics.prometheus import count_in_files

log = logging.getLogger(__name__)

PAUSE_S = 1.0
"""Before a process that died within this time of its start is begun again."""

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class Share:
    """What one of several processes has of them all.

    row: its number, from 0, of so many `processes`. ledgers: by role. metrics: folder of the files that
    metrics are counted in. restarted: it takes the place of one that died. lifeline: readable once the
    parent is gone.
    """

    row: int
    processes: int
    listener: socket.socket
    ledgers: dict[str, Ledger]
    metrics: Path
    restarted: bool
    lifeline: int
    _ready: int

    def listening(self) -> None:
        """Tell the parent that this process takes requests."""
        with suppress(BrokenPipeError):
            os.write(self._ready, b"+")


def part(total: int, row: int, processes: int) -> int:
    """What the process of a row has of something that is for all of them; the parts make up the whole."""
    return total // processes + (row < total % processes)


Work = Callable[[Share], None]


class Supervisor:
    """Runs `work` in a process for each listener, until SIGTERM or SIGINT; the processes get these too.

    patience_s: after this long the processes that are still there are killed.
    """

    def __init__(
        self, listeners: Sequence[socket.socket], ledgers: dict[str, Ledger], work: Work, patience_s: float
    ) -> None:
        self._listeners, self._ledgers, self._work = listeners, ledgers, work
        self._patience_s = patience_s
        self._rows: dict[int, int] = {}
        self._began_s: dict[int, float] = {}
        self._stopping = False

    def run(self) -> None:
        """Return when all processes have ended. Raises EldrError when the first one could not start."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._stop)
        signal.signal(signal.SIGHUP, self._pass_on)
        signal.signal(signal.SIGALRM, self._give_up)
        lifeline, self._life = os.pipe()
        with tempfile.TemporaryDirectory(prefix="eldr-metrics-") as folder:
            self._metrics, self._lifeline = Path(folder), lifeline
            self._wait_until_ready(self._fork(0, restarted=False))
            for row in range(1, len(self._listeners)):
                os.close(self._fork(row, restarted=False))
            while self._rows:
                self._ended(os.wait()[0])

    def _ended(self, pid: int) -> None:
        row = self._rows.pop(pid)
        if self._stopping:
            return
        for ledger in self._ledgers.values():
            ledger.clear(row)
        log.error("router process %d (%d) died; starting another in its place", row, pid)
        if time.monotonic() - self._began_s[row] < PAUSE_S:
            time.sleep(PAUSE_S)
        if not self._stopping:
            os.close(self._fork(row, restarted=True))

    def _fork(self, row: int, *, restarted: bool) -> int:
        """Begin a process; return the end of a pipe that tells when it is ready, or why it is not."""
        read, write = os.pipe()
        self._began_s[row] = time.monotonic()
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # none may come before the child is known
        pid = os.fork()
        if pid == 0:
            os.close(read)
            self._child(row, write, restarted)
        self._rows[pid] = row
        os.close(write)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        if self._stopping:  # the signal came just before the fork, and this process was not among those told
            os.kill(pid, signal.SIGTERM)
        return read

    def _child(self, row: int, ready: int, restarted: bool) -> None:
        """Never returns: nothing that the parent would do at its end may happen here too."""
        status = 1
        try:
            for number in STOP_SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until it knows a file to read again, if ever
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
            os.close(self._life)
            for other in self._listeners:
                if other is not self._listeners[row]:
                    other.close()
            ledgers = {role: ledger.of_process(row) for role, ledger in self._ledgers.items()}
            count_in_files(self._metrics, row)
            listener = self._listeners[row]
            shared = ledgers, self._metrics, restarted, self._lifeline, ready
            self._work(Share(row, len(self._listeners), listener, *shared))
            status = 0
        except EldrError as error:
            if restarted:
                log.error("router process %d: %s", row, error)
            with suppress(BrokenPipeError):
                os.write(ready, str(error).encode())
        except BaseException:
            log.exception("router process %d failed", row)
        finally:
            sys.stderr.flush()
            os._exit(status)

    def _wait_until_ready(self, ready: int) -> None:
        answer = os.read(ready, 65536)
        os.close(ready)
        if answer != b"+" and not self._stopping:
            self._stop()
            raise EldrError(answer.decode() or "a router process ended before it was ready; see its log")

    def _stop(self, *_: object) -> None:
        """Let nobody connect any more, and end all processes, each of which drains."""
        self._stopping = True
        for listener in self._listeners:
            listener.close()
        self._pass_on(signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, self._patience_s)

    def _give_up(self, *_: object) -> None:
        log.error("%d router processes do not end; killing them", len(self._rows))
        self._pass_on(signal.SIGKILL)

    def _pass_on(self, number: int, *_: object) -> None:
        for pid in tuple(self._rows):
            os.kill(pid, number)
