"""What a client may send: anything, and requests that are nearly right."""

import json
from typing import Any

from hypothesis import strategies as st

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
ANY_BYTES = st.lists(st.sampled_from(WORDS) | st.binary(max_size=20), max_size=30).map(b"".join)
BODY = {"prompt": "hello", "max_tokens": 2}
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"


def changed(draw: st.DrawFn, data: bytes, words: list[bytes]) -> bytes:
    """The data with a few changes at random places."""
    for _ in range(draw(st.integers(1, 4))):
        at, size = draw(st.integers(0, len(data))), draw(st.integers(0, 6))
        data = data[:at] + draw(st.sampled_from(words) | st.binary(max_size=4)) + data[at + size :]
    return data


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
    return changed(draw, data, WORDS)


def request(path: str, body: dict[str, Any], *headers: bytes) -> bytes:
    """A whole request after which the router closes the connection."""
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1".encode(), b"Host: x", b"Connection: close", *headers]
    return b"\r\n".join([*lines, b"Content-Length: %d" % len(data), b"", data])


TOKEN = st.text("abcXYZ019!#$%&'*+-.^_`|~", min_size=1, max_size=12)
NAMES = (
    TOKEN.map(lambda text: b"X-F-" + text.encode())
    | st.sampled_from([b"Connection", b"X-Request-Id", b"x-eldr-label", b"traceparent", b"Authorization"])
    | st.sampled_from([b"Accept", b"Cookie", b"Upgrade", b"TE", b"Expect", b"Content-Encoding", b"X-Data-"])
)
VALUES = st.binary(max_size=30).map(lambda data: data.translate(None, b"\r\n\0"))
HEADERS = st.lists(st.tuples(NAMES, VALUES), max_size=6)


@st.composite
def chunked(draw: st.DrawFn) -> bytes:
    """A good request whose body comes in chunks of any sizes, with extensions and trailers."""
    body, parts = json.dumps(BODY).encode(), []
    while body:
        size = draw(st.integers(1, len(body)))
        extension = draw(st.sampled_from([b"", b";a", b";a=b", b';a="b c"']))
        number = draw(st.sampled_from([b"%x", b"%X", b"0%x", b"000%x"])) % size
        parts.append(number + extension + b"\r\n" + body[:size] + b"\r\n")
        body = body[size:]
    trailers = draw(st.sampled_from([b"", b"X-Trailer: 1\r\n"]))
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(parts) + b"0\r\n" + trailers + b"\r\n"


@st.composite
def nearly_chunked(draw: st.DrawFn) -> bytes:
    return changed(
        draw,
        draw(chunked()),
        [*WORDS, b"0\r\n\r\n", b"1\r\n", b"+1", b"0x5", b"\r\n\r\n", b"Content-Length: 5\r\n"],
    )
