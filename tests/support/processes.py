"""Routers of several processes (`eldr serve --processes N`), before mock engines."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web

from support.mock_engine import engines
from support.serving import free_port, line_of, serving, workers
from support.stack import Stack
from support.waiting import HANG_S

BODY = {"prompt": "a law text", "max_tokens": 5}
AT_ONCE = "import eldr.proxy.processes as p; p.PAUSE_S = 0.1; from eldr.cli import main; main()"
"""A router that begins a process again at once where it died soon after its start."""


@dataclass
class Running(Stack):
    """A router of several processes; each request has a connection, so any process may take it."""

    process: asyncio.subprocess.Process

    def children(self) -> set[int]:
        return children(self.process)

    async def line(self, text: str) -> str:
        """The next line of the log that holds this text."""
        return await line_of(self.process, text)


@asynccontextmanager
async def running(*args: str, processes: int = 2) -> AsyncIterator[Running]:
    """Such a router, with all its processes ready, before one prefill and two decode workers."""
    port = free_port()
    async with engines(3, {}) as made:
        flags = [*workers(made), "--policy", "jsq", "--port", str(port), "--processes", str(processes)]
        async with serving(*flags, *args, program=[sys.executable, "-c", AT_ONCE, "serve"]) as process:
            for _ in range(processes):
                await line_of(process, "listening on")
            connector = aiohttp.TCPConnector(force_close=True, limit=0)
            async with aiohttp.ClientSession(
                connector=connector, timeout=aiohttp.ClientTimeout(total=HANG_S)
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


def children(parent: asyncio.subprocess.Process) -> set[int]:
    pid = parent.pid
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def live(pid: int) -> bool:
    return Path(f"/proc/{pid}/exe").exists()


def quick(folder: Path, settings: str = "") -> list[str]:
    """Flags for a router that checks its workers often, and has some more settings."""
    file = folder / "quick.yaml"
    file.write_text("health_interval_s: 0.2\n" + settings)
    return ["--config", str(file)]


def waiting() -> list[str]:
    """Flags for a router of two processes that waits for workers."""
    urls = ["--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2"]
    return [*urls, "--port", "0", "--wait", "600", "--processes", "2"]
