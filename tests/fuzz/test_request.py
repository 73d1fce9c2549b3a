"""What the router takes for a request, llhttp, with which most servers parse, reads in the same way."""

from contextlib import suppress
from typing import cast

import httptools
from hypothesis import assume, given
from hypothesis import strategies as st

from eldr.proxy.body import MalformedBodyError
from eldr.proxy.head import RefusedHeadError, check_unfinished, parse_head
from eldr.proxy.request import Connection, Request
from eldr.proxy.room import Room
from eldr.settings_front import LimitConfig
from fuzz.inputs import ANY_BYTES, BODY, HEADERS, PATHS, chunked, mangled, nearly_chunked, request

LIMITS = LimitConfig()
LONGEST = 100_000
METHODS = ("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS")
WITH_HEADERS = HEADERS.map(lambda fields: request(PATHS[0], BODY, *(b": ".join(field) for field in fields)))
REQUESTS = mangled() | chunked() | nearly_chunked() | WITH_HEADERS | ANY_BYTES


class Llhttp:
    """A request as llhttp reads it. Trailers come as headers after the headers' end, and do not count."""

    def __init__(self, data: bytes) -> None:
        self.url, self.body, self.headers, self.in_head, self.done = b"", b"", [], True, False
        parser = httptools.HttpRequestParser(self)
        with suppress(httptools.HttpParserUpgrade):
            parser.feed_data(data)
        self.method = parser.get_method().decode()

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.in_head:
            text = value.decode("utf-8", "surrogateescape").strip(" \t")
            self.headers.append((name.decode(), text))

    def on_headers_complete(self) -> None:
        self.in_head = False

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.done = True


async def read(data: bytes, cut: int) -> tuple[Request, bytes, int] | None:
    """A request as the router reads it, its body, and the bytes of both; None for one refused or not whole.

    cut: where the bytes after the head are cut in two.
    """
    end = data.find(b"\r\n\r\n") + 4
    try:
        made = parse_head(data[:end], LIMITS, LONGEST, cast(Connection, None))
        for part in (data[end : end + cut], data[end + cut :]):
            if not made.body.complete:
                end += len(part) - len(made.body.feed(part))
        if not made.body.complete:
            return None
        await made.body.arrive(Room(LONGEST))
        return made, made.body.take(), end
    except (RefusedHeadError, MalformedBodyError):
        return None


@given(REQUESTS, st.integers(0, 60))
async def test_llhttp_reads_what_passes_in_the_same_way(data: bytes, cut: int) -> None:
    found = await read(data, cut)
    assume(found is not None and found[0].method in METHODS)
    assert found is not None
    made, body, end = found
    assume("Content-Encoding" not in made.headers)
    other = Llhttp(data[:end])
    assert other.done
    assert other.method == made.method
    assert made.path in other.url.decode()
    assert other.headers == list(made.headers.items())
    assert other.body == body
    assert not Llhttp(data[: end - 1]).done, (
        "the router takes what follows for another request, as llhttp does"
    )


@given(REQUESTS, st.integers(0, 100))
def test_the_beginning_of_a_head_that_will_pass_is_not_refused(data: bytes, length: int) -> None:
    head = data[: data.find(b"\r\n\r\n") + 4]
    try:
        parse_head(head, LIMITS, LONGEST, cast(Connection, None))
    except RefusedHeadError:
        assume(False)
    check_unfinished(head[:length], LIMITS)
