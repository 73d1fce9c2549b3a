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
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from eldr.errors import EldrError
from eldr.ledger import Ledger
from eldr.metrics.shared import count_in_files
from eldr.proxy.shared_folder import hold, shared_folder

log = logging.getLogger(__name__)

EARLY_S = 5.0
"""A process that died within this time of its start may do so again."""

PAUSE_S = 1.0
"""Before such a process is begun again."""

MOST_EARLY = 5
"""So many early deaths in a row of one process end the router: another start of all may help."""

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
        self._early = [0] * len(listeners)
        self._failure: str | None = None
        self._stopping = False

    def run(self) -> None:
        """Return when all processes have ended.

        Raises EldrError when the first one could not start, or one died again and again.
        """
        for number in STOP_SIGNALS:
            signal.signal(number, self._stop)
        signal.signal(signal.SIGHUP, self._pass_on)
        signal.signal(signal.SIGALRM, self._give_up)
        lifeline, self._life = os.pipe()
        with shared_folder() as folder:
            self._metrics, self._lifeline = folder, lifeline
            self._wait_until_ready(self._fork(0, restarted=False))
            for row in range(1, len(self._listeners)):
                os.close(self._fork(row, restarted=False))
            while self._rows:
                self._ended(*os.wait())
        if self._failure is not None:
            raise EldrError(self._failure)

    def _ended(self, pid: int, status: int) -> None:
        row = self._rows.pop(pid, None)
        if row is None or self._stopping:  # None: the first process of a container gets everybody's orphans
            return
        for ledger in self._ledgers.values():
            ledger.clear(row)
        died = f"router process {row} ({pid}) died: {_how(status)}"
        early = time.monotonic() - self._began_s[row] < EARLY_S
        self._early[row] = self._early[row] + 1 if early else 0
        if self._early[row] == MOST_EARLY:
            self._failure = f"{died}; {MOST_EARLY} times in a row within {EARLY_S:g} s of its start"
            log.error("%s; stopping", self._failure)
            self._stop()
            return
        log.error("%s; starting another in its place", died)
        if early:
            time.sleep(PAUSE_S)
        self._begin_again(row)

    def _begin_again(self, row: int) -> None:
        """Begin a process in the place of another; the others serve while that cannot be done."""
        while not self._stopping:
            try:
                os.close(self._fork(row, restarted=True))
                return
            except EldrError as error:
                log.error("%s; trying again", error)
                time.sleep(PAUSE_S)

    def _fork(self, row: int, *, restarted: bool) -> int:
        """Begin a process; return the end of a pipe that tells when it is ready, or why it is not.

        Raises EldrError where the machine has no room for one.
        """
        self._began_s[row] = time.monotonic()
        try:
            read, write = os.pipe()
        except OSError as error:
            raise _no_room(row, error) from None
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # none may come before the child is known
        try:
            pid = os.fork()
            if pid == 0:
                os.close(read)
                self._child(row, write, restarted)
            self._rows[pid] = row
        except OSError as error:
            os.close(read)
            raise _no_room(row, error) from None
        finally:
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
            self._open_files(row)
            listener = self._listeners[row]
            shared = ledgers, self._metrics, restarted, self._lifeline, ready
            self._work(Share(row, len(self._listeners), listener, *shared))
            status = 0
        except EldrError as error:
            if restarted or row > 0:  # else the parent tells
                log.error("router process %d: %s", row, error)
            with suppress(BrokenPipeError):
                os.write(ready, str(error).encode())
        except BaseException:
            log.exception("router process %d failed", row)
        finally:
            sys.stderr.flush()
            os._exit(status)

    def _open_files(self, row: int) -> None:
        """Make the files that this process counts in, and their folder where something removed it."""
        try:
            hold(self._metrics)
            count_in_files(self._metrics, row)
        except OSError as error:
            reason = error.strerror or error
            raise EldrError(f"cannot count metrics in {self._metrics} (from TMPDIR): {reason}") from None

    def _wait_until_ready(self, ready: int) -> None:
        answer = os.read(ready, 65536)
        os.close(ready)
        if answer != b"+" and not self._stopping:
            (pid,) = self._rows
            _, status = os.waitpid(pid, 0)
            del self._rows[pid]
            raise EldrError(answer.decode() or f"a router process ended before it was ready: {_how(status)}")

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
            with suppress(ProcessLookupError):  # it was reaped, and the signal came just then
                os.kill(pid, number)


def _no_room(row: int, error: OSError) -> EldrError:
    return EldrError(f"cannot start router process {row}: {error.strerror}")


def _how(status: int) -> str:
    """How a process ended, of which os.wait tells this status."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exit status {code}"
    return next((known.name for known in signal.Signals if known == -code), f"signal {-code}")
