"""The official OpenAI client: the router understands what it sends, and it understands the answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.profiles import domain_profile
from support.stack import Stack, right_text, stack
from support.waiting import until, until_running

openai = pytest.importorskip("openai", reason="the openai package is not installed (extra: dev)")

MESSAGES = [{"role": "user", "content": "a law text"}]
CHAT: dict[str, Any] = {"model": "mock", "messages": MESSAGES, "max_tokens": 4}
TOOL = {"type": "function", "function": {"name": "say", "parameters": {"type": "object", "properties": {}}}}


@asynccontextmanager
async def client(**settings: Any) -> AsyncIterator[tuple[Any, Stack]]:
    async with stack(decode=2, **settings) as s:
        for engine in (*s.prefill, *s.decode):
            engine.cached_tokens = 9
        s.prefill[0].cached_tokens = 2
        async with openai.AsyncOpenAI(base_url=s.url + "/v1", api_key="secret", max_retries=0) as made:
            yield made, s
        await s.settled()


async def test_chat() -> None:
    async with client() as (ai, s):
        answer = await ai.chat.completions.create(**CHAT)
        assert answer.choices[0].message.content == right_text({"messages": MESSAGES}, 4)
        assert answer.choices[0].finish_reason == "length"
        assert (answer.usage.completion_tokens, answer.usage.prompt_tokens_details.cached_tokens) == (4, 2)
        for engine in (s.prefill[0], s.decode[0]):
            assert engine.received[0].headers["Authorization"] == "Bearer secret"


async def test_a_chat_stream_comes_word_by_word_and_without_the_usage_that_was_not_asked_for() -> None:
    async with client() as (ai, _):
        chunks = [chunk async for chunk in await ai.chat.completions.create(**CHAT, stream=True)]
        words = [chunk.choices[0].delta.content for chunk in chunks]
        assert (len(words), "".join(words)) == (4, right_text({"messages": MESSAGES}, 4))
        assert all(chunk.usage is None for chunk in chunks)


async def test_the_usage_of_a_stream_is_there_when_asked_for() -> None:
    async with client() as (ai, _):
        options = {"include_usage": True}
        stream = await ai.chat.completions.create(**CHAT, stream=True, stream_options=options)
        *_, last = [chunk async for chunk in stream]
        assert (last.choices, last.usage.completion_tokens) == ([], 4)
        assert last.usage.prompt_tokens_details.cached_tokens == 2


async def test_a_tool_that_must_be_called_is_known_to_both_legs() -> None:
    async with client() as (ai, s):
        answer = await ai.chat.completions.create(**CHAT, tools=[TOOL], tool_choice="required")
        (call,) = answer.choices[0].message.tool_calls
        assert (call.function.name, answer.choices[0].message.content) == ("say", None)
        for engine in (s.prefill[0], s.decode[0]):
            assert engine.received[0].body["tools"] == [TOOL]
            assert engine.received[0].body["tool_choice"] == "required"


async def test_several_choices_are_not_one_choice_repeated_from_foreign_memory() -> None:
    async with client() as (ai, s):
        answer = await ai.chat.completions.create(**CHAT, n=3)
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        assert {choice.message.content for choice in answer.choices} == {
            right_text({"messages": MESSAGES}, 4)
        }
        assert not s.prefill[0].received
        assert "kv_transfer_params" not in s.decode[0].received[0].body


async def test_stop_ends_the_text() -> None:
    async with client() as (ai, _):
        first, second, *_ = right_text({"messages": MESSAGES}, 4).split()
        answer = await ai.chat.completions.create(**CHAT, stop=[second])
        assert (answer.choices[0].message.content.strip(), answer.choices[0].finish_reason) == (first, "stop")


async def test_logprobs() -> None:
    async with client() as (ai, s):
        answer = await ai.chat.completions.create(**CHAT, logprobs=True, top_logprobs=2)
        assert len(answer.choices[0].logprobs.content) == 4
        assert s.decode[0].received[0].body["top_logprobs"] == 2


async def test_completions_of_a_list_of_prompts_and_of_token_ids() -> None:
    async with client() as (ai, s):
        answer = await ai.completions.create(model="mock", prompt=["a", "b"], max_tokens=2)
        assert [choice.index for choice in answer.choices] == [0, 1]
        assert not s.prefill[0].received
        answer = await ai.completions.create(model="mock", prompt=[1, 2, 3], max_tokens=2)
        assert answer.choices[0].text == right_text({"prompt": [1, 2, 3]}, 2)
        assert len(s.prefill[0].received) == 1


async def test_responses_whole_and_streamed_are_handed_off() -> None:
    async with client(policy="locality_band", profile=domain_profile()) as (ai, s):
        ask = {"model": "mock", "input": "a law text", "max_output_tokens": 4}
        right = right_text({"prompt": "a law text"}, 4)
        answer = await ai.responses.create(**ask)
        assert (answer.output_text, answer.usage.output_tokens) == (right, 4)
        assert answer.usage.input_tokens_details.cached_tokens == 2
        events = [event async for event in await ai.responses.create(**ask, stream=True)]
        assert "".join(event.delta for event in events if "delta" in event.type) == right
        assert events[-1].type == "response.completed"
        assert events[-1].response.usage.input_tokens_details.cached_tokens == 2
        legs = s.prefill[0].received
        assert [leg.body["max_output_tokens"] for leg in legs] == [1, 1]
        assert len(s.decode[1].received) == 2, "both went to the worker of their experts"
        assert await s.metric("eldr_time_to_first_token_seconds_count") == 1


async def test_embeddings_are_passed_to_a_worker() -> None:
    async with client() as (ai, s):
        answer = await ai.embeddings.create(model="mock", input="text", encoding_format="float")
        assert answer.data[0].embedding == [0.25, -0.5]
        assert s.prefill[0].received[0].body["input"] == "text"


async def test_models() -> None:
    async with client() as (ai, _):
        assert [model.id async for model in ai.models.list()] == ["mock"]


async def test_errors_are_of_the_class_that_their_status_has() -> None:
    async with client() as (ai, s):
        with pytest.raises(openai.BadRequestError, match="max_tokens must be at least 1"):
            await ai.chat.completions.create(**{**CHAT, "max_tokens": 0, "n": 2})
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await ai.chat.completions.create(**{**CHAT, "model": "other"})
        with pytest.raises(openai.NotFoundError, match="Unknown path: GET /v1/files"):
            await ai.files.list()
        s.prefill[0].faults.status = (429, b'{"error":{"message":"slow down"}}', "application/json")
        with pytest.raises(openai.RateLimitError, match="slow down"):
            await ai.chat.completions.create(**CHAT)
        await s.prefill[0].stop()
        with pytest.raises(openai.InternalServerError, match="prefill workers is available"):
            await ai.chat.completions.create(**CHAT)


async def test_what_the_router_turns_away_raises_what_a_client_expects(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("secret\n")
    few = {"limits": {"in_flight": 1, "queued": 0}, "body_limit_bytes": 1000}
    async with client(**few, security={"api_keys": str(tmp_path / "keys")}) as (ai, s):
        with pytest.raises(openai.APIStatusError, match="larger than 1000 bytes") as large:
            await ai.completions.create(model="mock", prompt="x" * 2000)
        assert large.value.status_code == 413
        with pytest.raises(openai.AuthenticationError, match="needs a valid API key"):
            await ai.with_options(api_key="wrong").completions.create(model="mock", prompt="x")
        s.prefill[0].faults.hang = True
        first = asyncio.create_task(ai.completions.create(model="mock", prompt="x"))
        await until_running(s.prefill[0])
        with pytest.raises(openai.RateLimitError, match="try again") as busy:
            await ai.completions.create(model="mock", prompt="x")
        assert int(busy.value.response.headers["Retry-After"]) >= 1
        first.cancel()


async def test_a_decode_worker_that_dies_raises_in_the_middle_of_a_stream() -> None:
    async with client() as (ai, s):
        for engine in s.decode:
            engine.faults.die_after_chunks = 2
        chat = await ai.chat.completions.create(**CHAT, stream=True)
        assert "".join([(await anext(chat)).choices[0].delta.content for _ in range(2)]) == right_text(
            CHAT, 2
        )
        with pytest.raises(openai.APIError, match="the text is incomplete"):
            await anext(chat)
        response = await ai.responses.create(model="mock", input="x", stream=True)
        assert [(await anext(response)).type for _ in range(3)][1:] == ["response.output_text.delta"] * 2
        with pytest.raises(openai.APIError, match="the text is incomplete"):
            await anext(response)


async def test_leaving_a_stream_cancels_it_on_the_engine() -> None:
    async with client() as (ai, s):
        s.decode[0].faults.rest_until = asyncio.Event()
        stream = await ai.chat.completions.create(**CHAT, stream=True)
        async for _ in stream:
            break
        await stream.close()
        await until(lambda: s.decode[0].cancelled == 1)


async def test_a_client_time_out_cancels_a_prefill() -> None:
    async with client() as (ai, s):
        s.prefill[0].faults.hang = True
        timeout_s = 0.2
        while not s.prefill[0].received:  # a busy machine may not get it there before the time is over
            with pytest.raises(openai.APITimeoutError):
                await ai.chat.completions.create(**CHAT, timeout=timeout_s)
            timeout_s *= 2
        await s.settled()
        assert s.prefill[0].cancelled == len(s.prefill[0].received)
