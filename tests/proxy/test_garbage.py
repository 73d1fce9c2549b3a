"""A request leaves nothing to the garbage collector, which would stop all streams to look for it."""

import gc

import pytest

from support.raw import exchange, post
from support.stack import stack

PROMPT = {"prompt": "hello world", "max_tokens": 3}


@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_request_needed_is_gone_with_it(stream: bool) -> None:
    async with stack() as s:
        await exchange(s.url, post({**PROMPT, "stream": stream}))
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            await exchange(s.url, post({**PROMPT, "stream": stream}))
            await s.post(stream=stream, **PROMPT)
            await s.settled()
            gc.collect()
            kinds = {f"{type(found).__module__}.{type(found).__name__}" for found in gc.garbage}
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
        assert not {kind for kind in kinds if kind.startswith(("eldr.", "httptools."))}
