"""`eldr serve --processes N`: one port, one ledger, one set of metrics, whichever process takes a request."""

import asyncio
import math
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from eldr.config import load_config
from eldr.errors import ConfigError
from eldr.metrics.decisions import read_decisions
from eldr.metrics.shared import FILE_BYTES
from eldr.proxy.processes import MOST_EARLY, part
from eldr.proxy.server import serve
from support.mock_engine import engines
from support.serving import ELDR, failure, free_port, serving, until_healthy, workers
from support.stack import Stack, right_text

BODY = {"prompt": "a law text", "max_tokens": 5}
AT_ONCE = "import eldr.proxy.processes as p; p.PAUSE_S = 0.1; from eldr.cli import main; main()"
"""A router that begins a process again at once where it died soon after its start."""


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.serving.ELDR", [sys.executable, "-c", AT_ONCE, "serve"])


@dataclass
class Running(Stack):
    """A router of several processes; each request has a connection, so any process may take it."""

    process: asyncio.subprocess.Process

    def children(self) -> set[int]:
        return children(self.process)

    async def line(self, text: str) -> str:
        """The next line of the log that holds this text."""
        assert self.process.stderr is not None
        async with asyncio.timeout(60):
            while text not in (line := (await self.process.stderr.readline()).decode()):
                assert line
        return line

    async def until(self, true: Callable[[], bool]) -> None:
        await until(true)


def children(parent: asyncio.subprocess.Process) -> set[int]:
    pid = parent.pid
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def live(pid: int) -> bool:
    return Path(f"/proc/{pid}/exe").exists()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@asynccontextmanager
async def running(*args: str, processes: int = 2) -> AsyncIterator[Running]:
    port = free_port()
    async with engines(3, {}) as made:
        flags = [*workers(made), "--policy", "jsq", "--port", str(port), "--processes", str(processes)]
        async with serving(*flags, *args) as process:
            await until_listening(process, processes)
            connector = aiohttp.TCPConnector(force_close=True, limit=0)
            async with aiohttp.ClientSession(
                connector=connector, timeout=aiohttp.ClientTimeout(total=60)
            ) as http:
                s = Running(
                    prefill=made[:1],
                    decode=made[1:],
                    url=f"http://127.0.0.1:{port}",
                    http=http,
                    app=web.Application(),  # the real ones are in other processes
                    process=process,
                )
                assert len(s.children()) == processes
                yield s


async def until_listening(process: asyncio.subprocess.Process, count: int) -> None:
    """Wait until so many processes have said that they take requests."""
    assert process.stderr is not None
    async with asyncio.timeout(60):
        while count:
            count -= b"listening on" in await process.stderr.readline()


def quick(folder: Path, settings: str = "") -> list[str]:
    """Flags for a router that checks its workers often, and has some more settings."""
    file = folder / "quick.yaml"
    file.write_text("health_interval_s: 0.2\n" + settings)
    return ["--config", str(file)]


async def test_eight_concurrent_requests_split_evenly_whichever_process_takes_them() -> None:
    async with running(processes=3) as s:
        for _ in range(5):
            until_all_run = asyncio.Event()
            for engine in s.decode:
                engine.peak, engine.faults.until = 0, until_all_run
            posts = [s.post(**{**BODY, "prompt": f"law {n}"}) for n in range(8)]
            requests = [asyncio.create_task(post) for post in posts]
            await s.until(lambda: sum(engine.running for engine in s.decode) == 8)
            until_all_run.set()
            replies = await asyncio.gather(*requests)
            assert [reply.status for reply in replies] == [200] * 8
            assert [engine.peak for engine in s.decode] == [4, 4]
        assert await s.metric("eldr_requests_total", outcome="ok") == 40
        assert await s.metric("eldr_time_to_first_token_seconds_count") == 0
        assert await s.metric("eldr_decision_seconds_count") == 40
        await s.settled()


