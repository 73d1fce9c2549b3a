"""Token counts in the three forms of vLLM's APIs."""

from typing import Any

import pytest

from eldr.proxy.usage import Usage, read_usage, set_cached_tokens

CHAT = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}}
RESPONSE = {"input_tokens": 9, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 8}}
MESSAGE = {"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": 8}


@pytest.mark.parametrize("usage", [CHAT, RESPONSE, MESSAGE])
def test_each_form_says_the_same(usage: dict[str, Any]) -> None:
    assert read_usage(usage) == Usage(prompt_tokens=9, output_tokens=2, cached_tokens=8)


@pytest.mark.parametrize("usage", [CHAT, RESPONSE, MESSAGE])
def test_the_prefill_workers_number_replaces_the_decode_workers(usage: dict[str, Any]) -> None:
    changed = {key: dict(value) if isinstance(value, dict) else value for key, value in usage.items()}
    set_cached_tokens(changed, 5)
    assert read_usage(changed) == Usage(prompt_tokens=9, output_tokens=2, cached_tokens=5)


@pytest.mark.parametrize(
    "usage", [{"prompt_tokens": 9}, {"prompt_tokens": 9, "prompt_tokens_details": None}, {"input_tokens": 9}]
)
def test_an_engine_that_does_not_tell_is_not_made_to(usage: dict[str, Any]) -> None:
    changed = dict(usage)
    set_cached_tokens(changed, 5)
    assert changed == usage
    assert read_usage(usage) == Usage(prompt_tokens=9)


@pytest.mark.parametrize(
    "usage",
    [
        *(None, 3, [], "x", {}, {"prompt_tokens": "9", "output_tokens": True}),
        {"prompt_tokens": -1, "completion_tokens": 2**63},
    ],
)
def test_anything_else_says_nothing(usage: object) -> None:
    assert read_usage(usage) == Usage()


def test_cache_creation_counts_into_the_prompt() -> None:
    assert read_usage({**MESSAGE, "cache_creation_input_tokens": 4}).prompt_tokens == 13
