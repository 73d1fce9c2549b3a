"""An engine for the router's tests: speaks vLLM's HTTP, computes nothing, and fails in every way on demand.

Its text is a function of the prompt, so a test sees at once when KV of another request was read: transfer
parameters work once, for the prompt that made them, from the engine that holds them; else the text is WRONG.
"""

import asyncio
import hashlib
import itertools
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from aiohttp import web
from multidict import CIMultiDict

from eldr.wire import encode_counts
from support import mock_apis

LAYERS, EXPERTS, TOP_K = 2, 8, 2
DOMAINS = ("code", "law", "zh", "math")
WRONG = "WRONG"
GENERATING = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")
LOAD_FAILED = b'{"error":{"message":"KV load failed","type":"InternalServerError","code":500}}'
MOST = 10_000
"""Tokens, or sequences, of one request."""
_ids = itertools.count()


def domain_counts(domain: str, tokens: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Counts [2, 8] of a prompt that uses two experts of its domain in every layer."""
    counts = np.zeros((LAYERS, EXPERTS), np.uint32)
    counts[:, 2 * DOMAINS.index(domain) : 2 * DOMAINS.index(domain) + 2] = tokens
    return counts


def prompt_of(body: dict[str, Any]) -> str:
    """What the mock takes for the prompt's identity."""
    return json.dumps(body.get("messages", body.get("input", body.get("prompt"))))


def limit_of(body: dict[str, Any]) -> Any:
    """The output limit, in the order in which vLLM's APIs look for one."""
    fields = ("max_completion_tokens", "max_output_tokens", "max_tokens")
    return next((body[field] for field in fields if field in body), None)


def words(prompt: str, count: int) -> list[str]:
    """The right output for a prompt (see `prompt_of`)."""
    return [hashlib.sha256(f"{prompt}/{index}".encode()).hexdigest()[:6] + " " for index in range(count)]


@dataclass
class Faults:
    """What an engine does wrong, to every inference request until it is changed.

    status: (status, body, content type, only the next `times` requests).
    until: answer nothing before it is set; rest_until: of a stream, nothing behind a chunk with output.
    restarts: the next so many prefills are lost, as if the engine had restarted right after its answer.
    reset_before_answer: close the connection once the request was read.
    die_after_chunks: of a stream; end_early: end it cleanly but without [DONE]; die_after_done: behind it.
    """

    status: tuple[int, bytes, str] | None = None
    times: int = 1_000_000
    delay_s: float = 0.0
    until: asyncio.Event | None = None
    rest_until: asyncio.Event | None = None
    chunk_delay_s: float = 0.0
    reset_before_answer: bool = False
    die_after_chunks: int | None = None
    end_early: bool = False
    die_after_done: bool = False
    hang: bool = False
    restarts: int = 0
    error_event_at: int | None = None
    die_in_body: bool = False
    no_kv_params: bool = False
    no_counts: bool = False
    counts: Any = None


@dataclass
class Received:
    """One inference request as it arrived."""

    path: str
    body: dict[str, Any]
    raw: bytes
    headers: CIMultiDict[str]


@dataclass
class MockEngine:
    """One engine on a free port of 127.0.0.1. `blocks`, shared by all, holds what was prefilled.

    foreign: requests of others that its metrics tell of.
    big_words: characters that each word of a stream is longer. bytes_written: of streams.
    """

    blocks: dict[str, str]
    model: str = "mock"
    root: str = "mock"
    faults: Faults = field(default_factory=Faults)
    cached_tokens: int | None = None
    healthy: bool = True
    models_status: int = 200
    health_delay_s: float = 0.0
    foreign: int = 0
    received: list[Received] = field(default_factory=list)
    running: int = 0
    peak: int = 0
    cancelled: int = 0
    big_words: int = 0
    bytes_written: int = 0
    health_checks: int = 0
    port: int = 0
    tls: ssl.SSLContext | None = None
    _runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    async def start(self) -> Self:
        """Listen; on the same port as before after a `stop`."""
        self.engine_id = f"engine-{next(_ids)}"
        app = web.Application(client_max_size=1 << 30)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        for path in GENERATING:
            app.router.add_post(path, self._infer)
        for path in ("/v1/embeddings", "/tokenize", "/detokenize", "/v1/messages/count_tokens"):
            app.router.add_post(path, self._compute_only)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True, ssl_context=self.tls)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        return self

    async def stop(self) -> None:
        """Die: drop all connections; new ones are refused from now on."""
        runner, self._runner = self._runner, None
        if runner is not None:
            for site in tuple(runner.sites):
                await site.stop()
            for connection in runner.server.connections if runner.server else ():
                if connection.transport is not None:
                    connection.transport.abort()
            await runner.cleanup()

    async def _health(self, _: web.Request) -> web.Response:
        self.health_checks += 1
        await asyncio.sleep(self.health_delay_s)
        return web.Response(status=200 if self.healthy else 503)

    async def _metrics(self, _: web.Request) -> web.Response:
        load = {"running": self.running + self.foreign, "waiting": 0}
        lines = [f'vllm:num_requests_{what}{{model_name="{self.model}"}} {load[what]:.1f}' for what in load]
        return web.Response(text="# TYPE vllm:num_requests_running gauge\n" + "\n".join(lines) + "\n")

    async def _models(self, _: web.Request) -> web.Response:
        if self.models_status != 200:
            return web.Response(status=self.models_status)
        card = {"id": self.model, "object": "model", "created": 1, "owned_by": "vllm", "root": self.root}
        return web.json_response({"object": "list", "data": [card]})

    async def _infer(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = json.loads(raw)
        self.received.append(Received(request.path, body, raw, CIMultiDict(request.headers)))
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            return await self._answer(request, body)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            return _error(400, "a field is of the wrong type")  # as vLLM's validation would say
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def _compute_only(self, request: web.Request) -> web.Response:
        raw = await request.read()
        self.received.append(Received(request.path, json.loads(raw), raw, CIMultiDict(request.headers)))
        if self.faults.status:
            status, payload, kind = self.faults.status
            return web.Response(status=status, body=payload, headers={"Content-Type": kind})
        if request.path == "/v1/embeddings":
            vector = {"object": "embedding", "index": 0, "embedding": [0.25, -0.5]}
            used = {"prompt_tokens": 2, "total_tokens": 2}
            return web.json_response({"object": "list", "model": self.model, "data": [vector], "usage": used})
        return web.json_response({"path": request.path, "asked": json.loads(raw)})

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if field := _mistyped(body):
            return _error(400, f"{field} is of the wrong type or too large")
        text = self._compute(body)  # pulls the KV blocks, so that a failure after this has used them up
        await asyncio.sleep(self.faults.delay_s)
        if self.faults.until:
            await self.faults.until.wait()
        if self.faults.hang:
            await asyncio.sleep(3600)
        if self.faults.status and self.faults.times > 0:
            self.faults.times -= 1
            status, payload, kind = self.faults.status
            return web.Response(status=status, body=payload, headers={"Content-Type": kind})
        if self.faults.reset_before_answer:
            request.transport.abort()  # type: ignore[union-attr]
            return web.Response()
        if self.faults.die_in_body:
            return await self._half_a_body(request)
        if text is None:
            return web.Response(status=500, body=LOAD_FAILED, content_type="application/json")
        if refusal := _validate(body, self.model):
            return _error(*refusal)
        if body.get("stream"):
            return await self._stream(request, body, text)
        return web.json_response(self._whole(request, body, text))

    async def _half_a_body(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"id":')
        await asyncio.sleep(0.01)
        request.transport.abort()  # type: ignore[union-attr]
        return response

    def _compute(self, body: dict[str, Any]) -> list[str] | None:
        """The output's words: right only if the prompt was computed here or pulled with fresh parameters.

        None where the engine that held the blocks has restarted since: the transfer fails.
        """
        prompt, limit = prompt_of(body), limit_of(body) or 16
        params = body.get("kv_transfer_params") or {}
        if params.get("do_remote_prefill"):
            if params["remote_engine_id"] in self.blocks:
                return None
            held = self.blocks.pop(f"{params['remote_engine_id']}/{params['remote_request_id']}", None)
            if held != prompt:
                return [WRONG] * limit
        return words(prompt, limit)

    def _whole(self, request: web.Request, body: dict[str, Any], text: list[str]) -> dict[str, Any]:
        answer = mock_apis.whole(request.path, body, self.model, text, self._usage(request, body, len(text)))
        name = f"cmpl-{request.headers.get('X-Request-Id')}"
        return {**answer, "id": name, "kv_transfer_params": self._kv_params(body)}

    def _usage(self, request: web.Request, body: dict[str, Any], output: int) -> dict[str, Any]:
        sequences = (body.get("n") or 1) * (len(body["prompt"]) if _is_list(body.get("prompt")) else 1)
        prompt = len(prompt_of(body).split())
        return mock_apis.usage(request.path, prompt, output * sequences, self.cached_tokens)

    def _kv_params(self, body: dict[str, Any]) -> dict[str, Any] | None:
        asked = body.get("kv_transfer_params") or {}
        if not (asked.get("do_remote_decode") or "eldr" in asked):
            return None
        params: dict[str, Any] = {}
        if asked.get("do_remote_decode") and not self.faults.no_kv_params:
            request_id = f"r{next(_ids)}"
            self.blocks[f"{self.engine_id}/{request_id}"] = prompt_of(body)
            params = {
                "do_remote_prefill": True,
                "do_remote_decode": False,
                "remote_block_ids": [[1, 2]],
                "remote_engine_id": self.engine_id,
                "remote_request_id": request_id,
                "remote_host": "127.0.0.1",
                "remote_port": 5600,
                "tp_size": 1,
                "big_number": 12345678901234567890123,
            }
            if self.faults.restarts:
                self.faults.restarts -= 1
                self.blocks[self.engine_id] = "gone"
                self.engine_id = f"engine-{next(_ids)}"
        if self.faults.counts is not None:
            params["eldr"] = self.faults.counts
        elif not self.faults.no_counts:
            params["eldr"] = self._counts(prompt_of(body))
        return params or None

    def _counts(self, prompt: str) -> dict[str, Any]:
        domain = next((name for name in DOMAINS if name in prompt), DOMAINS[0])
        tokens = max(1, len(prompt.split()))
        return encode_counts(domain_counts(domain, tokens), top_k=TOP_K, tokens=tokens)

    async def _stream(
        self, request: web.Request, body: dict[str, Any], text: list[str]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        async for event in self._events(request, body, text):
            await response.write(event)
            self.bytes_written += len(event)
        if self.faults.die_after_done:
            request.transport.abort()  # type: ignore[union-attr]
            await asyncio.sleep(3600)
        await response.write_eof()
        return response

    async def _events(
        self, request: web.Request, body: dict[str, Any], text: list[str]
    ) -> AsyncIterator[bytes]:
        said, counts = 0, self._usage(request, body, len(text))
        text = [word + "x" * self.big_words for word in text]
        for output, event in mock_apis.events(request.path, body, self.model, text, counts):
            if output and said == self.faults.error_event_at:
                yield b"data: " + LOAD_FAILED + b"\n\n"
                yield b"data: [DONE]\n\n"
                return
            if output and said == self.faults.die_after_chunks:
                request.transport.abort()  # type: ignore[union-attr]
                await asyncio.sleep(3600)  # the handler is cancelled with its connection
            if self.faults.end_early and said == len(text) and not output:
                return
            yield event
            said += output
            await asyncio.sleep(self.faults.chunk_delay_s if output else 0)
            if output and self.faults.rest_until:
                await self.faults.rest_until.wait()


def _mistyped(body: dict[str, Any]) -> str | None:
    """A field that vLLM would refuse before it computes anything, or that would keep a mock busy for ever."""
    kinds: dict[str, Any] = {"stream_options": dict, "n": int, "stop": str | list, "kv_transfer_params": dict}
    for name, kind in kinds.items():
        if body.get(name) is not None and not isinstance(body[name], kind):
            return name
    numbers = {"n": body.get("n"), "max_tokens": limit_of(body)}
    return next((name for name, n in numbers.items() if isinstance(n, int) and n > MOST), None)


def _validate(body: dict[str, Any], model: str) -> tuple[int, str] | None:
    """The refusals of vLLM that a router can cause."""
    limit = limit_of(body)
    if body.get("model", model) != model:
        return 404, f"The model `{body['model']}` does not exist."
    if limit is not None and type(limit) is not int:
        return 400, "max_tokens must be an integer"
    if limit is not None and limit < 1:
        return 400, f"max_tokens must be at least 1, got {limit}"
    if (body.get("min_tokens") or 0) > (limit or 16):
        return 400, "min_tokens must be less than or equal to max_tokens"
    if body.get("stream_options") and not body.get("stream"):
        return 400, "Stream options can only be defined when `stream=True`."
    return None


def _error(status: int, message: str) -> web.Response:
    kind = "NotFoundError" if status == 404 else "BadRequestError"
    error = {"message": message, "type": kind, "param": None, "code": status}
    return web.json_response({"error": error}, status=status)


def _is_list(prompt: object) -> bool:
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], str | list)


@asynccontextmanager
async def engines(count: int, blocks: dict[str, str], **options: Any) -> AsyncIterator[list[MockEngine]]:
    """Some running engines, stopped at the end."""
    made = [await MockEngine(blocks, **options).start() for _ in range(count)]
    try:
        yield made
    finally:
        for engine in made:
            await engine.stop()