async def test_a_killed_process_returns_what_it_held_and_is_replaced() -> None:
    async with running() as s:
        s.decode[0].faults.hang = s.decode[1].faults.hang = True
        requests = [asyncio.create_task(s.post(**BODY)) for _ in range(12)]
        await s.until(lambda: sum(engine.running for engine in s.decode) == 12)
        assert await s._in_flight() == 12
        before = s.children()
        os.kill(min(before), signal.SIGKILL)
        await s.until(lambda: any(request.done() for request in requests))
        await s.until(lambda: len(s.children()) == 2 and s.children() != before)
        held = sum(not request.done() for request in requests)
        async with asyncio.timeout(60):
            while await s._in_flight() != held:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        for engine in s.decode:
            engine.faults.hang = False
        await s.settled()
        replies = await asyncio.gather(*(s.post(**BODY) for _ in range(8)))
        assert [reply.json["choices"][0]["text"] for reply in replies] == [right_text(BODY, 5)] * 8


async def test_counts_go_on_after_a_process_was_replaced() -> None:
    async with running() as s:
        await asyncio.gather(*(s.post(**BODY) for _ in range(20)))
        before = s.children()
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        await s.until(lambda: len(s.children() - before) == 2)
        await s.post(**BODY)
        assert await s.metric("eldr_requests_total", outcome="ok") == 21


async def test_a_worker_that_one_process_finds_down_is_out_for_all(tmp_path: Path) -> None:
    async with running(*quick(tmp_path)) as s:
        await s.decode[0].stop()
        await s.post(**BODY)
        replies = await asyncio.gather(*(s.post(**BODY) for _ in range(8)))
        assert {reply.decode_worker for reply in replies} == {"d1"}
        assert [await s.metric("eldr_worker_up", worker="d0") for _ in range(6)] == [0] * 6
        await s.decode[0].start()
        async with asyncio.timeout(60):
            while await s.metric("eldr_worker_up", worker="d0") == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.1)


async def test_sigterm_drains_all_processes_and_ends_with_0(tmp_path: Path) -> None:
    async with running("--decision-log", str(tmp_path / "d.jsonl")) as s:
        for engine in s.decode:
            engine.faults.delay_s = 0.5
        requests = [asyncio.create_task(s.post(**BODY)) for _ in range(8)]
        await s.until(lambda: sum(engine.running for engine in s.decode) == 8)
        s.process.send_signal(signal.SIGTERM)
        assert [(await request).status for request in requests] == [200] * 8
        async with asyncio.timeout(60):
            assert await s.process.wait() == 0
        with pytest.raises(aiohttp.ClientConnectorError):
            await s.get("/health")
    names = sorted(os.listdir(tmp_path))
    assert names == ["d-0.jsonl", "d-1.jsonl"]
    assert sum(1 for name in names for _ in read_decisions(tmp_path / name)) == 8


@asynccontextmanager
async def script(text: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A supervisor whose processes do what a script says; it has said that it is up."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", text, stdout=pipe, stderr=pipe)
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"up\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()


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
    async with script(STUBBORN) as process, asyncio.timeout(20):
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
    async with script(WITH_ORPHANS) as process, asyncio.timeout(20):
        await until(lambda: not live(process.pid) or len(children(process)) == 1)
        process.terminate()
        _, errors = await process.communicate()
    assert (process.returncode, errors) == (0, b"")


DYING = """
import os, socket, time
from eldr.proxy import processes
from eldr.program import run

processes.PAUSE_S = 0.01

def work(share):
    share.listening()
    if share.row == 1:
        os._exit(3)
    print("up", flush=True)
    time.sleep(60)

run(processes.Supervisor([socket.socket(), socket.socket()], {}, work, patience_s=10).run)
"""


