"""Every rule of the hand-off, as a table: what the engines get for what the client sent."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from eldr.errors import UpstreamError
from eldr.proxy import handoff
from eldr.proxy.dialects import RESPONSES
from eldr.proxy.fields import text_field
from eldr.proxy.one_worker import reason_for_one_worker

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def parse(body: dict[str, Any]) -> handoff.Body:
    return handoff.parse(json.dumps(body).encode())


def sent_as(leg: handoff.Leg) -> bytes:
    """A leg's body as the engine gets it, which is the same for a large one."""
    made = b"".join(handoff.encoded(leg))
    assert b"".join(handoff.encoded_without_copy(leg)) == made
    return made


def prefill(**body: Any) -> dict[str, Any]:
    return json.loads(sent_as(handoff.prefill_leg(parse(body))))


def decode(kv_params: bytes | None = None, **body: Any) -> dict[str, Any]:
    return json.loads(sent_as(handoff.decode_leg(parse(body), Raw(kv_params) if kv_params else None)))


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({}, {"max_tokens": 1}),
        ({"max_tokens": 64}, {"max_tokens": 1}),
        ({"max_tokens": None}, {"max_tokens": 1}),
        ({"max_completion_tokens": 64}, {"max_completion_tokens": 1}),
        ({"max_completion_tokens": None}, {"max_completion_tokens": 1}),
        ({"max_tokens": 9, "max_completion_tokens": 64}, {"max_tokens": 1, "max_completion_tokens": 1}),
        ({"max_tokens": "64"}, {"max_tokens": 1}),
        ({"max_tokens": "many"}, {"max_tokens": "many"}),
        ({"min_tokens": 5}, {"max_tokens": 1}),
        ({"min_tokens": None}, {"max_tokens": 1}),
        ({"min_tokens": "few"}, {"min_tokens": "few", "max_tokens": 1}),
        ({"stream": True, "stream_options": {"include_usage": True}}, {"max_tokens": 1}),
        ({"stream": True, "stream_options": 3}, {"stream_options": 3, "max_tokens": 1}),
        ({"n": 1}, {"n": 1, "max_tokens": 1}),
        ({"n": None}, {"n": 1, "max_tokens": 1}),
        ({"kv_transfer_params": {"remote_host": "evil"}}, {"max_tokens": 1}),
        ({"ec_transfer_params": {"x": 1}}, {"max_tokens": 1}),
        ({"vllm_xargs": {"kv_transfer_params": "x", "a": 1}}, {"vllm_xargs": {"a": 1}, "max_tokens": 1}),
        ({"seed": 3, "temperature": 0}, {"seed": 3, "temperature": 0, "max_tokens": 1}),
    ],
)
def test_prefill_leg_stops_after_one_token(sent: dict[str, Any], expected: dict[str, Any]) -> None:
    fixed = {"stream": False, "kv_transfer_params": handoff.PREFILL_PARAMS}
    assert prefill(prompt="p", **sent) == {"prompt": "p", **expected, **fixed}


def test_prefill_parameters_ask_for_a_remote_decode() -> None:
    assert handoff.PREFILL_PARAMS == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }


SHAPING = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi \u4f60"}],
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "required",
    "response_format": {"type": "json_object"},
    "chat_template": "{{ x }}",
    "chat_template_kwargs": {"enable_thinking": False},
    "reasoning_effort": "low",
    "documents": [{"title": "t", "text": "x"}],
    "add_generation_prompt": False,
    "continue_final_message": True,
    "truncate_prompt_tokens": 5,
    "cache_salt": "salt",
    "add_special_tokens": False,
    "some_future_field": {"a": [1, 2.50]},
}


@pytest.mark.parametrize("field", SHAPING)
def test_what_shapes_the_prompt_is_the_same_in_both_legs(field: str) -> None:
    assert prefill(**SHAPING)[field] == decode(b"{}", **SHAPING)[field] == SHAPING[field]


def test_values_pass_byte_for_byte() -> None:
    body = handoff.parse(b'{"a": 1.50, "b": 12345678901234567890123, "c": "\\u00e9", "d": 1e-7}')
    for leg in (handoff.prefill_leg(body), handoff.decode_leg(body, None)):
        for verbatim in (b'"a":1.50', b'"b":12345678901234567890123', b'"c":"\\u00e9"', b'"d":1e-7'):
            assert verbatim in sent_as(leg)


@given(st.dictionaries(st.text(), JSON, max_size=6))
def test_decode_leg_is_the_client_body_without_the_clients_parameters(body: dict[str, Any]) -> None:
    body.pop("stream", None)
    body.pop("vllm_xargs", None)
    kept = {key: value for key, value in body.items() if key not in handoff.ENGINE_ONLY}
    assert decode(**body) == kept


@pytest.mark.parametrize(
    ("sent", "options", "hidden"),
    [
        ({"stream": True}, {"include_usage": True, "continuous_usage_stats": False}, True),
        ({"stream": "true"}, {"include_usage": True, "continuous_usage_stats": False}, True),
        (
            {"stream": True, "stream_options": {"include_usage": False, "x": 1}},
            {"include_usage": True, "continuous_usage_stats": False, "x": 1},
            True,
        ),
        ({"stream": True, "stream_options": {"include_usage": True}}, {"include_usage": True}, False),
        ({"stream": True, "stream_options": 3}, 3, False),
        ({"stream": False}, None, False),
        ({}, None, False),
    ],
)
def test_streams_report_usage_to_the_router(sent: dict[str, Any], options: Any, hidden: bool) -> None:
    assert decode(prompt="p", **sent).get("stream_options") == options
    assert handoff.hides_usage(parse(sent)) is hidden


