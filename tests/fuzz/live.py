"""A router that runs beside a test: in a thread with mock engines, or as two processes of `eldr serve`."""

import asyncio
import json
import socket
import threading
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import aiohttp
import yaml

from support.mock_engine import MockEngine, engines
from support.serving import ELDR, free_port, until_healthy
from support.stack import right_text, stack

T = TypeVar("T")
LIMITS = {"header_timeout_s": 0.5, "body_timeout_s": 0.5, "keep_alive_s": 0.25, "stall_timeout_s": 0.5}
BODY_LIMIT_BYTES = 10_000
LONGEST_S = 30.0
"""Nothing may take longer, on a machine that others keep busy: far above all limits of the router."""


@dataclass
class Router:
    """A router on a port of this machine, and the engine that prefills for it."""

    port: int
    prefill: MockEngine = field(repr=False)

    def send(self, data: bytes) -> bytes:
        """What comes back until the router closes; fails when it does not."""
        parts = []
        with socket.create_connection(("127.0.0.1", self.port), timeout=LONGEST_S) as connection:
            try:
                connection.sendall(data)
                while part := connection.recv(65536):
                    parts.append(part)
            except ConnectionError:
                pass  # the router closed before it had read all
        return b"".join(parts)

    def check_works(self) -> None:
        """Whole requests still get their own answers."""
        body = {"prompt": "still there?", "max_tokens": 3}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions", json.dumps(body).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=LONGEST_S) as answer:
            assert json.load(answer)["choices"][0]["text"] == right_text(body, 3)


@contextmanager
def beside(context: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """What an asynchronous context yields, while it runs in a thread with an event loop of its own."""
    made: list[tuple[T, asyncio.AbstractEventLoop]] = []
    ready, ended = threading.Event(), asyncio.Event()

    async def run() -> None:
        async with context as value:
            made.append((value, asyncio.get_running_loop()))
            ready.set()
            await ended.wait()

    def work() -> None:
        try:
            asyncio.run(run())
        finally:
            ready.set()

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait()
    assert made, "it did not start"
    (value, loop), *_ = made
    try:
        yield value
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(LONGEST_S)
        assert not thread.is_alive(), "something is still counted as in flight"


@asynccontextmanager
async def one_process() -> AsyncIterator[Router]:
    async with stack(limits=LIMITS, body_limit_bytes=BODY_LIMIT_BYTES) as made:
        yield Router(int(made.url.rpartition(":")[2]), made.prefill[0])
        await made.settled()


@asynccontextmanager
async def two_processes(folder: Path) -> AsyncIterator[Router]:
    """Fails at the end if one of them died, wrote a traceback, or still counts a request."""
    async with engines(3, {}) as made:
        urls = {"prefill": [made[0].url], "decode": [engine.url for engine in made[1:]]}
        settings = {"limits": LIMITS, "body_limit_bytes": BODY_LIMIT_BYTES, "port": free_port(), **urls}
        (folder / "eldr.yaml").write_text(yaml.safe_dump(settings))
        command = [*ELDR, "--config", str(folder / "eldr.yaml"), "--processes", "2"]
        with (folder / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(*command, stderr=log)
        try:
            url = f"http://127.0.0.1:{settings['port']}"
            await until_healthy(url)
            yield Router(int(url.rpartition(":")[2]), made[0])
            await _settled(url)
            process.terminate()
            assert await asyncio.wait_for(process.wait(), LONGEST_S) == 0
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
        log_text = (folder / "log").read_text(errors="replace")
        assert "died" not in log_text
        assert "Traceback" not in log_text


async def _settled(url: str) -> None:
    async with aiohttp.ClientSession() as http, asyncio.timeout(LONGEST_S):
        while True:
            async with http.get(url + "/metrics") as answer:
                lines = (await answer.text()).splitlines()
            if all(line.endswith(" 0.0") for line in lines if line.startswith("eldr_in_flight_requests{")):
                return
            await asyncio.sleep(0.05)
