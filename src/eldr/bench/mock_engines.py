"""Engines that compute nothing and cost little, to measure what a router costs.

    python -m eldr.bench.mock_engines --prefill 2 --decode 4

One process, one port an engine. It prints the ports as a line of JSON, and ends with its standard input.
A prefill engine answers at once, with transfer parameters and, on its ports "counts", with expert counts. A
decode engine streams `max_tokens` chunks of one token; `seed` is the time between them in ms, since a router
passes that field on.
"""

import asyncio
import itertools
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import click
import msgspec
import numpy as np
import uvloop

from eldr.bench.decision import EXPERTS, LAYERS, PROMPT_TOKENS, TOP_K, draw_counts
from eldr.wire import encode_counts

MODEL = "mock"
DIFFERENT_COUNTS = 16
CHUNK = (
    b'data: {"id":"cmpl-4f3b0c2a9d8e4b7f","object":"text_completion","created":1767225600,"model":"mock",'
    b'"choices":[{"index":0,"text":" word","logprobs":null,"finish_reason":null,"stop_reason":null,'
    b'"token_ids":null}],"usage":null}\n\n'
)
DONE = b"data: [DONE]\n\n"
USAGE = (
    b'data: {"id":"cmpl-4f3b0c2a9d8e4b7f","object":"text_completion","created":1767225600,"model":"mock",'
    b'"choices":[],"usage":{"prompt_tokens":1000,"total_tokens":1001,"completion_tokens":1}}\n\n'
)
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
STREAM_END = b"0\r\n\r\n"
MODELS = (
    b'{"object":"list","data":[{"id":"mock","object":"model","created":1,"owned_by":"vllm","root":"mock"}]}'
)


class _Options(msgspec.Struct):
    usage: bool | None = msgspec.field(name="include_usage", default=None)


class _Body(msgspec.Struct):
    max_tokens: int = 1
    seed: int = 0
    stream: bool = False
    stream_options: _Options | None = None


def chunked(data: bytes) -> bytes:
    """One chunk of HTTP's chunked encoding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole(body: bytes) -> bytes:
    """An answer of status 200 with a JSON body."""
    head = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: application/json\r\ncontent-length: "
    return b"%b%d\r\n\r\n%b" % (head, len(body), body)


def prefill_answers(counts: bool) -> list[bytes]:
    """Answers of a prefill engine, to be given in turn."""
    rng = np.random.default_rng(0)
    answers = []
    for number in range(DIFFERENT_COUNTS if counts else 1):
        params: dict[str, Any] = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(number, number + PROMPT_TOKENS // 16))],
            "remote_engine_id": "3f0c4a8e-engine",
            "remote_request_id": f"cmpl-{number}",
            "remote_host": "127.0.0.1",
            "remote_port": 5600,
            "tp_size": 1,
        }
        if counts:
            params["eldr"] = encode_counts(draw_counts(rng), top_k=TOP_K, tokens=PROMPT_TOKENS)
        body = {
            "id": "cmpl-1",
            "object": "text_completion",
            "created": 1767225600,
            "model": MODEL,
            "choices": [{"index": 0, "text": " word", "logprobs": None, "finish_reason": "length"}],
            "usage": {"prompt_tokens": PROMPT_TOKENS, "total_tokens": 1001, "completion_tokens": 1},
            "kv_transfer_params": params,
        }
        answers.append(whole(msgspec.json.encode(body)))
    return answers


class Engine(asyncio.Protocol):
    """One connection to an engine: whole requests in, answers out. A decode engine's `prefilled` is None."""

    def __init__(self, prefilled: Callable[[], bytes] | None) -> None:
        self._prefilled = prefilled
        self._received = b""
        self._loop = asyncio.get_running_loop()
        self._tick: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if self._tick is not None:
            self._tick.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, rest = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        _, _, after = head.lower().partition(b"content-length:")
        length = int(after.partition(b"\r\n")[0] or 0)
        if len(rest) >= length:
            self._received = rest[length:]
            self._answer(head, rest[:length])

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"GET"):
            self._transport.write(whole(MODELS))
        elif self._prefilled is not None:
            self._transport.write(self._prefilled())
        else:
            asked = msgspec.json.decode(body or b"{}", type=_Body)
            self._transport.write(STREAM_HEAD)
            end = USAGE if asked.stream_options and asked.stream_options.usage else b""
            self._stream(asked.max_tokens, asked.seed / 1_000, chunked(end + DONE) + STREAM_END)

    def _stream(self, left: int, interval_s: float, end: bytes) -> None:
        self._transport.write(chunked(CHUNK) + (end if left == 1 else b""))
        if left > 1:
            again = partial(self._stream, left - 1, interval_s, end)
            self._tick = self._loop.call_later(interval_s, again)


async def serve(prefill: int, decode: int) -> None:
    """Listen, print the ports, and wait for the end of standard input."""
    loop = asyncio.get_running_loop()

    async def listen(number: int, prefilled: Callable[[], bytes] | None) -> list[int]:
        made = [
            await loop.create_server(partial(Engine, prefilled), "127.0.0.1", 0, backlog=1024)
            for _ in range(number)
        ]
        return [server.sockets[0].getsockname()[1] for server in made]

    plain, counted = (itertools.cycle(prefill_answers(counts)) for counts in (False, True))
    ports = {
        "prefill": await listen(prefill, partial(next, plain)),
        "counts": await listen(prefill, partial(next, counted)),
        "decode": await listen(decode, None),
    }
    print(json.dumps({**ports, "layers": LAYERS, "experts": EXPERTS}), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


@click.command()
@click.option("--prefill", default=2, show_default=True)
@click.option("--decode", default=4, show_default=True)
def main(prefill: int, decode: int) -> None:
    """Run mock engines until the end of standard input."""
    uvloop.run(serve(prefill, decode))


if __name__ == "__main__":
    main()
