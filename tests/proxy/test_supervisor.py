"""The parent of a router's processes: whatever becomes of them, it ends as it should, and so do they."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from eldr.proxy.processes import MOST_EARLY
from support.processes import children, live, running, waiting
from support.serving import serving
from support.waiting import HANG_S, until


@asynccontextmanager
async def script(text: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A supervisor whose processes do what a script says; it has said that it is up."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", text, stdout=pipe, stderr=pipe)
    assert process.stdout is not None
    try:
        assert await asyncio.wait_for(process.stdout.readline(), HANG_S) == b"up\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


STUBBORN = """
import signal, socket, time
from eldr.proxy.processes import Supervisor

def work(share):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    share.listening()
    print("up", flush=True)
    time.sleep(60)

Supervisor([socket.socket()], {}, work, patience_s=0.1).run()
"""


async def test_a_process_that_does_not_end_is_killed() -> None:
    async with script(STUBBORN) as process, asyncio.timeout(HANG_S):
        process.terminate()
        await process.communicate()
    assert process.returncode == 0


WITH_ORPHANS = """
import ctypes, os, socket, time
from eldr.proxy.processes import Supervisor

PR_SET_CHILD_SUBREAPER = 36  # orphans come to this process, as they do to the first of a container
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)

def work(share):
    share.listening()
    os.system("true &")
    print("up", flush=True)
    time.sleep(60)

Supervisor([socket.socket()], {}, work, patience_s=10).run()
"""


async def test_an_orphan_of_somebody_else_ends_nothing() -> None:
    async with script(WITH_ORPHANS) as process, asyncio.timeout(HANG_S):
        await until(lambda: not live(process.pid) or len(children(process)) == 1)
        process.terminate()
        _, errors = await process.communicate()
    assert (process.returncode, errors) == (0, b"")


DYING = """
import os, socket, time
from eldr.proxy import processes
from eldr.program import run

processes.PAUSE_S, processes.EARLY_S = 0.01, 60.0

def work(share):
    share.listening()
    if share.row == 1:
        os._exit(3)
    print("up", flush=True)
    time.sleep(60)

run(processes.Supervisor([socket.socket(), socket.socket()], {}, work, patience_s=10).run)
"""


async def test_a_process_that_dies_again_and_again_ends_the_router() -> None:
    async with script(DYING) as process, asyncio.timeout(HANG_S):
        _, errors = await process.communicate()
    assert process.returncode == 1
    lines = errors.decode().splitlines()
    assert len(lines) == MOST_EARLY + 1
    assert all(
        line.startswith("router process 1 (") and "died: exit status 3;" in line for line in lines[:-1]
    )
    assert re.fullmatch(
        r"eldr: router process 1 \(\d+\) died: exit status 3; 5 times in a row within 60 s of its start",
        lines[-1],
    )


async def test_a_first_process_that_is_killed_before_it_is_ready_is_told_of() -> None:
    async with serving(*waiting()) as process:
        await until(lambda: bool(children(process)))
        (child,) = children(process)
        os.kill(child, signal.SIGBUS)
        _, errors = await process.communicate()
    assert process.returncode == 1
    assert errors.decode().endswith("eldr: a router process ended before it was ready: SIGBUS\n")


async def test_the_log_tells_how_a_process_died() -> None:
    async with running() as s:
        child = min(s.children())
        os.kill(child, signal.SIGKILL)
        assert f"({child}) died: SIGKILL; starting another in its place" in await s.line("died")


async def test_processes_end_with_their_parent() -> None:
    async with running() as s:
        left = s.children()
        s.process.kill()
        await until(lambda: not any(map(live, left)))


async def test_a_process_that_waits_for_workers_ends_with_its_parent() -> None:
    async with serving(*waiting()) as process:
        await until(lambda: bool(children(process)))
        (child,) = children(process)
        process.kill()
        await until(lambda: not live(child))
