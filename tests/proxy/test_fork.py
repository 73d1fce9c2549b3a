"""What the parent of router processes does where the machine has no room for one more."""

import errno
import os
import signal
import socket
from collections.abc import Iterator

import pytest

from eldr.errors import EldrError
from eldr.proxy import processes
from eldr.proxy.processes import STOP_SIGNALS, Supervisor

NOBODY = 1 << 30
"""A process id that no process has."""


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    monkeypatch.setattr(processes, "PAUSE_S", 0.0)
    with socket.socket() as listener:
        yield Supervisor([listener], {}, lambda _: None, 1.0)


def forks(monkeypatch: pytest.MonkeyPatch, failures: int) -> list[int]:
    """Let the first forks fail; returns the pipes that were there at each."""
    seen: list[int] = []

    def fork() -> int:
        seen.append(len(os.listdir("/proc/self/fd")))
        if len(seen) <= failures:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return NOBODY

    monkeypatch.setattr(processes.os, "fork", fork)
    return seen


def blocked() -> set[int]:
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, [])) & set(STOP_SIGNALS)


def test_a_process_that_cannot_be_begun_is_tried_again(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen = forks(monkeypatch, failures=3)
    supervisor._begin_again(0)
    assert supervisor._rows == {NOBODY: 0}
    assert len(seen) == 4
    assert len(set(seen)) == 1  # no pipe of a failed one is left
    assert caplog.text.count("cannot start router process 0: Resource temporarily unavailable") == 3
    assert not blocked()


def test_at_the_start_it_is_said_in_one_line(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    forks(monkeypatch, failures=1)
    with pytest.raises(EldrError, match="cannot start router process 0: Resource temporarily unavailable"):
        supervisor._fork(0, restarted=False)
    assert not blocked()
