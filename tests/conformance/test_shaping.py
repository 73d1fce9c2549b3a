"""Requests that other routers pass to the prefill worker as they came, which then refuses or computes all."""

from typing import Any

import pytest

from support.mock_engine import limit_of
from support.stack import CHAT, COMPLETIONS, right_text, stack

PROMPT = {"prompt": "hello world"}
MESSAGES = {"messages": [{"role": "user", "content": "hello world"}]}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "tokens"),
    [
        pytest.param(COMPLETIONS, {**PROMPT, "max_tokens": 4, "min_tokens": 4}, 4, id="min_tokens"),
        pytest.param(CHAT, {**MESSAGES, "max_completion_tokens": 4}, 4, id="max_completion_tokens"),
        pytest.param(COMPLETIONS, PROMPT, 16, id="no_limit"),
        pytest.param(CHAT, {**MESSAGES, "max_tokens": None, "max_completion_tokens": 3}, 3, id="null_limit"),
    ],
)
async def test_a_limit_of_the_output_is_for_the_decode_leg_only(
    path: str, body: dict[str, Any], tokens: int, stream: bool
) -> None:
    more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    async with stack(decode=1) as s:
        reply = await s.post(path, **body, **more)
        assert reply.status == 200, reply.text
        assert all(word in reply.text for word in right_text(body, tokens).split())
        (prefill,), (decode,) = s.prefill[0].received, s.decode[0].received
        assert limit_of(prefill.body) == 1
        assert not prefill.body.get("stream")
        assert not {"min_tokens", "stream_options"} & set(prefill.body)
        kept = {key: value for key, value in decode.body.items() if key != "kv_transfer_params"}
        assert kept == {**body, **more}
        await s.settled()
