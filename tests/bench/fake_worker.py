"""A streaming stand-in for a router: answers after `first_s`, then a token every `gap_s`."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.test_utils import TestServer


class FakeWorker:
    """Prompts that contain "REFUSE" get 503, "CUT" a stream without an end, "ERROR" an error event in the
    stream.

    hold: the first tokens are held back until so many requests are running.
    seen: (time, body, label header) of each request; most: the largest number of requests at once.
    written: when each token was.
    """

    def __init__(self, first_s: float = 0.0, gap_s: float = 0.0, hold: int = 0) -> None:
        self.first_s, self.gap_s, self.hold = first_s, gap_s, hold
        self.released = asyncio.Event()
        self.seen: list[tuple[float, dict, str | None]] = []
        self.written: list[float] = []
        self.running = self.most = 0

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append((asyncio.get_running_loop().time(), body, request.headers.get("x-eldr-label")))
        if "REFUSE" in body["prompt"]:
            return web.json_response({"error": {"message": "no worker"}}, status=503)
        self.running += 1
        self.most = max(self.most, self.running)
        if self.running >= self.hold:
            self.released.set()
        try:
            return await self._stream(request, body)
        finally:
            self.running -= 1

    async def _stream(self, request: web.Request, body: dict) -> web.StreamResponse:
        headers = {"content-type": "text/event-stream", "x-eldr-decode-worker": "d1", "x-eldr-policy": "jsq"}
        answer = web.StreamResponse(headers=headers)
        await answer.prepare(request)
        await self.released.wait()
        await asyncio.sleep(self.first_s)
        for number in range(body["max_tokens"]):
            # vLLM sends an event for every token, with an empty text while a character is incomplete.
            text = "" if number == 0 else f"{body['prompt'][:3]}{number} "
            self.written.append(asyncio.get_running_loop().time())
            await answer.write(event({"choices": [{"index": 0, "text": text}]}))
            await asyncio.sleep(self.gap_s)
        if "CUT" in body["prompt"]:
            return answer
        if "ERROR" in body["prompt"]:
            await answer.write(event({"error": {"message": "decode worker died"}}))
            return answer
        await answer.write(event({"choices": [], "usage": {"completion_tokens": body["max_tokens"]}}))
        await answer.write(b"data: [DONE]\n\n")
        return answer

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/completions", self.completions)]

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        app = web.Application()
        app.add_routes(self.routes())
        async with TestServer(app) as server:
            yield str(server.make_url("")).rstrip("/")


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"
