"""A small stand-in for a vLLM server: completions with expert choices in either form, made from the prompt's
text.
"""

import base64
import io
import json
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
from aiohttp import web
from aiohttp.test_utils import TestServer

from eldr.wire import encode_counts

LAYERS, EXPERTS, TOP_K = 3, 8, 2


def choices(text: str, tokens: int) -> np.ndarray:
    """Expert ids [tokens, LAYERS, TOP_K], the same for the same text; a token's experts differ."""
    rng = np.random.default_rng(zlib.crc32(text.encode()))
    scores = rng.random((tokens, LAYERS, EXPERTS))
    return np.argsort(scores, axis=2)[:, :, :TOP_K].astype(np.uint8)


def oracle_counts(ids: np.ndarray) -> np.ndarray:
    """Counts [LAYERS, EXPERTS], one token at a time."""
    counts = np.zeros((ids.shape[1], EXPERTS), dtype=np.uint32)
    for token in ids:
        for layer, experts in enumerate(token):
            for expert in experts:
                counts[layer, expert] += 1
    return counts


def npy_base64(array: np.ndarray) -> str:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return base64.b64encode(buffer.getbuffer()).decode()


class FakeEngine:
    """prompt tokens = characters; prompts that contain "BAD" are refused. requests: the bodies received."""

    def __init__(
        self, dense_layers: tuple[int, ...] = (), zero: bool = False, routed: bool = True, plugin: bool = True
    ) -> None:
        self.dense_layers, self.zero, self.routed, self.plugin = dense_layers, zero, routed, plugin
        self.requests: list[dict] = []
        self.break_after: int | None = None

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        if self.break_after is not None and len(self.requests) > self.break_after:
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        if "BAD" in body["prompt"]:
            return web.json_response({"error": {"message": "maximum context length is 16"}}, status=400)
        prompt, output = len(body["prompt"]), body["max_tokens"]
        choice: dict = {"text": "x" * output, "index": 0}
        answer: dict = {"choices": [choice], "usage": {"prompt_tokens": prompt, "completion_tokens": output}}
        if body.get("kv_transfer_params") == {"eldr": {"trace": True}} and self.plugin:
            answer["kv_transfer_params"] = self._trace(body["prompt"], prompt, output)
        elif self.routed:
            choice["routed_experts"] = npy_base64(self._stock_array(body["prompt"], prompt + output - 1))
        return web.json_response(answer)

    def _trace(self, text: str, prompt: int, output: int) -> dict:
        """As ELDR's connector sends it."""
        ids = choices(text, prompt + output - 1)
        parts = {"eldr": (ids[:prompt], prompt), "eldr_decode": (ids[prompt:], output - 1)}
        return {
            key: encode_counts(oracle_counts(part), top_k=TOP_K, tokens=tokens)
            for key, (part, tokens) in parts.items()
        }

    def _stock_array(self, text: str, rows: int) -> np.ndarray:
        """As stock vLLM sends it: rows for layers without experts too, all zero."""
        ids = choices(text, rows)
        for layer in self.dense_layers:
            ids = np.insert(ids, layer, 0, axis=1)
        return np.zeros_like(ids) if self.zero else ids

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_get("/v1/models", _models)
        async with TestServer(app) as server:
            yield str(server.make_url("")).rstrip("/")


async def _models(request: web.Request) -> web.Response:  # noqa: ARG001
    return web.Response(
        text=json.dumps({"data": [{"id": "fake-moe", "root": "/models/fake"}]}),
        content_type="application/json",
    )
