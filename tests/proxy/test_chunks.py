"""Chunks that pass by the parser: which ones do, and that a client cannot tell."""

from itertools import pairwise
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr.pool import Worker
from eldr.proxy.chunks import LONGEST, is_output
from eldr.proxy.worker_answer import Answer, BrokenOffError

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def event(text: bytes = b"a", more: bytes = b"") -> bytes:
    return b'data: {"id":"cmpl-1","choices":[{"text":"%b"}]%b}\n\n' % (text, more)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@pytest.mark.parametrize("whole", [90, 100, 300, 500, LONGEST - 1])
@pytest.mark.parametrize("more", [b"", b',"usage":null'])
def test_one_event_of_output_in_vllms_framing_passes(whole: int, more: bytes) -> None:
    rest = whole - len(chunk(event(b"", more)))
    made = [chunk(event(b"x" * text, more)) for text in range(max(0, rest - 3), rest)]
    assert made
    assert all(is_output(each) for each in made)


ONE = chunk(event(b"more of text"))
OTHERS = {
    "nothing": b"",
    "a longer chunk": chunk(event(b"x" * LONGEST)),
    "a chunk and a bit": ONE + b"1",
    "a chunk without its end": ONE[:-1],
    "two chunks": ONE + ONE,
    "two events": chunk(event() + event()),
    "an event in two lines": chunk(event().replace(b",", b",\ndata: ")),
    "an event after a carriage return": chunk(event(b"a\r\n\r\ndata: [DONE]")),
    "an unfinished event": chunk(event()[:-1]),
    "a size in capitals": ONE.replace(b"3b", b"3B"),
    "a size with a zero before it": b"0" + ONE,
    "a size with an extension": ONE.replace(b"\r\n", b";a\r\n", 1),
    "a size that is too small": b"%x\r\n%b\r\n" % (len(event()) - 1, event()),
    "a size that is too large": b"%x\r\n%b\r\n" % (len(event()) + 1, event()),
    "the last chunk": END,
    "the end": chunk(b"data: [DONE]\n\n"),
    "an error": chunk(b'data: {"error":{"code":500}}\n\n'),
    "an event with a name": chunk(b"event: message_stop\n" + event()),
    "usage beside a token": chunk(event(more=b',"usage":{"prompt_tokens":1}')),
    "usage, spaced": chunk(event(more=b',"usage": {"prompt_tokens": 1}')),
    "usage first": chunk(b'data: {"id":"1","usage":{"prompt_tokens":1},"choices":[]}\n\n'),
}


@pytest.mark.parametrize("case", OTHERS)
def test_whatever_differs_goes_through_the_parsers(case: str) -> None:
    assert is_output(ONE)
    assert ONE.startswith(b"3b\r\n")
    assert not is_output(OTHERS[case])


class Received:
    """A sink that takes what it may in its framing, and keeps the text."""

    def __init__(self) -> None:
        self.text, self.as_it_came, self.ended = b"", 0, False
        self.error: BrokenOffError | None = None

    def take_chunk(self, data: bytes, now_s: float) -> bool:  # noqa: ARG002
        if is_output(data):
            self.text += data.partition(b"\r\n")[2][:-2]
            self.as_it_came += 1
        return is_output(data)

    def take(self, data: bytes) -> None:
        self.text += data

    def end(self, error: BrokenOffError | None) -> None:
        self.ended, self.error = True, error


def received(pieces: list[bytes]) -> Received:
    answer, sink = Answer(Worker("d0", "http://d0"), Mock()), Received()
    answer.pass_to(sink)
    for piece in pieces:
        if answer.express is None or not answer.express(piece, 0.0):
            answer.feed(piece)
    return sink


EVENTS = [event(b"%d" % number) for number in range(5)]
STREAM = HEAD + b"".join(chunk(each) for each in EVENTS) + END


@given(st.lists(st.integers(1, len(STREAM)), max_size=20))
def test_cuts_between_packets_change_nothing(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    sink = received([STREAM[a:b] for a, b in pairwise(places) if a < b])
    assert (sink.text, sink.ended, sink.error) == (b"".join(EVENTS), True, None)


def test_whole_chunks_pass_by_the_parser_only_where_it_stands_between_chunks() -> None:
    assert received([HEAD, *map(chunk, EVENTS), END]).as_it_came == len(EVENTS) - 1, "the first is parsed"
    inside = b"".join(map(chunk, EVENTS))
    sink = received([HEAD, chunk(event()), b"%x\r\n" % len(inside), *map(chunk, EVENTS), b"\r\n", END])
    assert (sink.as_it_came, sink.text, sink.error) == (0, event() + inside, None)


def test_a_second_answer_is_never_taken_for_a_part_of_the_first() -> None:
    sink = received([HEAD + chunk(b"one") + END + HEAD + chunk(b"two") + END])
    assert (sink.text, sink.ended, sink.error) == (b"one", True, None)
