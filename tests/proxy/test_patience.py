"""How long the router waits for clients, on made-up transports."""

import asyncio
from typing import cast

from eldr.proxy.patience import StallWatch
from support.waiting import HANG_S

LIMIT_S = 0.01


class Unsent:
    """A transport that holds so many bytes at each look; the last number stays."""

    def __init__(self, *bytes_held: int) -> None:
        self.bytes_held = list(bytes_held)

    def get_write_buffer_size(self) -> int:
        return self.bytes_held.pop(0) if len(self.bytes_held) > 1 else self.bytes_held[0]


def watch(unsent: Unsent, stalled: asyncio.Event, limit_s: float = LIMIT_S) -> StallWatch:
    return StallWatch(cast(asyncio.WriteTransport, unsent), limit_s, stalled.set)


async def test_a_client_that_takes_a_little_within_each_limit_has_not_stalled() -> None:
    stalled, unsent = asyncio.Event(), Unsent(90, 70, 70, 50, 50, 49, 49, 49)
    watch(unsent, stalled).start()
    await asyncio.wait_for(stalled.wait(), HANG_S)
    assert unsent.bytes_held == [49], "it was given up before it took nothing for a whole limit"


async def test_a_watch_that_was_stopped_or_closed_calls_nobody() -> None:
    called, later = asyncio.Event(), asyncio.Event()
    stopped, closed = watch(Unsent(9), called), watch(Unsent(9), called)
    stopped.start()
    closed.start()
    stopped.stop()
    closed.close()
    watch(Unsent(9), later, 2 * LIMIT_S).start()
    await asyncio.wait_for(later.wait(), HANG_S)
    assert not called.is_set()
