"""The router between real engines: a client sees what plain vLLM answers, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from eldr.bench.router_overhead import profile_of
from eldr.profile.artifact import Profile
from eldr.proxy.handoff import PREFILL_PARAMS
from eldr.wire import decode_counts
from engine.client import complete, random_prompts
from engine.routed import DECODE, TEXTS, Engines, generated, router, settled
from support.stack import CHAT, COMPLETIONS

pytestmark = pytest.mark.engine


async def post(http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> tuple[int, Any, str | None]:
    """Status, parsed answer (a list of events for a stream), and the decode worker."""
    async with http.post(url, json=body) as answer:
        data = await answer.read()
        worker = answer.headers.get("x-eldr-decode-worker")
    if not data.startswith(b"data:"):
        return answer.status, json.loads(data), worker
    events = [event.removeprefix(b"data: ") for event in data.split(b"\n\n") if event]
    assert events.pop() == b"[DONE]"
    return answer.status, [json.loads(event) for event in events], worker


def told(answer: Any) -> Any:
    """What an answer says: everything but ids, times, names and what belongs to one engine."""
    if isinstance(answer, list):
        chunks = [choice for event in answer for choice in event["choices"]]
        usage = [event["usage"] for event in answer if event.get("usage")]
        parts = [choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in chunks]
        return "".join(parts), chunks[-1]["finish_reason"], usage
    if "error" in answer:
        return answer
    return answer["choices"], answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]


def bodies() -> list[tuple[str, dict[str, Any]]]:
    made: list[tuple[str, dict[str, Any]]] = []
    for stream in (False, True):
        for text in TEXTS:
            made += [(COMPLETIONS, {"prompt": text, "max_tokens": 24, "stream": stream})]
        messages = [{"role": "user", "content": TEXTS[0]}]
        made += [
            (COMPLETIONS, {"prompt": random_prompts(1, [100])[0], "max_tokens": 9, "stream": stream}),
            (COMPLETIONS, {"prompt": TEXTS[1], "max_tokens": 8, "min_tokens": 6, "stream": stream}),
            (COMPLETIONS, {"prompt": TEXTS[1], "stream": stream}),
            (COMPLETIONS, {"prompt": TEXTS[:2], "max_tokens": 6, "stream": False}),
            (COMPLETIONS, {"prompt": TEXTS[:1], "max_tokens": 6, "stream": stream}),
            (COMPLETIONS, {"prompt": TEXTS[2], "max_tokens": 1, "stream": stream}),
            (COMPLETIONS, {"prompt": TEXTS[2], "max_tokens": 12, "logprobs": 2, "stream": False}),
            (COMPLETIONS, {"prompt": TEXTS[2], "max_tokens": 5, "echo": True, "stream": stream}),
            (COMPLETIONS, {"prompt": TEXTS[2], "max_tokens": 3, "prompt_logprobs": 1}),
            (COMPLETIONS, {"prompt": TEXTS[3], "max_tokens": 30, "stop": ["."], "stream": stream}),
            (CHAT, {"messages": messages, "max_completion_tokens": 16, "stream": stream}),
            (CHAT, {"messages": messages, "max_tokens": 5, "logprobs": True, "top_logprobs": 2}),
        ]
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    return [*made, (COMPLETIONS, {"prompt": TEXTS[0], "max_tokens": 7, **usage})]


async def test_every_kind_of_request_is_answered_as_by_plain_vllm(pair: Engines) -> None:
    async with router(pair) as (url, http):
        for path, body in bodies():
            body = {"model": pair["plain"].model_name, "temperature": 0, **body}
            status, expected, _ = await post(http, pair["plain"].url + path, body)
            assert status == 200, expected
            status, got, _ = await post(http, url + path, body)
            assert status == 200, got
            assert told(got) == told(expected), body
        await settled(http, url, pair)


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "x", "max_tokens": 0},
        {"prompt": "x", "max_tokens": "many"},
        {"prompt": "x", "min_tokens": "few"},
        {"prompt": "x", "temperature": -1},
        {"prompt": [1] * 2000},
        {"prompt": "x", "model": "no-such-model"},
    ],
)
async def test_what_plain_vllm_refuses_is_refused_in_the_same_words(
    pair: Engines, body: dict[str, Any]
) -> None:
    async with router(pair) as (url, http):
        body = {"model": pair["plain"].model_name, **body}
        expected = await post(http, pair["plain"].url + COMPLETIONS, body)
        assert expected[0] >= 400
        got = await post(http, url + COMPLETIONS, body)
        assert got[:2] == expected[:2]
        await settled(http, url, pair)


@pytest.mark.parametrize(
    "wrong", [{"min_tokens": 9, "max_tokens": 2}, {"stream_options": 3}, {"n": 2, "temperature": 0}]
)
async def test_other_mistakes_are_a_400_too(pair: Engines, wrong: dict[str, Any]) -> None:
    async with router(pair) as (url, http):
        body = {"model": pair["plain"].model_name, "prompt": "x", "stream": True, **wrong}
        assert (await post(http, url + COMPLETIONS, body))[0] == 400
        await settled(http, url, pair)


async def test_several_choices_have_their_indices(pair: Engines) -> None:
    async with router(pair) as (url, http):
        body = {"model": pair["plain"].model_name, "prompt": [TEXTS[0], TEXTS[1]], "n": 2, "max_tokens": 4}
        body["ignore_eos"] = True
        _, answer, _ = await post(http, url + COMPLETIONS, body)
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        assert answer["usage"]["completion_tokens"] == 16


async def test_eight_at_once_are_right_and_split_over_both_workers(pair: Engines) -> None:
    prompts = random_prompts(5, [60 + 10 * index for index in range(16)])
    expected = [complete(pair["plain"], prompt, 16).text for prompt in prompts]
    async with router(pair) as (url, http):
        gate = asyncio.Semaphore(8)

        async def one(prompt: list[int]) -> tuple[str, str | None]:
            body = {"model": pair["plain"].model_name, "prompt": prompt, "max_tokens": 16}
            async with gate:
                answer = await post(http, url + COMPLETIONS, {**body, "temperature": 0, "ignore_eos": True})
            return answer[1]["choices"][0]["text"], answer[2]

        got = await asyncio.gather(*map(one, prompts))
        same = [text == right for (text, _), right in zip(got, expected, strict=True)]
        assert sum(same) >= 15, "bf16: a tie in a batch of another size may fall the other way"
        workers = [worker for _, worker in got]
        assert set(workers) == set(DECODE)
        await settled(http, url, pair)


async def test_a_profile_sends_each_prompt_to_the_worker_of_its_experts(pair: Engines) -> None:
    prompts = random_prompts(6, [120, 120])
    profile = profile_for(pair, prompts)
    async with router(pair, "locality_band", profile) as (url, http):
        for prompt, worker in [(prompts[1], "stock"), (prompts[0], "decode"), (prompts[1], "stock")]:
            body = {"model": pair["plain"].model_name, "prompt": prompt, "max_tokens": 4, "temperature": 0}
            assert (await post(http, url + COMPLETIONS, body))[2] == worker
        page = await (await http.get(url + "/metrics")).text()
        assert "eldr_fallbacks_total{" not in page
        assert "eldr_similarity_count 3.0" in page


async def test_a_client_that_leaves_is_cancelled_on_the_engine(pair: Engines) -> None:
    async with router(pair) as (url, http):
        body = {"model": pair["plain"].model_name, "prompt": TEXTS[0], "max_tokens": 800, "ignore_eos": True}
        before = await generated(http, pair)
        answer = await http.post(url + COMPLETIONS, json={**body, "stream": True})
        await answer.content.readany()
        answer.close()
        await settled(http, url, pair)
        assert 0 < await generated(http, pair) - before < 800


def profile_for(pair: Engines, prompts: list[list[int]]) -> Profile:
    """A profile whose i-th centroid is the signature of the i-th prompt."""
    legs = [complete(pair["prefill"], prompt, 1, kv_transfer_params=PREFILL_PARAMS) for prompt in prompts]
    counts = [decode_counts((leg.params or {})["eldr"]) for leg in legs]
    return profile_of(counts, pair["prefill"].model_name)
