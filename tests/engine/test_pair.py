"""Prefill and decode apart, by hand: the counts come with the hand-off, and the text is plain vLLM's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eldr.bench.engine import LocalEngine
from eldr.proxy.handoff import PREFILL_PARAMS
from eldr.wire import decode_counts
from engine import reference
from engine.client import complete, complete_all, metrics, random_prompts

pytestmark = pytest.mark.engine

Engines = dict[str, LocalEngine]

BF16_MISMATCH = 0.01
"""Bound on assignments that differ from Hugging Face's in bf16: rounding decides ties at the k-th place."""


@pytest.mark.parametrize("decoder", ["decode", "stock"])
def test_text_is_that_of_plain_vllm(pair: Engines, texts: list[list[int]], decoder: str) -> None:
    for prompt in [*texts[::5], *random_prompts(20, [33, 64, 257])]:
        leg = complete(pair["prefill"], prompt, 1, kv_transfer_params=PREFILL_PARAMS)
        assert leg.params is not None
        assert leg.params["do_remote_prefill"] is True
        counts = decode_counts(leg.params.pop("eldr"))
        assert counts.covered == len(prompt)
        answer = complete(pair[decoder], prompt, 24, kv_transfer_params=leg.params)
        assert answer.token_ids == complete(pair["plain"], prompt, 24).token_ids


def test_bf16_counts_differ_only_by_ties(pair: Engines, model: Path, texts: list[list[int]]) -> None:
    answers = complete_all(pair["prefill"], texts, 8, kv_transfer_params={"eldr": {}})
    wrong = own = total = 0
    for prompt, answer in zip(texts, answers, strict=True):
        assert answer.params is not None
        counts = decode_counts(answer.params["eldr"]).counts
        expected = reference.choices(model, prompt, torch.bfloat16)
        rounded = reference.count(expected.ids, counts.shape[1])
        exact = reference.count(reference.choices(model, prompt).ids, counts.shape[1])
        wrong += reference.mismatches(counts, rounded)
        own += reference.mismatches(exact, rounded)
        total += int(counts.sum())
    print(f"bf16: {wrong} of {total} assignments ({wrong / total:.3%}) differ from Hugging Face's in bf16,")
    print(f"which differs from its own in fp32 in {own} ({own / total:.3%})")
    assert wrong / total < BF16_MISMATCH


def test_trace_on_the_decode_worker(pair: Engines) -> None:
    (prompt,) = random_prompts(22, [100])
    leg = complete(pair["prefill"], prompt, 1, kv_transfer_params=PREFILL_PARAMS)
    assert leg.params is not None
    leg.params["eldr"] = {"trace": True}
    answer = complete(pair["decode"], prompt, 9, kv_transfer_params=leg.params)
    assert answer.params is not None
    decode = decode_counts(answer.params["eldr_decode"])
    assert decode.tokens == 8
    assert decode.counts.sum() == 8 * 4 * 4


def test_pulled_blocks_are_not_passed_off_as_counted(pair: Engines) -> None:
    """The decode worker knows the prompt's KV, not its counts: only the last prompt token ran here."""
    (prompt,) = random_prompts(23, [100])
    leg = complete(pair["prefill"], prompt, 1, kv_transfer_params=PREFILL_PARAMS)
    assert leg.params is not None
    leg.params["eldr"] = {}
    before = metrics(pair["decode"])
    answer = complete(pair["decode"], prompt, 3, kv_transfer_params=leg.params)
    assert answer.params is not None
    counts = decode_counts(answer.params["eldr"])
    assert (counts.tokens, counts.covered) == (100, 1)
    assert (metrics(pair["decode"]) - before)["eldr_payloads_total{outcome=partial}"] == 1


def test_decode_steps_are_counted_on_the_decode_worker(pair: Engines) -> None:
    (prompt,) = random_prompts(24, [64])
    leg = complete(pair["prefill"], prompt, 1, kv_transfer_params=PREFILL_PARAMS)
    assert leg.params is not None
    del leg.params["eldr"]
    before = metrics(pair["decode"])
    complete(pair["decode"], prompt, 10, kv_transfer_params=leg.params)
    after = metrics(pair["decode"]) - before
    assert after["eldr_steps_total{kind=decode}"] == 10  # the last prompt token, then nine output tokens
    assert after["eldr_active_experts_count"] == 10 * 4
    assert after["eldr_active_experts_sum"] == 10 * 4 * 4  # one request: top_k experts a layer
