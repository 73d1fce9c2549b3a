"""Whatever reads bytes of clients or engines gives a value or its own error, for any bytes."""

import json
from contextlib import suppress
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from eldr.errors import PayloadError, UpstreamError
from eldr.proxy import handoff
from eldr.proxy.dialects import DIALECTS
from eldr.proxy.events import EventReader, read_answer
from eldr.proxy.one_worker import reason_for_one_worker
from eldr.wire import decode_counts, encode_counts
from support.mock_engine import TOP_K, domain_counts

PIECES = [
    *(b"data: ", b"event: ", b"error", b"message_stop", b"response.completed", b"message_delta", b"[DONE]"),
    *(
        b"\n\n",
        b"\r\n\r\n",
        b"\n",
        b'{"error":',
        b'"usage":',
        b"{}",
        b"null",
        b"}",
        b'{"choices":[]}',
        b"\xff",
    ),
    *(b'{"usage":{"prompt_tokens":1,"prompt_tokens_details":{}}}', b'{"response":{"usage":3}}', b": ping"),
]
STREAMS = st.lists(st.sampled_from(PIECES) | st.binary(max_size=8), max_size=30)
ANSWERS = STREAMS.map(b"".join) | st.binary(max_size=60)
VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=10)
    | st.just([[1]])
    | st.just({})
)


@given(STREAMS)
def test_a_stream_passes_without_a_byte_lost(pieces: list[bytes]) -> None:
    reader, whole = EventReader(), EventReader()
    passed = b"".join(reader.feed(piece) for piece in pieces)
    assert passed == whole.feed(b"".join(pieces))
    assert (reader.done, reader.error) == (whole.done, whole.error)
    assert (reader.prompt_tokens, reader.output_tokens) == (whole.prompt_tokens, whole.output_tokens)


@given(ANSWERS, st.none() | st.integers(0, 9))
@example(b'{"usage":{"input_tokens":1,"cache_read_input_tokens":"x"}}', 3)
def test_a_whole_answer_gives_bytes(data: bytes, cached: int | None) -> None:
    assert isinstance(read_answer(data, cached).body, bytes)


@given(ANSWERS)
def test_a_prefill_answer_is_read_or_an_upstream_error(data: bytes) -> None:
    with suppress(UpstreamError):
        assert isinstance(handoff.read_prefill(data), handoff.PrefillAnswer)


@given(st.dictionaries(st.sampled_from(["kv_transfer_params", "usage", "eldr"]), VALUES, max_size=3))
def test_a_prefill_answer_with_odd_fields_is_read_or_an_upstream_error(body: dict[str, Any]) -> None:
    with suppress(UpstreamError):
        handoff.read_prefill(json.dumps(body).encode())


@given(ANSWERS, st.sampled_from(list(DIALECTS.values())))
def test_a_body_makes_two_legs_or_a_bad_request(data: bytes, dialect: Any) -> None:
    with suppress(handoff.BadRequestError):
        body = handoff.parse(data, dialect)
        reason_for_one_worker(body, dialect)
        json.loads(b"".join(handoff.encoded(handoff.prefill_leg(body, dialect))))
        json.loads(b"".join(handoff.encoded_without_copy(handoff.decode_leg(body, None, dialect))))


@given(
    st.dictionaries(
        st.sampled_from(sorted(encode_counts(domain_counts("law", 3), top_k=TOP_K, tokens=3))), VALUES
    )
)
def test_a_mangled_payload_gives_counts_that_add_up_or_a_payload_error(changes: dict[str, Any]) -> None:
    payload = {**encode_counts(domain_counts("law", 3), top_k=TOP_K, tokens=3), **changes}
    with suppress(PayloadError):
        counts = decode_counts(payload)
        assert counts.counts.sum() == counts.counts.shape[0] * counts.covered * counts.top_k


@given(st.binary(max_size=60))
def test_any_array_gives_counts_or_a_payload_error(data: bytes) -> None:
    payload = {
        **encode_counts(domain_counts("law", 3), top_k=TOP_K, tokens=3),
        "counts": data.decode("latin-1"),
    }
    with suppress(PayloadError):
        decode_counts(payload)
