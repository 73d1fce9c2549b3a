"""Counts on a real engine in fp32 against Hugging Face's router logits: not one assignment may differ."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from eldr.bench.engine import LocalEngine
from eldr.capture.tracing import decode_ids
from eldr.wire import decode_counts
from engine import reference
from engine.client import Answer, complete, complete_all, metrics, random_prompts

pytestmark = pytest.mark.engine

ASK = {"kv_transfer_params": {"eldr": {}}}
TRACE = {"kv_transfer_params": {"eldr": {"trace": "ids"}}}
LAYERS, EXPERTS, TOP_K = 4, 64, 4


def assert_exact(model: Path, prompt: list[int], answer: Answer) -> None:
    """The prompt's counts, and the trace if there is one, are Hugging Face's."""
    assert answer.params is not None
    counts = decode_counts(answer.params["eldr"])
    assert counts.tokens == counts.covered == len(prompt)
    assert counts.counts.sum() == len(prompt) * LAYERS * TOP_K
    expected = reference.choices(model, prompt + answer.token_ids[:-1])
    in_prompt, fed_back = expected.ids[: len(prompt)], expected.ids[len(prompt) :]
    assert_same(counts.counts, reference.count(in_prompt, EXPERTS), expected.tied)
    if "eldr_decode_ids" not in answer.params:
        return
    ids = decode_ids(answer.params["eldr_decode_ids"])
    assert_same(reference.count(ids, EXPERTS), reference.count(fed_back, EXPERTS), expected.tied)
    if not expected.tied:
        np.testing.assert_array_equal(np.sort(ids, axis=-1), fed_back)
    decode = decode_counts(answer.params["eldr_decode"])
    assert decode.tokens == len(ids) == len(answer.token_ids) - 1
    np.testing.assert_array_equal(decode.counts, reference.count(ids, EXPERTS))


def assert_same(counts: NDArray[np.integer], expected: NDArray[np.integer], tied: bool) -> None:
    """Equal; where two experts tie in fp32, one choice and what follows from it may differ."""
    assert reference.mismatches(counts, expected) <= (0.01 * expected.sum() if tied else 0)


def test_counts_come_with_the_very_step_that_ends_the_request(tight: LocalEngine, model: Path) -> None:
    """Pins an order of vLLM's: request_finished, then update_connector_output, then serialisation."""
    (prompt,) = random_prompts(1, [50])
    assert_exact(model, prompt, complete(tight, prompt, 1, **ASK))


def test_full_prefix_hit(tight: LocalEngine, model: Path) -> None:
    (prompt,) = random_prompts(2, [110])
    complete(tight, prompt, **ASK)
    before = metrics(tight)
    again = complete(tight, prompt, **ASK)
    hits = metrics(tight) - before
    assert hits["vllm:prefix_cache_hits_total"] == 96  # three full blocks of 32
    assert_exact(model, prompt, again)


@pytest.mark.parametrize("length", [64, 96])
def test_full_hit_of_whole_blocks_recomputes_the_last(tight: LocalEngine, model: Path, length: int) -> None:
    (prompt,) = random_prompts(length, [length])
    complete(tight, prompt, **ASK)
    assert_exact(model, prompt, complete(tight, prompt, **ASK))


def test_partial_prefix_hit(tight: LocalEngine, model: Path) -> None:
    shared, *tails = random_prompts(3, [70, 40, 55])
    for tail in tails:
        assert_exact(model, shared + tail, complete(tight, shared + tail, **ASK))


def test_blocks_filled_by_decoding_count_as_prompt_later(tight: LocalEngine, model: Path) -> None:
    """The second turn of a chat: its prompt hits blocks that output tokens of the first turn filled."""
    (prompt,) = random_prompts(4, [40])
    first = complete(tight, prompt, 60, **TRACE)
    assert_exact(model, prompt, first)
    before = metrics(tight)
    second = prompt + first.token_ids + random_prompts(5, [20])[0]
    answer = complete(tight, second, **ASK)
    assert (metrics(tight) - before)["vllm:prefix_cache_hits_total"] == 96
    assert_exact(model, second, answer)


