"""An engine for `make chaos`: streams text that only the right prompt gives, and fails on demand.

Its words are a function of the prompt. KV parameters work once, for the prompt that made them, while the
engine that made them lives: after its end they give an error, and a second time words of another text.
"""

import asyncio
import hashlib
import itertools
import json
import time
from typing import Any, Literal, Self

import numpy as np
from aiohttp import web

from eldr.types import ExpertCounts
from eldr.wire import encode_counts

LAYERS, EXPERTS, TOP_K = 2, 8, 2
CHUNK_S = 0.1
KILL_S = 0.01
"""For handlers whose connections are gone. aiohttp takes 0 to mean that there is no limit."""
_ids = itertools.count()

Mode = Literal["well", "slow", "hangs", "resets", "dies", "errors"]
FAULTY: tuple[Mode, ...] = ("slow", "hangs", "resets", "dies", "errors")
"""slow: each chunk takes longer. hangs: answers nothing. resets: closes a connection once it has
read a request. dies: closes it in the middle of a stream. errors: answers 500.
"""


def word(prompt: str, index: int) -> str:
    """The right word of a prompt's text."""
    return hashlib.sha256(f"{prompt}/{index}".encode()).hexdigest()[:6] + " "


def counts_of(domain: int, tokens: int = 8) -> ExpertCounts:
    """Counts of a prompt of one of four domains, which use two experts each."""
    counts = np.zeros((LAYERS, EXPERTS), np.uint32)
    counts[:, 2 * domain : 2 * domain + 2] = tokens
    return ExpertCounts(counts=counts, top_k=TOP_K, tokens=tokens, covered=tokens)


class ChaosEngine:
    """One engine on a port of 127.0.0.1, which stays its own when it is started again.

    blocks: what was prefilled and not yet pulled, shared by all engines.
    """

    def __init__(self, blocks: dict[str, str]) -> None:
        self.blocks = blocks
        self.running = 0
        self._mode: Mode = "well"
        self._well_since_s = time.monotonic()
        self.port = 0
        self._id = ""
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def alive(self) -> bool:
        return self._runner is not None

    @property
    def mode(self) -> Mode:
        """How it answers now. Set it to change that."""
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._mode, self._well_since_s = mode, time.monotonic()

    @property
    def well_s(self) -> float:
        """For how long it has answered as it should; 0 while it does not."""
        return time.monotonic() - self._well_since_s if self.alive and self._mode == "well" else 0.0

    async def start(self) -> Self:
        """Listen, as an engine of a new id that holds nothing."""
        self._id, self._well_since_s = f"engine{next(_ids)}", time.monotonic()
        app = web.Application(client_max_size=1 << 24)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._complete)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=KILL_S, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = runner.addresses[0][1]
        self._runner = runner
        return self

    async def kill(self) -> None:
        """Drop all connections and refuse new ones."""
        runner, self._runner = self._runner, None
        if runner is not None:
            for site in tuple(runner.sites):
                await site.stop()
            for connection in runner.server.connections if runner.server else ():
                if connection.transport is not None:
                    connection.transport.abort()
            await runner.cleanup()
        for key in [key for key in self.blocks if key.startswith(f"{self._id}/")]:
            del self.blocks[key]

    async def _health(self, _: web.Request) -> web.Response:
        if self.mode == "hangs":
            await asyncio.sleep(3600)
        return web.Response()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "chaos", "object": "model"}]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.running += 1
        try:
            return await self._answer(request, body)
        except ConnectionResetError:  # the router has left
            return web.Response()
        finally:
            self.running -= 1

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        text = self._text(body)
        if self.mode == "hangs":
            await asyncio.sleep(3600)
        if text is None or self.mode == "errors":
            return web.json_response({"error": {"message": "chaos", "code": 500}}, status=500)
        if self.mode == "resets":
            _abort(request)
            return web.Response()
        asked = body.get("kv_transfer_params") or {}
        if asked.get("do_remote_decode") or "eldr" in asked:
            return web.json_response(self._prefilled(body))
        return await self._stream(request, text, body["max_tokens"])

    def _text(self, body: dict[str, Any]) -> str | None:
        """What the words are made of: the prompt, unless its KV cache was pulled before; None: it is lost."""
        params = body.get("kv_transfer_params") or {}
        if not params.get("do_remote_prefill"):
            return str(body["prompt"])
        key = f"{params['remote_engine_id']}/{params['remote_request_id']}"
        held = self.blocks.get(key)
        if held is not None:
            self.blocks[key] = "nobody's"
        return held

    def _prefilled(self, body: dict[str, Any]) -> dict[str, Any]:
        request_id, prompt = str(next(_ids)), str(body["prompt"])
        self.blocks[f"{self._id}/{request_id}"] = prompt
        counts = counts_of(ord(prompt[0]) % (EXPERTS // TOP_K))
        params = {
            "do_remote_prefill": True,
            "remote_engine_id": self._id,
            "remote_request_id": request_id,
            "eldr": encode_counts(counts.counts, top_k=counts.top_k, tokens=counts.tokens),
        }
        usage = {"prompt_tokens": counts.tokens, "completion_tokens": 1}
        return {"choices": [{"index": 0, "text": "x"}], "usage": usage, "kv_transfer_params": params}

    async def _stream(self, request: web.Request, text: str, count: int) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for index in range(count):
            await asyncio.sleep(CHUNK_S * (5 if self.mode == "slow" else 1))
            if self.mode == "hangs":
                await asyncio.sleep(3600)
            if self.mode == "dies":
                _abort(request)
                return response
            choice = {"index": 0, "text": word(text, index), "finish_reason": None}
            await response.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
        usage = {"prompt_tokens": 8, "completion_tokens": count}
        await response.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
