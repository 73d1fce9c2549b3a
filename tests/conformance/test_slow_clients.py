"""A client that reads slowly makes its worker wait; it does not make the router hold its text."""

import asyncio
import json

from aiohttp import web

from support.stack import COMPLETIONS, stack
from support.waiting import HANG_S

EVENT = b'data: {"choices":[{"text":"' + b"x" * 4_000 + b'"}]}\n\n'


async def test_a_client_that_stalls_stops_its_worker_and_gets_everything_in_the_end() -> None:
    events, sent = 4_000, 0

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        await request.read()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for sent in range(1, events + 1):  # noqa: B007
            await response.write(EVENT)
        await response.write(b"data: [DONE]\n\n")
        return response

    async with stack(decode=1) as s:
        s.decode[0]._stream = lambda request, *_: flood(request)  # type: ignore[method-assign]
        host, port = s.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        body = json.dumps({"prompt": "hello", "max_tokens": 5, "stream": True}).encode()
        head = f"POST {COMPLETIONS} HTTP/1.0\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        before, same = 0, 0
        async with asyncio.timeout(HANG_S):
            while same < 30:
                await asyncio.sleep(0.01)
                before, same = sent, same + 1 if sent == before > 0 else 0
        assert sent < events, "the worker was never made to wait"
        answer = await reader.read(-1)
        assert answer.count(b"data: {") == events
        assert answer.endswith(b"data: [DONE]\n\n")
        writer.close()
        await s.settled()
