"""Any bytes at all from an engine: the client gets an answer or an error, and no 500 of the router's own."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httptools
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eldr.config import load_config
from eldr.policy import create_policy
from eldr.proxy.profiles import Profiles
from eldr.proxy.running import running_app
from fuzz.inputs import changed, request
from fuzz.live import Router, beside
from support.mock_engine import MockEngine
from support.raw import status_of
from support.stack import COMPLETIONS, served

A_FEW = settings(max_examples=settings.default.max_examples // 4)
CARDS = json.dumps({"object": "list", "data": [{"id": "mock"}]}).encode()
PARAMS = b'{"do_remote_prefill": true, "remote_host": "x"}'
PREFILLED = b'{"choices": [], "kv_transfer_params": %b, "usage": {"prompt_tokens": 3}}' % PARAMS
DECODED = b'{"choices": [{"text": "hello"}], "kv_transfer_params": {}, "usage": {"completion_tokens": 2}}'
EVENTS = [
    b'data: {"choices": [{"text": "a"}]}\n\n',
    b'data: {"choices": [{"text": "b"}], "usage": null}\n\n',
    b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}\n\n',
    b"data: [DONE]\n\n",
]
PIECES = [
    *(b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 204 X\r\n", b"HTTP/1.0 304 X\r\n"),
    *(b"HTTP/1.1 999 X\r\n", b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\n\r\n", b"HTTP/1.1 429 X\r\n"),
    *(b"Content-Length: 5\r\n", b"Content-Length: 0\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"),
    *(b"Content-Type: text/event-stream\r\n", b"Content-Type: \xff\r\n", b"Content-Encoding: gzip\r\n"),
    *(
        b"Connection: close\r\n",
        b"Set-Cookie: a=\x80\r\n",
        b"X-A: b\r\n c\r\n",
        b"Retry-After: 1\r\n",
        b"\r\n",
    ),
    *(b"5\r\nhello\r\n", b"0\r\n\r\n", b"ffffffffffffffff\r\n", b"hello", b"{}", b"null", *EVENTS),
    *(b'data: {"error": {"message": "x", "code": 400}}\n\n', b'{"error": {"code": "x"}}', b"\xff", b"\0"),
]


@dataclass
class EvilEngine:
    """Answers prefill and decode legs with these pieces, then ends the connection or says no more."""

    prefill: list[bytes] = field(default_factory=list)
    decode: list[bytes] = field(default_factory=list)
    closes: bool = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET"):
                    writer.write(whole(CARDS))
                    continue
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                body = json.loads(await reader.readexactly(length))
                asks = body.get("kv_transfer_params") or {}
                for piece in self.prefill if asks.get("do_remote_decode") else self.decode:
                    writer.write(piece)
                    await asyncio.sleep(0)  # in reads of their own, mostly
                if self.closes:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def whole(body: bytes, kind: bytes = b"application/json") -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"
    return head % (kind, len(body)) + body


def streamed(events: list[bytes]) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in [*events, b""])


@pytest.fixture(scope="module")
def evil() -> Iterator[tuple[EvilEngine, Router]]:
    with beside(_router()) as made:
        yield made


@asynccontextmanager
async def _router() -> AsyncIterator[tuple[EvilEngine, Router]]:
    """A router whose only worker is evil, and which trusts it after any number of failures."""
    engine = EvilEngine()
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    often = {"health_interval_s": 3600, "idle_timeout_s": 0.2, "breaker": {"failures": 1_000_000}}
    config = load_config(None, {"prefill": [url], "decode": [url], "retry": {"burst": 1_000_000}, **often})
    rng = np.random.default_rng(0)
    policies = create_policy("jsq", rng=rng), create_policy("jsq", rng=rng)
    async with running_app(config, Profiles(), lambda _: policies) as app, served(app, config) as router_url:
        yield engine, Router(int(router_url.rpartition(":")[2]), MockEngine({}))
    server.close()


class Reading:
    """Reads an answer as a client would. Raises httptools.HttpParserError for what is not HTTP."""

    def __init__(self, data: bytes) -> None:
        self.complete, self.body = False, b""
        parser = httptools.HttpResponseParser(self)
        parser.feed_data(data)
        self.until_close = b"ransfer-Encoding: chunked" not in data and b"ontent-Length:" not in data

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True


ANSWERS = st.lists(st.sampled_from(PIECES) | st.binary(max_size=12), max_size=12) | st.builds(
    lambda pieces: [b"HTTP/1.1 200 OK\r\n", *pieces], st.lists(st.sampled_from(PIECES), max_size=9)
)


@st.composite
def spoiled(draw: st.DrawFn, good: bytes) -> list[bytes]:
    """A good answer with a few changes, in pieces."""
    data = changed(draw, good, PIECES)
    at = draw(st.integers(0, len(data)))
    return [data[:at], data[at:]]


def check(evil: tuple[EvilEngine, Router], stream: bool) -> None:
    """What the client got is whole HTTP, and no fault of the router; the next request gets its answer."""
    engine, router = evil
    answer = router.send(request(COMPLETIONS, {"prompt": "x", "max_tokens": 2, "stream": stream}))
    assert b"got itself in trouble" not in answer
    assert 200 <= status_of(answer) <= 999, answer
    read = Reading(answer)
    assert read.complete or read.until_close or status_of(answer) in (204, 304), answer
    engine.prefill, engine.decode, engine.closes = [whole(PREFILLED)], [whole(DECODED)], False
    assert b"hello" in router.send(request(COMPLETIONS, {"prompt": "x"}))


@A_FEW
@given(ANSWERS | spoiled(whole(DECODED)) | spoiled(streamed(EVENTS)), st.booleans(), st.booleans())
def test_any_answer_to_a_decode_leg(
    evil: tuple[EvilEngine, Router], answer: list[bytes], closes: bool, stream: bool
) -> None:
    evil[0].prefill, evil[0].decode, evil[0].closes = [whole(PREFILLED)], answer, closes
    check(evil, stream)


@A_FEW
@given(ANSWERS | spoiled(whole(PREFILLED)), st.booleans())
def test_any_answer_to_a_prefill_leg(
    evil: tuple[EvilEngine, Router], answer: list[bytes], closes: bool
) -> None:
    evil[0].prefill, evil[0].decode, evil[0].closes = answer, [streamed(EVENTS)], closes
    check(evil, stream=True)


def cut(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """The data in pieces."""
    at = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    return [data[start:end] for start, end in zip([0, *at], [*at, len(data)], strict=True) if end > start]


@st.composite
def good_streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """The events of a stream, and an answer with them in any chunks, which come in any pieces."""
    texts = draw(st.lists(st.text(max_size=6) | st.just('"usage": [DONE] data: \\n\\n'), max_size=6))
    chunks = [{"choices": [{"text": text}], **draw(st.sampled_from([{}, {"usage": None}]))} for text in texts]
    events = b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks) + EVENTS[-1]
    return events, cut(draw, streamed(cut(draw, events)))


@A_FEW
@given(good_streams())
def test_a_good_stream_passes_however_it_is_cut(
    evil: tuple[EvilEngine, Router], stream: tuple[bytes, list[bytes]]
) -> None:
    events, answer = stream
    evil[0].prefill, evil[0].decode, evil[0].closes = [whole(PREFILLED)], answer, False
    read = Reading(evil[1].send(request(COMPLETIONS, {"prompt": "x", "stream": True})))
    assert read.complete
    assert read.body == events


def test_the_good_answers_are_good(evil: tuple[EvilEngine, Router]) -> None:
    engine, router = evil
    engine.prefill, engine.decode, engine.closes = [whole(PREFILLED)], [streamed(EVENTS)], False
    answer = router.send(request(COMPLETIONS, {"prompt": "x", "stream": True}))
    assert Reading(answer).body.endswith(b"data: [DONE]\n\n")
    check(evil, stream=False)
