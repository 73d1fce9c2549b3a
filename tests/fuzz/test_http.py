"""Any bytes at all from a client: the router answers or closes in time, never with a 500, and works on."""

import asyncio
import json
import socket
import threading
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.raw import status_of
from support.stack import Stack, right_text, stack

LIMITS = {"header_timeout_s": 0.2, "body_timeout_s": 0.2, "keep_alive_s": 0.2, "stall_timeout_s": 0.5}
LONGEST_S = 5.0
A_FEW = settings(max_examples=settings.default.max_examples // 4)
"""Of the examples of the other tests, since the router may take a while to turn a request away."""
PATHS = [
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/tokenize",
    "/v1/models",
]
WORDS = [
    *(
        b"POST",
        b"GET",
        b"/v1/completions",
        b"/metrics",
        b"HTTP/1.1",
        b"HTTP/1.0",
        b"\r\n",
        b"\n",
        b"\r",
        b" ",
    ),
    *(b"Content-Length: ", b"Transfer-Encoding: chunked", b"Connection: close", b"Expect: 100-continue"),
    *(b"Content-Encoding: gzip", b"X-Request-Id: ", b"0", b"-1", b"ffffffffffffffff", b"5\r\nhello", b"\x00"),
    *(
        b'{"prompt": "x"}',
        b'{"stream": true',
        b'"n": 1e309',
        b"[[[[",
        b"\xff\xfe",
        b":",
        b"\t",
        b";a=b",
        b"h2c",
    ),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = [
    *(
        "prompt",
        "messages",
        "input",
        "model",
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "n",
    ),
    *("stream", "stream_options", "min_tokens", "echo", "best_of", "prompt_logprobs", "vllm_xargs", "tools"),
    *("kv_transfer_params", "truncation", "truncate_prompt_tokens", "background", "stop", "store"),
]
BODIES = st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=8), JSON, max_size=6)


@dataclass
class Router:
    """A router between mock engines, in an event loop of its own."""

    stack: Stack
    port: int

    def send(self, data: bytes) -> bytes:
        """What comes back until the router closes; fails when it does not."""
        parts = []
        with socket.create_connection(("127.0.0.1", self.port), timeout=LONGEST_S) as connection:
            try:
                connection.sendall(data)
                while part := connection.recv(65536):
                    parts.append(part)
            except ConnectionError:
                pass  # the router closed before it had read all
        return b"".join(parts)

    def check_works(self) -> None:
        """Whole requests still get their own answers."""
        body = {"prompt": "still there?", "max_tokens": 3}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions", json.dumps(body).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=LONGEST_S) as answer:
            assert json.load(answer)["choices"][0]["text"] == right_text(body, 3)


@pytest.fixture(scope="module")
def router() -> Iterator[Router]:
    ready: list[Router] = []
    started, ended = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def run() -> None:
        async with _running() as running:
            ready.append(running)
            started.set()
            await ended.wait()
            await running.stack.settled()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    assert started.wait(LONGEST_S)
    yield ready[0]
    loop.call_soon_threadsafe(ended.set)
    thread.join(LONGEST_S)
    assert not thread.is_alive(), "something is still counted as in flight"
    loop.close()


@asynccontextmanager
async def _running() -> AsyncIterator[Router]:
    async with stack(limits=LIMITS, body_limit_bytes=10_000) as made:
        yield Router(made, int(made.url.rpartition(":")[2]))


def no_500(answer: bytes) -> None:
    assert status_of(answer) != 500, answer
    assert b"Traceback" not in answer


@A_FEW
@given(st.lists(st.sampled_from(WORDS) | st.binary(max_size=20), max_size=30).map(b"".join))
def test_any_bytes(router: Router, data: bytes) -> None:
    no_500(router.send(data))
    router.check_works()


@st.composite
def mangled(draw: st.DrawFn) -> bytes:
    """A good request with a few changes."""
    body = json.dumps({"prompt": "x", "max_tokens": 2, "stream": draw(st.booleans())}).encode()
    if draw(st.booleans()):
        length, body = b"Transfer-Encoding: chunked", b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    else:
        length = b"Content-Length: %d" % len(body)
    path = draw(st.sampled_from(PATHS)).encode()
    data = b"POST " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + length + b"\r\n\r\n" + body
    for _ in range(draw(st.integers(1, 4))):
        at, size = draw(st.integers(0, len(data))), draw(st.integers(0, 6))
        data = data[:at] + draw(st.sampled_from(WORDS) | st.binary(max_size=4)) + data[at + size :]
    return data


@A_FEW
@given(mangled())
def test_a_request_with_a_few_wrong_bytes(router: Router, data: bytes) -> None:
    no_500(router.send(data))
    router.check_works()


@A_FEW
@given(st.sampled_from(PATHS[:-1]), BODIES)
def test_any_json_object(router: Router, path: str, body: dict[str, object]) -> None:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    answer = router.send(head.encode() + data)
    no_500(answer)
    assert status_of(answer) in (200, 400, 404, 422), answer
