"""`eldr serve` as a process of its own."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import aiohttp

from eldr.bench.engine import free_port as free_port
from support.mock_engine import MockEngine
from support.waiting import HANG_S

ELDR = [sys.executable, "-c", "from eldr.cli import main; main()", "serve"]


@asynccontextmanager
async def serving(*args: str, program: Sequence[str] = ELDR) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(*program, *args, stderr=asyncio.subprocess.PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        process._transport.close()  # type: ignore[attr-defined] # children of it may still hold its pipe


async def line_of(process: asyncio.subprocess.Process, text: str) -> str:
    """The next line of a process's log that holds this text."""
    assert process.stderr is not None
    async with asyncio.timeout(HANG_S):
        while text not in (line := (await process.stderr.readline()).decode()):
            assert line
    return line


async def failure(*args: str) -> str:
    """The single line that a start ends with."""
    async with serving(*args) as process:
        _, stderr = await asyncio.wait_for(process.communicate(), HANG_S)
        assert process.returncode == 1, stderr
        lines = stderr.decode().splitlines()
        errors = [line for line in lines if line.startswith("eldr: ")]
        assert "Traceback" not in stderr.decode()
        assert lines[-1:] == errors
        return errors[0]


async def until_healthy(url: str) -> None:
    async with aiohttp.ClientSession() as http, asyncio.timeout(HANG_S):
        while True:
            try:
                async with http.get(url + "/health"):
                    return
            except aiohttp.ClientError:
                await asyncio.sleep(0.05)


async def until_refused(url: str) -> None:
    """Wait until nobody can connect any more, as at the begin of a drain."""
    async with asyncio.timeout(HANG_S):
        while True:
            async with aiohttp.ClientSession() as http:
                try:
                    async with http.get(url + "/health"):
                        pass
                except aiohttp.ClientConnectorError:
                    return
                except aiohttp.ClientError:
                    pass  # it was connected, and then dropped
            await asyncio.sleep(0.01)


def workers(engines: list[MockEngine]) -> list[str]:
    """`--prefill URL --decode URL URL`, as the README writes it."""
    return ["--prefill", engines[0].url, "--decode", *(engine.url for engine in engines[1:])]
