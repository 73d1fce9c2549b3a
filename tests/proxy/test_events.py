"""Reading an answer on its way through, however the network cut it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr.proxy.events import EventReader, read_answer


def event(**value: Any) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def token(text: str) -> bytes:
    return event(choices=[{"text": text}])


DETAILS = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 9}}
TOKENS = token("a") + token('say "usage": 3\n\n') + b": keep-alive\n\n"
USAGE = event(choices=[], usage=DETAILS)
DONE = b"data: [DONE]\n\n"


def read_in_pieces(data: bytes, cuts: list[int], **options: Any) -> tuple[bytes, EventReader]:
    reader, at, out = EventReader(**options), 0, b""
    for cut in [*sorted(cuts), len(data)]:
        out += reader.feed(data[at:cut])
        at = cut
    return out, reader


@given(st.lists(st.integers(0, len(TOKENS + USAGE + DONE)), max_size=12))
def test_cuts_between_packets_change_nothing(cuts: list[int]) -> None:
    out, reader = read_in_pieces(TOKENS + USAGE + DONE, cuts, hides_usage=True, cached_tokens=1)
    assert out == TOKENS + DONE
    assert (reader.token_events, reader.prompt_tokens, reader.output_tokens) == (2, 5, 2)
    assert reader.done
    assert reader.error is None


def test_whole_events_pass_at_once_and_unfinished_ones_wait() -> None:
    reader = EventReader()
    assert reader.feed(token("a") + b"data: {") == token("a")
    assert reader.feed(b"}\n") == b""
    assert reader.feed(b"\n") == b"data: {}\n\n"


def test_usage_that_the_client_wants_carries_the_prefill_legs_cached_tokens() -> None:
    out, _ = read_in_pieces(USAGE, [], cached_tokens=1)
    assert json.loads(out[6:])["usage"] == {**DETAILS, "prompt_tokens_details": {"cached_tokens": 1}}
    assert read_in_pieces(USAGE, [])[0] == USAGE


def test_usage_beside_a_token_is_kept() -> None:
    chunk = event(choices=[{"text": "a"}], usage={"prompt_tokens": 5, "completion_tokens": 1})
    out, reader = read_in_pieces(chunk, [], hides_usage=True)
    assert out == chunk
    assert (reader.token_events, reader.output_tokens) == (1, 1)


def test_null_usage_is_a_token() -> None:
    out, reader = read_in_pieces(event(choices=[{"text": "a"}], usage=None), [], hides_usage=True)
    assert reader.token_events == 1
    assert out


@pytest.mark.parametrize("usage", [{}, {"usage": None}, {"usage": {"completion_tokens": 0}}])
@pytest.mark.parametrize("cuts", [[], [40]])
def test_a_chat_that_begins_with_a_role_has_as_many_outputs_as_a_completion(
    cuts: list[int], usage: dict[str, Any]
) -> None:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, {"content": "a"}, {"content": "b"}]
    data = b"".join(
        event(choices=[{"index": 0, "delta": delta, "finish_reason": None}], **usage) for delta in deltas
    )
    out, reader = read_in_pieces(data, cuts)
    assert out == data
    assert reader.token_events == 2


@pytest.mark.parametrize(
    "choice",
    [
        {"delta": {"role": "assistant", "content": "a"}},
        {"delta": {"role": "assistant", "content": None, "tool_calls": [{"index": 0}]}},
        {"delta": {"role": "assistant", "content": ""}, "finish_reason": "stop"},
        {"delta": "of another kind", "role": 1},
    ],
)
def test_a_role_beside_output_is_output(choice: dict[str, Any]) -> None:
    out, reader = read_in_pieces(event(choices=[choice]), [])
    assert out == event(choices=[choice])
    assert reader.token_events == 1


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_both_line_ends_and_a_missing_blank_after_data(end: bytes) -> None:
    out, reader = read_in_pieces(b'data:{"choices":[]}' + end + b"data:[DONE]" + end, [])
    assert out == b'data:{"choices":[]}' + end + b"data:[DONE]" + end
    assert reader.done


def test_the_first_error_is_kept_and_passed() -> None:
    out, reader = read_in_pieces(event(error={"code": 500}) + event(error={"code": 501}), [])
    assert reader.error == b'{"error":{"code":500}}'
    assert out.count(b"data:") == 2


def test_a_whole_answer_keeps_its_bytes_but_for_cached_tokens_and_transfer_parameters() -> None:
    usage = b'{"prompt_tokens":5,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":9}}'
    data = b'{"x":1.50,"usage":' + usage + b',"kv_transfer_params":{"remote_host":"10.0.0.1"}}'
    answer = read_answer(data, cached_tokens=3)
    assert answer.body == data.replace(b":9}", b":3}").replace(b'{"remote_host":"10.0.0.1"}', b"null")
    assert (answer.prompt_tokens, answer.output_tokens) == (5, 2)


@pytest.mark.parametrize(
    "data", [b"", b"[1]", b'{"usage":null}', b'{"usage":3}', b'{"usage":{"prompt_tokens":"x"}}', b"\xff"]
)
def test_unusual_answers_pass_as_they_are(data: bytes) -> None:
    answer = read_answer(data, cached_tokens=3)
    assert (answer.body, answer.prompt_tokens, answer.output_tokens) == (data, None, None)
