"""Waiting for what other tasks bring about. A busy machine may take long over it: only a hang should fail."""

import asyncio
import inspect
from collections.abc import Callable

from support.mock_engine import MockEngine

HANG_S = 60.0
"""What has not come by then never will."""


async def until(holds: Callable[[], object]) -> None:
    """Return once `holds()` is true, or what it awaits is."""
    async with asyncio.timeout(HANG_S):
        while True:
            value = holds()
            if await value if inspect.isawaitable(value) else value:
                return
            await asyncio.sleep(0.005)


async def until_running(*engines: MockEngine, count: int = 1) -> None:
    """Return once these engines work on so many requests in all."""
    await until(lambda: sum(engine.running for engine in engines) >= count)