def test_transfer_parameters_pass_verbatim_and_null_ones_not_at_all() -> None:
    params = b'{"remote_num_tokens":12345678901234567890,"new_field":[[1],[2]],"x":1.50}'
    leg = handoff.decode_leg(parse({"prompt": "p", "kv_transfer_params": {"mine": 1}}), Raw(params))
    assert b'"kv_transfer_params":' + params in sent_as(leg)
    assert "kv_transfer_params" not in decode(None, prompt="p", kv_transfer_params={"mine": 1})


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        ({"prompt": "text"}, None),
        ({"prompt": ["text"]}, None),
        ({"prompt": [1, 2, 3]}, None),
        ({"prompt": [[1, 2, 3]]}, None),
        ({"prompt": []}, None),
        ({"prompt": ["a", "b"]}, "prompt_list"),
        ({"prompt": [[1], [2]]}, "prompt_list"),
        ({"prompt": "p", "n": 1}, None),
        ({"prompt": "p", "n": None}, None),
        ({"prompt": "p", "n": 2}, "n_above_one"),
        ({"prompt": "p", "n": "2"}, "n_above_one"),
        ({"prompt": "p", "n": 2.0}, "n_above_one"),
        ({"prompt": "p", "best_of": 2}, "n_above_one"),
        ({"prompt": "p", "echo": True}, "echo"),
        ({"prompt": "p", "echo": 1}, "echo"),
        ({"prompt": "p", "echo": False}, None),
        ({"prompt": "p", "use_beam_search": True}, "use_beam_search"),
        ({"prompt": "p", "prompt_logprobs": 0}, "prompt_logprobs"),
        ({"prompt": "p", "prompt_logprobs": None}, None),
        ({"prompt_embeds": "abc"}, "prompt_embeds"),
        ({"messages": [], "n": 3}, "n_above_one"),
        ({"prompt": "p", "truncate_prompt_tokens": 5}, None),
        ({"prompt": "p", "truncate_prompt_tokens": -1}, "truncation"),
        ({"prompt": "p", "previous_response_id": "only /v1/responses knows it"}, None),
    ],
)
def test_what_cannot_be_handed_off_runs_on_one_worker(sent: dict[str, Any], reason: str | None) -> None:
    assert reason_for_one_worker(parse(sent)) == reason


DEEP = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


NO_TEXT = b'{"prompt": "\xf2", "max_tokens": 2}'


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[1]", b'"x"', b'{"a": NaN}', b"\xff", b'{"a": 1} x', DEEP, NO_TEXT]
)
def test_a_body_that_is_no_json_object_is_the_clients_mistake(data: bytes) -> None:
    with pytest.raises(handoff.BadRequestError, match="the body is not a JSON object"):
        handoff.parse(data)


@pytest.mark.parametrize("tool", ["f", {"type": ["function"]}, {"type": 3}])
def test_tools_that_are_malformed_are_left_to_the_engine(tool: object) -> None:
    assert reason_for_one_worker(parse({"input": "x", "tools": [tool]}), RESPONSES) is None


def test_a_hidden_transfer_parameter_in_xargs_is_found_behind_escapes() -> None:
    body = handoff.parse(
        b'{"vllm_xargs": {"kv\\u005ftransfer_params": "x", "k": 1.0}, "kv\\u005ftransfer_params": 1}'
    )
    assert json.loads(sent_as(handoff.decode_leg(body, None))) == {"vllm_xargs": {"k": 1.0}}


def test_reading_a_prefill_answer() -> None:
    usage = b'{"prompt_tokens":7,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":4}}'
    data = b'{"kv_transfer_params":{"a":1.50,"eldr":{"v":1}},"usage":' + usage + b',"choices":[]}'
    answer = handoff.read_prefill(data)
    assert bytes(answer.kv_params or b"") == b'{"a":1.50}'
    assert (answer.counts, answer.prompt_tokens, answer.cached_tokens) == ({"v": 1}, 7, 4)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"{}", handoff.PrefillAnswer()),
        (b'{"kv_transfer_params":null,"usage":null}', handoff.PrefillAnswer()),
        (b'{"kv_transfer_params":{}}', handoff.PrefillAnswer()),
        (b'{"kv_transfer_params":{"eldr":null}}', handoff.PrefillAnswer()),
        (b'{"kv_transfer_params":{"eldr":[1]}}', handoff.PrefillAnswer(counts=[1])),
        (
            b'{"usage":{"prompt_tokens":3,"prompt_tokens_details":null}}',
            handoff.PrefillAnswer(prompt_tokens=3),
        ),
    ],
)
def test_missing_parts_of_a_prefill_answer_are_none(data: bytes, expected: handoff.PrefillAnswer) -> None:
    assert handoff.read_prefill(data) == expected


@pytest.mark.parametrize("data", [b"", b"<html>", b"[]", b'{"kv_transfer_params":3}'])
def test_an_unreadable_prefill_answer_is_an_upstream_error(data: bytes) -> None:
    with pytest.raises(UpstreamError, match="cannot be read"):
        handoff.read_prefill(data)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 7}, 7),
        ({"max_tokens": "x"}, None),
    ],
)
def test_the_output_limit_is_read_as_the_engine_reads_it(sent: dict[str, Any], expected: int | None) -> None:
    assert handoff.max_tokens(parse(sent)) == expected


def test_text_fields() -> None:
    assert text_field(parse({"model": "m"}), "model") == "m"
    assert text_field(parse({"model": 3}), "model") is None
    assert text_field(parse({}), "model") is None