def test_evicted_and_reused_blocks(tight: LocalEngine, model: Path) -> None:
    first, *flood = random_prompts(6, [120] + [500] * 6)
    complete(tight, first, **ASK)
    for prompt, answer in zip(flood, complete_all(tight, flood, 4, **ASK), strict=True):
        assert_exact(model, prompt, answer)
    before = metrics(tight)
    answer = complete(tight, first, **ASK)
    assert (metrics(tight) - before)["vllm:prefix_cache_hits_total"] == 0
    assert_exact(model, first, answer)


def test_chunked_prefill(tight: LocalEngine, model: Path) -> None:
    (prompt,) = random_prompts(7, [700])
    before = metrics(tight)
    answer = complete(tight, prompt, **ASK)
    assert (metrics(tight) - before)["eldr_steps_total{kind=prefill}"] == 6  # 700 tokens, 128 a step
    assert_exact(model, prompt, answer)


def test_preemption(tight: LocalEngine, model: Path) -> None:
    prompts = random_prompts(8, [270] * 8)
    before = metrics(tight)
    answers = complete_all(tight, prompts, 8, max_tokens=110, **TRACE)
    assert (metrics(tight) - before)["vllm:num_preemptions_total"] > 0
    for prompt, answer in zip(prompts, answers, strict=True):
        assert_exact(model, prompt, answer)


def test_many_different_requests_at_once(tight: LocalEngine, model: Path) -> None:
    rng = np.random.default_rng(9)
    stems = random_prompts(10, [64, 90, 33])
    tails = random_prompts(11, rng.integers(1, 250, 60).tolist())
    prompts = [stems[index % 3] + tail if index % 2 else tail for index, tail in enumerate(tails)]
    answers = complete_all(tight, prompts, 8, max_tokens=5, **TRACE)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert_exact(model, prompt, answer)


def test_no_trace_unless_asked_and_no_counts_either(tight: LocalEngine) -> None:
    (prompt,) = random_prompts(12, [40])
    assert complete(tight, prompt, 3).params is None
    answer = complete(tight, prompt, 3, **ASK)
    assert answer.params is not None
    assert set(answer.params) == {"eldr"}


def test_one_output_token_has_no_decode_step(tight: LocalEngine) -> None:
    (prompt,) = random_prompts(13, [40])
    answer = complete(tight, prompt, 1, **TRACE)
    assert answer.params is not None
    assert set(answer.params) == {"eldr"}


def test_active_experts_metric_and_step_log(tight: LocalEngine, model: Path) -> None:
    """Four requests in lock-step: their distinct experts a step and layer, from Hugging Face's choices."""
    steps, width = 12, 4
    (blocker,) = random_prompts(14, [768])  # whole chunks: while it runs there is no room for the four
    prompts = random_prompts(15, [20] * width)
    before, lines = metrics(tight), len(_step_log(tight))
    with ThreadPoolExecutor(width + 1) as pool:
        blocked = pool.submit(complete, tight, blocker)
        time.sleep(0.02)
        answers = list(pool.map(lambda prompt: complete(tight, prompt, steps), prompts))
        blocked.result()
    after = metrics(tight) - before
    log = _step_log(tight)[lines:]
    decode = [line for line in log if line["kind"] == "decode"]
    assert [line["batch"] for line in decode] == [width] * (steps - 1), "the four did not run in lock-step"

    pairs = zip(prompts, answers, strict=True)
    chosen = [reference.choices(model, prompt + answer.token_ids[:-1]).ids[20:] for prompt, answer in pairs]
    together = np.concatenate(chosen, axis=2)  # [steps - 1, L, width * k]
    distinct = np.array([[len(set(layer)) for layer in step] for step in together.tolist()])
    assert [line["active"] for line in decode] == distinct.tolist()
    assert after["eldr_active_experts_count"] == distinct.size
    assert after["eldr_active_experts_sum"] == distinct.sum()
    assert after["eldr_steps_total{kind=decode}"] == steps - 1


def test_nothing_went_unseen(tight: LocalEngine) -> None:
    assert metrics(tight)["eldr_unseen_choices_total"] == 0
    assert metrics(tight)["eldr_payloads_total{outcome=missing}"] == 0
    assert metrics(tight)["eldr_payloads_total{outcome=partial}"] == 0


def _step_log(engine: LocalEngine) -> list[dict[str, object]]:
    path = Path(str(engine.spec.options["step_log"]))
    return [json.loads(line) for line in path.read_text().splitlines()]
