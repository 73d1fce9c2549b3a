"""HTTP/1.1 as the router speaks it to clients, beyond what requests and their answers show."""

import gzip
import json
import tracemalloc
import zlib
from functools import partial

import pytest

from eldr.proxy.body import ALWAYS_INFLATED_BYTES, Body, Chunks, MalformedBodyError, TooLargeError
from eldr.proxy.head import HeadReader, RefusedHeadError
from eldr.proxy.room import Room
from eldr.settings_front import LimitConfig
from support.raw import connected, exchange, post, status_of
from support.stack import right_text, stack

PROMPT = {"prompt": "hello world", "max_tokens": 2}
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
MIB = 1024 * 1024
REST = b"3\r\nabc\r\nA;b=c\r\n0123456789\r\n0\r\nX-T: 1\r\n\r\nnext"


async def read(body: Body) -> bytes:
    await body.arrive(Room(64 * MIB))
    return body.take()


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with stack() as s:
        asked = post(PROMPT).replace(b"Connection: close\r\n", b"")
        answer = await exchange(s.url, HEALTH + asked + HEALTH + LAST)
        order = [answer.index(part) for part in (b'"ok"', right_text(PROMPT, 2).encode(), b'"version"')]
        assert order == sorted(order)
        assert answer.count(b"HTTP/1.1 200 OK") == 4


async def test_a_malformed_request_spoils_only_itself_and_what_follows() -> None:
    async with stack() as s:
        answer = await exchange(s.url, HEALTH + b"no HTTP\r\n\r\n" + HEALTH)
        assert [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]] == [200, 400]


@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
async def test_what_can_be_no_request_any_more_is_refused_before_its_end(end: bytes) -> None:
    async with stack() as s:
        assert status_of(await exchange(s.url, b"\x16\x03\x01\x02\x00" + end)) == 400


async def test_http_1_0_gets_a_stream_without_chunks_that_ends_with_the_connection() -> None:
    async with stack() as s:
        sent = post({**PROMPT, "stream": True}).replace(b"HTTP/1.1", b"HTTP/1.0")
        head, _, body = (await exchange(s.url, sent.replace(b"close", b"keep-alive"))).partition(b"\r\n\r\n")
        assert b"chunked" not in head
        assert b"\r\nConnection: close" in head
        assert body.startswith(b"data: {")
        assert body.endswith(b"data: [DONE]\n\n")


async def test_a_head_request_gets_the_length_but_no_body() -> None:
    async with stack() as s:
        answer = await exchange(s.url, LAST.replace(b"GET", b"HEAD"))
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert answer.endswith(b"\r\n\r\n")
        assert b"Content-Length: 0" not in answer


async def test_a_405_says_what_is_allowed() -> None:
    async with stack() as s:
        assert (await s.get("/v1/completions")).headers["Allow"] == "POST"
        assert (await s.post("/health")).headers["Allow"] == "GET, HEAD"


async def test_after_an_answer_to_a_body_that_was_not_asked_for_no_request_follows() -> None:
    async with stack(limits={"body_timeout_s": 0.1}) as s, connected(s.url) as connection:
        head = b"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n"
        connection.writer.write(head % len(HEALTH))
        answer = await connection.reader.readuntil(b"\r\n\r\n")
        assert status_of(answer) == 404
        assert b"Connection: close" in answer
        connection.writer.write(HEALTH)  # the body after all, or another request: nobody can tell
        assert b"HTTP/1.1" not in await connection.rest()


async def test_the_rest_of_a_body_that_nobody_wants_is_taken_and_the_connection_kept() -> None:
    async with stack() as s, connected(s.url) as connection:
        head = b"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n"
        connection.writer.write(head + b"x" * 100_000)
        assert status_of(await connection.reader.readuntil(b"\r\n\r\n")) == 404
        connection.writer.write(b"x" * 100_000 + LAST)
        assert b'"version"' in await connection.rest()


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_chunks_are_one_body_however_they_are_cut(size: int) -> None:
    chunks, body, rest = Chunks(), b"", b""
    for at in range(0, len(REST), size):
        if chunks.complete:
            rest += REST[at : at + size]
        else:
            part, rest = chunks.feed(REST[at : at + size])
            body += part
    assert (chunks.complete, body, rest) == (True, b"abc0123456789", b"next")