async def test_a_process_that_dies_again_and_again_ends_the_router() -> None:
    async with script(DYING) as process, asyncio.timeout(20):
        _, errors = await process.communicate()
    assert process.returncode == 1
    lines = errors.decode().splitlines()
    assert len(lines) == MOST_EARLY + 1
    assert all(
        line.startswith("router process 1 (") and "died: exit status 3;" in line for line in lines[:-1]
    )
    assert re.fullmatch(
        r"eldr: router process 1 \(\d+\) died: exit status 3; 5 times in a row within 5 s of its start",
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
        await s.until(lambda: not any(map(live, left)))


def waiting() -> list[str]:
    """Flags for a router of two processes that waits for workers."""
    urls = ["--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2"]
    return [*urls, "--port", "0", "--wait", "600", "--processes", "2"]


async def test_a_process_that_waits_for_workers_ends_with_its_parent() -> None:
    async with serving(*waiting()) as process:
        await until(lambda: bool(children(process)))
        (child,) = children(process)
        process.kill()
        await until(lambda: not live(child))


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[Path]]:
    """What is there, by pattern, of what the routers of a test put into TMPDIR."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return lambda pattern: list(tmp_path.glob(pattern))


async def test_a_folder_that_a_killed_router_left_is_removed_by_the_next_and_no_other(
    found: Callable[[str], list[Path]],
) -> None:
    async with running() as s:
        (old,) = found("*")
        left = s.children()
        s.process.kill()
        await s.until(lambda: not any(map(live, left)))
    async with running():
        (new,) = found("*")
        assert new != old
        async with running():
            assert new in found("*")
            assert len(found("*")) == 2


async def test_a_process_makes_the_folder_again_that_something_removed(
    found: Callable[[str], list[Path]],
) -> None:
    async with running() as s:
        (folder,) = found("*")
        shutil.rmtree(folder)
        for child in s.children():
            os.kill(child, signal.SIGKILL)
        for _ in range(2):
            await s.line("listening on")
        assert [(made, made.stat().st_mode & 0o777) for made in found("*")] == [(folder, 0o700)]
        await asyncio.gather(*(s.post(**BODY) for _ in range(8)))
        assert await s.metric("eldr_requests_total", outcome="ok") == 8


async def test_metrics_have_their_room_from_the_start(found: Callable[[str], list[Path]]) -> None:
    async with running() as s:
        await asyncio.gather(*(s.post(**BODY) for _ in range(8)))
        files = [file.stat() for file in found("*/*.db")]
    assert [file.st_size for file in files] == [FILE_BYTES] * 6
    assert all(file.st_blocks * 512 >= file.st_size for file in files)


async def test_no_room_for_metrics_is_one_line(found: Callable[[str], list[Path]], tmp_path: Path) -> None:
    command = shlex.join([*ELDR, *waiting()])
    process = await asyncio.create_subprocess_shell(
        f"ulimit -f 100; exec {command}", stderr=asyncio.subprocess.PIPE
    )
    try:
        _, errors = await asyncio.wait_for(process.communicate(), 30)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    folder = rf"{tmp_path}/eldr-metrics-\w+"
    expected = rf"eldr: cannot count metrics in {folder} \(from TMPDIR\): File too large\n"
    assert re.fullmatch(expected, errors.decode().splitlines(keepends=True)[-1])
    assert process.returncode == 1
    assert found("*") == []


async def test_what_keeps_it_from_starting_is_one_line() -> None:
    args = ["--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2", "--port", "0", "--wait", "0"]
    line = await failure(*args, "--processes", "2")
    assert line.startswith("eldr: no prefill worker is reachable: worker p0 (http://127.0.0.1:1)")


async def test_a_port_in_use() -> None:
    async with engines(1, {}) as (engine,):
        line = await failure(*workers([engine, engine]), "--port", str(engine.port), "--processes", "2")
    assert line == f"eldr: port {engine.port} on 127.0.0.1 is in use; choose another with --port"


async def test_the_admin_api_changes_all_processes_and_those_that_take_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELDR_ADMIN_KEY", "a-secret")
    port = free_port()
    admin, key = f"http://127.0.0.1:{port}/workers", {"Authorization": "Bearer a-secret"}
    async with running("--admin-port", str(port), *quick(tmp_path)) as s, engines(1, {}) as (new,):
        new.blocks = s.decode[0].blocks

        async def decode_workers() -> set[str]:
            """Decode workers that all processes know: each tells the gauges of its own."""
            seen = [
                re.findall(r'eldr_worker_up\{role="decode",worker="(.+?)"\} 1', await page())
                for _ in range(8)
            ]
            return set(seen[0]) if all(each == seen[0] for each in seen) else set()

        async def page() -> str:
            return (await s.get("/metrics")).text

        async def until_known(names: set[str]) -> None:
            async with asyncio.timeout(60):
                while await decode_workers() != names:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

        await until_known({"d0", "d1"})
        body = {"role": "decode", "url": new.url, "name": "new"}
        async with s.http.post(admin, json=body, headers=key) as answer:
            assert (answer.status, (await answer.json())["state"]) == (201, "up")
        async with s.http.post(f"{admin}/d0/drain", headers=key) as answer:
            assert answer.status == 202
        await until_known({"d1", "new"})
        replies = await asyncio.gather(*(s.post(**BODY) for _ in range(12)))
        assert {reply.decode_worker for reply in replies} == {"d1", "new"}

        before = s.children()
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        await s.until(lambda: len(s.children() - before) == 2)
        await until_healthy(s.url)
        await until_known({"d1", "new"})
        async with s.http.delete(f"{admin}/new", headers=key) as answer:
            assert answer.status == 204
        await until_known({"d1"})
        assert set(re.findall(r'role="decode",worker="(.+?)"', await page())) == {"d1"}
        s.process.kill()
        assert s.process.stderr is not None
        assert b"UserWarning" not in await s.process.stderr.read()


def test_processes_divide_the_limits_so_that_they_hold_together() -> None:
    assert [part(10, row, 4) for row in range(4)] == [3, 3, 2, 2]
    assert [part(1, row, 2) for row in range(2)] == [1, 0]
    assert sum(part(4096, row, 3) for row in range(3)) == 4096


async def test_no_more_requests_run_at_once_than_the_limit_of_all_processes(tmp_path: Path) -> None:
    limits = "limits: {in_flight: 4, queued: 0}\n"
    async with running(*quick(tmp_path, limits)) as s:
        for engine in s.decode:
            engine.faults.hang = True
        requests = [asyncio.create_task(s.post(**BODY)) for _ in range(40)]
        await s.until(lambda: sum(request.done() for request in requests) == 36)
        await s.until(lambda: sum(engine.running for engine in s.decode) == 4)
        assert {request.result().status for request in requests if request.done()} == {429}
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        await s.settled()


def test_fewer_requests_at_once_than_processes() -> None:
    urls = {"prefill": ["http://127.0.0.1:1"], "decode": ["http://127.0.0.1:2"]}
    config = load_config(None, {**urls, "processes": 4, "limits": {"in_flight": 3}})
    with pytest.raises(ConfigError, match=r"limits\.in_flight: 3 is less than one for each of 4 processes"):
        serve(config)


async def test_sighup_without_a_file_to_read_again_ends_nothing() -> None:
    async with running() as s:
        before = s.children()
        s.process.send_signal(signal.SIGHUP)
        await asyncio.sleep(0.3)
        assert s.children() == before
        assert (await s.post(**BODY)).status == 200


async def decoders(s: Running, domain: str) -> set[str | None]:
    """The workers that decode requests of a domain, whichever process takes them."""
    return {(await s.post(prompt=f"{domain} text", max_tokens=2)).decode_worker for _ in range(16)}


async def test_what_one_process_learned_all_of_them_route_by(tmp_path: Path) -> None:
    settings = "adapt: {interval_s: 0.5, share: 1.0, window_s: 1}\n"
    async with running("--policy", "locality_band", *quick(tmp_path, settings)) as s:
        async with asyncio.timeout(60):
            while not await s.metric("eldr_refits_total", result="used"):
                await asyncio.gather(
                    *(s.post(prompt=f"a {domain} text", max_tokens=2) for domain in ("law", "zh") * 16)
                )
                await asyncio.sleep(0.1)  # for the child that learns, which needs a core as well
        await asyncio.sleep(1)  # for the others to look at the file
        law, zh = [await decoders(s, domain) for domain in ("law", "zh")]
        assert len(law) == len(zh) == 1
        assert law != zh
        for child in s.children():
            os.kill(child, signal.SIGKILL)
        await s.until(lambda: len(s.children()) == 2)
        await asyncio.sleep(1)
        assert await decoders(s, "law") == law
        assert math.isnan(await s.metric("eldr_estimated_tpot_saving_ratio"))
