"""The official clients through the router to real vLLM: every answer is that of a plain vLLM."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import groupby
from typing import Any

import aiohttp
import pytest

from engine.routed import TEXTS, Engines, generated, router, settled, total

openai = pytest.importorskip("openai", reason="the openai package is not installed (extra: dev)")

pytestmark = pytest.mark.engine

MESSAGES = [{"role": "user", "content": TEXTS[0]}]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12}
ANSWER = {"type": "object", "properties": {"sure": {"enum": ["yes", "no"]}}, "required": ["sure"]}
TOOL = {"type": "function", "function": {"name": "say", "description": "Answer.", "parameters": ANSWER}}
Ask = Callable[[Any, str], Awaitable[Any]]
"""What a client gets when it asks the model of a name, less what differs between any two answers."""


@asynccontextmanager
async def clients(pair: Engines) -> AsyncIterator[tuple[Any, Any, str, aiohttp.ClientSession]]:
    """Clients of the router and of plain vLLM; at the end, nothing may be left on any engine."""
    async with (
        router(pair) as (url, http),
        openai.AsyncOpenAI(base_url=url + "/v1", api_key="x", max_retries=0) as routed,
        openai.AsyncOpenAI(base_url=pair["plain"].url + "/v1", api_key="x", max_retries=0) as plain,
    ):
        yield routed, plain, url, http
        await settled(http, url, pair)


async def chat(ai: Any, model: str, **more: Any) -> Any:
    answer = await ai.chat.completions.create(model=model, messages=MESSAGES, **{**GREEDY, **more})
    return [dumped(choice) for choice in answer.choices], used(answer.usage)


async def shape(ai: Any, model: str, **more: Any) -> Any:
    """Of a chat whose words are drawn: what does not depend on them."""
    choices, usage = await chat(ai, model, extra_body={"ignore_eos": True}, **more)
    return [(choice["index"], choice["finish_reason"]) for choice in choices], usage


async def chat_stream(ai: Any, model: str, **more: Any) -> Any:
    ask = {"model": model, "messages": MESSAGES, **GREEDY, "stream": True, **more}
    chunks = [chunk async for chunk in await ai.chat.completions.create(**ask)]
    choices = [choice for chunk in chunks for choice in chunk.choices]
    usage = [used(chunk.usage) for chunk in chunks if chunk.usage is not None]
    return "".join(one.delta.content or "" for one in choices), choices[-1].finish_reason, usage


async def completions(ai: Any, model: str, **more: Any) -> Any:
    answer = await ai.completions.create(model=model, **{"prompt": TEXTS[1], **GREEDY, **more})
    return [dumped(choice) for choice in answer.choices], used(answer.usage)


async def response(ai: Any, model: str) -> Any:
    answer = await ai.responses.create(model=model, input=TEXTS[0], temperature=0, max_output_tokens=12)
    return answer.status, answer.output_text, (answer.usage.input_tokens, answer.usage.output_tokens)


async def response_stream(ai: Any, model: str) -> Any:
    ask = {"model": model, "input": TEXTS[0], "temperature": 0, "max_output_tokens": 12, "stream": True}
    events = [event async for event in await ai.responses.create(**ask)]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    kinds = [kind for kind, _ in groupby(event.type for event in events)]  # a slow engine joins tokens
    return kinds, text, events[-1].response.output_text


async def models(ai: Any, model: str) -> Any:
    return [card.id async for card in ai.models.list()] == [model]


def used(usage: Any) -> tuple[int, int]:
    return usage.prompt_tokens, usage.completion_tokens


def dumped(choice: Any) -> Any:
    """A choice as the client reads it, without the ids of tool calls."""
    told = choice.model_dump()
    for call in (told.get("message") or {}).get("tool_calls") or []:
        call.pop("id")
    return told


ASKS: dict[str, tuple[Ask, dict[str, Any]]] = {
    "chat": (chat, {}),
    "chat, max_completion_tokens": (chat, {"max_completion_tokens": 5}),
    "chat, logprobs": (chat, {"logprobs": True, "top_logprobs": 3}),
    "chat, several choices": (shape, {"n": 3, "temperature": 1}),
    "chat, a form that must be kept": (
        chat,
        {
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": ANSWER}},
            "max_tokens": 40,
        },
    ),
    "chat, streamed": (chat_stream, {}),
    "chat, streamed with usage": (chat_stream, {"stream_options": {"include_usage": True}}),
    "completion, stop": (completions, {"prompt": TEXTS[3], "stop": ["."], "max_tokens": 40}),
    "completion, logprobs": (completions, {"logprobs": 3}),
    "completion, token ids": (completions, {"prompt": [11, 12, 13]}),
    "completion, several prompts": (completions, {"prompt": TEXTS[:2]}),
    "response": (response, {}),
    "response, streamed": (response_stream, {}),
    "models": (models, {}),
}


async def test_every_answer_is_that_of_plain_vllm(pair: Engines) -> None:
    model = pair["plain"].model_name
    async with clients(pair) as (routed, plain, _, _):
        for name, (ask, more) in ASKS.items():
            expected = await ask(plain, model, **more)
            assert await ask(routed, model, **more) == expected, name


@pytest.mark.parametrize("name", ["chat", "chat, streamed", "response", "response, streamed"])
async def test_prompts_are_computed_on_the_prefill_worker(pair: Engines, name: str) -> None:
    ask, more = ASKS[name]
    async with clients(pair) as (routed, _, url, http):
        before = await prefilled(http, pair)
        await ask(routed, pair["plain"].model_name, **more)
        assert await prefilled(http, pair) == before + 1
        assert await total(http, url, "eldr_fallbacks_total") == 0


async def prefilled(http: aiohttp.ClientSession, pair: Engines) -> float:
    return await total(http, pair["prefill"].url, "vllm:request_success_total")


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({"max_tokens": 0}, openai.BadRequestError),
        ({"model": "no-such-model"}, openai.NotFoundError),
        ({"messages": [{"role": "user", "content": "word " * 2000}]}, openai.BadRequestError),
        ({"temperature": -1}, openai.BadRequestError),
        ({"tools": [TOOL], "tool_choice": "required"}, openai.BadRequestError),  # it has no parser of calls
    ],
)
async def test_mistakes_are_the_exceptions_of_plain_vllm(
    pair: Engines, wrong: dict[str, Any], kind: type[Exception]
) -> None:
    async with clients(pair) as (routed, plain, _, _):
        told = []
        for ai in (plain, routed):
            with pytest.raises(kind) as error:
                await ai.chat.completions.create(
                    **{"model": pair["plain"].model_name, "messages": MESSAGES, **GREEDY, **wrong}
                )
            told.append((type(error.value), error.value.body))
        assert told[0] == told[1]


async def test_a_model_that_embeds_nothing_says_so_as_plain_vllm_does(pair: Engines) -> None:
    async with clients(pair) as (routed, plain, _, _):
        told = []
        for ai in (plain, routed):
            with pytest.raises(openai.APIStatusError) as error:
                await ai.embeddings.create(model=pair["plain"].model_name, input="text")
            told.append((error.value.status_code, error.value.body))
        assert told[0] == told[1]
        assert told[0][0] in (400, 404)


async def test_leaving_a_stream_frees_the_worker(pair: Engines) -> None:
    async with clients(pair) as (routed, _, url, http):
        before = await generated(http, pair)
        ask = {"model": pair["plain"].model_name, "messages": MESSAGES, "max_tokens": 800, "stream": True}
        stream = await routed.chat.completions.create(**ask, extra_body={"ignore_eos": True})
        async for _ in stream:
            break
        await stream.close()
        await settled(http, url, pair)
        assert 0 < await generated(http, pair) - before < 800


async def test_messages_with_the_anthropic_client(pair: Engines) -> None:
    anthropic = pytest.importorskip(
        "anthropic", reason="the anthropic package is not installed (vLLM needs it)"
    )
    ask = {"model": pair["plain"].model_name, "messages": MESSAGES, "max_tokens": 12}
    ask["extra_body"] = {"temperature": 0}
    async with clients(pair) as (_, _, url, _):
        told = []
        for base in (pair["plain"].url, url):
            async with anthropic.AsyncAnthropic(base_url=base, api_key="x", max_retries=0) as ai:
                whole = await ai.messages.create(**ask)
                async with ai.messages.stream(**ask) as stream:
                    streamed = await stream.get_final_message()
            told += [
                (one.stop_reason, [block.text for block in one.content], one.usage.output_tokens)
                for one in (whole, streamed)
            ]
        assert told == [told[0]] * 4
        assert told[0][2] == 12


async def test_tokens_of_a_text_and_back(pair: Engines) -> None:
    model = pair["plain"].model_name
    async with clients(pair) as (_, _, url, http):
        told = []
        for base in (pair["plain"].url, url):
            async with http.post(f"{base}/tokenize", json={"model": model, "prompt": TEXTS[0]}) as answer:
                tokens = (await answer.json())["tokens"]
            async with http.post(f"{base}/detokenize", json={"model": model, "tokens": tokens}) as answer:
                told.append((tokens, (await answer.json())["prompt"]))
        assert told[0] == told[1]
        assert told[0][1] == TEXTS[0]