@pytest.mark.parametrize(
    "data",
    [
        *(b"3\nabc", b"3\r\nabcd", b"-3\r\n", b"+3\r\n", b"0x3\r\n", b" 3\r\n", b"3 \r\n", b"\r\n", b"g\r\n"),
        *(b"3;\r\n", b"3;a=\x00\r\n", b"3;a\nb\r\n", b"1" * 16 + b"\r\n", b"3;" + b"a" * 9_000),
        *(b"0\r\nX-T : 1\r\n", b"0\r\n folded\r\n", b"0\r\nX-T: \x00\r\n", b"0\r\n" + b"A: 1\r\n" * 200),
    ],
)
def test_chunks_that_are_none_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedBodyError):
        Chunks().feed(data + b"\r\n\r\n")


@pytest.mark.parametrize("size", [1, 3, 50])
def test_a_head_that_comes_in_pieces_is_the_same_head(size: int) -> None:
    reader, data = HeadReader(LimitConfig()), HEALTH + b"GET"
    for at in range(0, len(data), size):
        if (whole := reader.feed(data[at : at + size])) is not None:
            break
    assert whole is not None
    assert whole[0] == HEALTH
    assert data.startswith(whole[0] + whole[1])


@pytest.mark.parametrize(
    ("data", "status"),
    [(b"GET /" + b"x" * 20_000, 414), (b"GET / HTTP/1.1\r\nA: " + b"x" * 20_000, 431), (b"A\x00", 400)],
)
def test_a_head_is_refused_as_soon_as_it_cannot_be_good(data: bytes, status: int) -> None:
    with pytest.raises(RefusedHeadError) as refused:
        HeadReader(LimitConfig()).feed(data)
    assert refused.value.status == status


async def test_a_url_without_a_path_is_that_of_the_root() -> None:
    async with stack() as s:
        for target in (b"http://host", b"http://host?q=1"):
            answer = await exchange(s.url, LAST.replace(b"/version", target))
            assert b'"Unknown path: GET /"' in answer


BODY = json.dumps(PROMPT).encode()


# Tests of several processes are matched by name, so the data in a name must not hold the time.
zipped = partial(gzip.compress, mtime=0)


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("gzip", zipped(BODY)),
        ("GZIP ", zipped(BODY[:9]) + zipped(BODY[9:])),
        ("deflate", zlib.compress(BODY)),
        ("deflate", zlib.compress(BODY)[2:-4]),
        ("identity", BODY),
    ],
)
async def test_a_compressed_body_is_the_body(encoding: str, data: bytes) -> None:
    body = Body(len(data), 1_000, encoding)
    body.feed(data)
    assert await read(body) == BODY


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (zipped(BODY)[:-4], MalformedBodyError),
        (zipped(BODY) + b"junk", MalformedBodyError),
        (zipped(b"") * 100, MalformedBodyError),
        (zipped(b"x" * 2_000), TooLargeError),
        (zipped(b"x" * 600) * 2, TooLargeError),
    ],
)
async def test_a_compressed_body_that_is_cut_off_or_too_large_is_refused(
    data: bytes, error: type[Exception]
) -> None:
    body = Body(len(data), 3_000 if error is MalformedBodyError else 1_000, "gzip")
    body.feed(data)
    with pytest.raises(error):
        await read(body)


@pytest.mark.parametrize("size", [1_000_000, 2_000_000])
async def test_a_compressed_body_may_inflate_as_text_does_and_at_first_without_bound(size: int) -> None:
    text = b"".join(b"%06d" % number + b"x" * 114 for number in range(size // 120))
    body = Body(len(data := zipped(text if size > ALWAYS_INFLATED_BYTES else b"x" * size)), 64 * MIB, "gzip")
    body.feed(data)
    assert len(await read(body)) >= size - 120


@pytest.mark.parametrize("pieces", [1, 8])
async def test_a_small_body_that_inflates_to_a_huge_one_is_refused_before_it_has(pieces: int) -> None:
    data = zipped(b"x" * (62 * MIB // pieces)) * pieces
    body = Body(len(data), 64 * MIB, "gzip")
    body.feed(data)
    tracemalloc.start()
    try:
        with pytest.raises(TooLargeError, match=f"than {50 * len(data)} bytes and 50 times its compressed"):
            await read(body)
        assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()
