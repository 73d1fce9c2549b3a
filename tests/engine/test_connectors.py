"""Other ways to run an engine: two ranks, other connectors around and underneath, speculative decoding."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eldr.bench.engine import EngineSpec, LocalEngine, running
from eldr.capture.tracing import decode_ids
from eldr.proxy.handoff import PREFILL_PARAMS
from eldr.wire import decode_counts
from engine import reference
from engine.client import complete, complete_all, metrics, random_prompts

pytestmark = pytest.mark.engine

Engines = dict[str, LocalEngine]

CHILD = {
    "kv_connector": "EldrConnector",
    "kv_role": "kv_both",
    "kv_buffer_device": "cpu",
    "kv_connector_extra_config": {"eldr": {"inner": "NixlConnector"}},
}
MULTI = {
    "kv_connector": "MultiConnector",
    "kv_role": "kv_both",
    "kv_buffer_device": "cpu",
    "kv_connector_extra_config": {"connectors": [CHILD]},
}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}


@pytest.fixture(scope="module")
def engines(model: Path, logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    on_disk = {
        "kv_connector": "EldrConnector",
        "kv_connector_module_path": "eldr.capture.connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "shared_storage_path": str(tmp_path_factory.mktemp("kv")),
            "eldr": {"inner": "ExampleConnector"},
        },
    }

    def spec(name: str, **settings: Any) -> EngineSpec:
        return EngineSpec(model=model, log_dir=logs, name=name, dtype="float32", **settings)

    specs = [
        # Over processes: everything that travels between scheduler and workers is pickled.
        spec("tp2", tensor_parallel_size=2, executor="mp"),
        spec("multi", kv_transfer_config=MULTI),
        spec("disk", kv_transfer_config=on_disk, extra_args=["--disable-hybrid-kv-cache-manager"]),
        spec("drafts", extra_args=["--speculative-config", json.dumps(NGRAM)]),
    ]
    with running([LocalEngine(spec) for spec in specs]) as started:
        yield {engine.spec.name: engine for engine in started}


@pytest.mark.parametrize("name", ["tp2", "multi", "disk", "drafts"])
def test_counts_are_exact(engines: Engines, model: Path, name: str) -> None:
    engine = engines[name]
    prompts = random_prompts(50, [20, 64, 150, 300])
    ask = {"kv_transfer_params": {"eldr": {"trace": "ids"}}}
    for prompt, answer in zip(prompts, complete_all(engine, prompts, 4, max_tokens=6, **ask), strict=True):
        assert answer.params is not None
        expected = reference.choices(model, prompt + answer.token_ids[:-1])
        counts = decode_counts(answer.params["eldr"])
        assert counts.covered == len(prompt)
        in_prompt = reference.count(expected.ids[: len(prompt)], counts.counts.shape[1])
        allowed = 0.01 * in_prompt.sum() if expected.tied else 0
        assert reference.mismatches(counts.counts, in_prompt) <= allowed
        ids = decode_ids(answer.params["eldr_decode_ids"])
        assert ids.shape == (5, 4, 4)
        if not expected.tied:
            np.testing.assert_array_equal(np.sort(ids, axis=-1), expected.ids[len(prompt) :])
    assert metrics(engine)["eldr_active_experts_count"] > 0
    assert metrics(engine)["eldr_unseen_choices_total"] == 0


@pytest.mark.parametrize("name", ["tp2", "multi", "drafts"])
def test_the_hand_off_is_there(engines: Engines, name: str) -> None:
    (prompt,) = random_prompts(51, [40])
    leg = complete(engines[name], prompt, 1, kv_transfer_params=PREFILL_PARAMS)
    assert leg.params is not None
    assert {"do_remote_prefill", "remote_block_ids", "eldr"} <= set(leg.params)


def test_drafts_are_traced_but_not_left_in_the_count_cache(engines: Engines, model: Path) -> None:
    """A rejected draft is written over, so blocks that decoding filled have no counts that can be trusted."""
    engine = engines["drafts"]
    (stem,) = random_prompts(52, [8])
    prompt = stem * 5  # repeats itself, so that there is something to draft
    answer = complete(engine, prompt, 60, kv_transfer_params={"eldr": {"trace": "ids"}})
    assert metrics(engine)["vllm:spec_decode_num_draft_tokens_total"] > 0
    assert answer.params is not None
    expected = reference.choices(model, prompt + answer.token_ids[:-1])
    ids = decode_ids(answer.params["eldr_decode_ids"])
    if not expected.tied:
        np.testing.assert_array_equal(np.sort(ids, axis=-1), expected.ids[40:])
    second = prompt + answer.token_ids + random_prompts(53, [20])[0]
    again = complete(engine, second, 1, kv_transfer_params={"eldr": {}})
    assert again.params is not None
    counts = decode_counts(again.params["eldr"])
    # Of the 96 tokens that hit (three blocks of 32), 40 are the first prompt's.
    assert (counts.tokens, counts.covered) == (120, 120 - 96 + 40)
