"""Tensor parallelism over processes (everything that travels is pickled), and as a MultiConnector's child."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from eldr.bench.engine import EngineSpec, LocalEngine, running
from eldr.capture.tracing import decode_ids
from eldr.wire import decode_counts
from engine import reference
from engine.client import PREFILL_LEG, complete, complete_all, metrics, random_prompts

pytestmark = pytest.mark.engine

MULTI = {
    "kv_connector": "MultiConnector",
    "kv_role": "kv_both",
    "kv_buffer_device": "cpu",
    "kv_connector_extra_config": {
        "connectors": [
            {
                "kv_connector": "EldrConnector",
                "kv_role": "kv_both",
                "kv_buffer_device": "cpu",
                "kv_connector_extra_config": {"eldr": {"inner": "NixlConnector"}},
            }
        ]
    },
}


@pytest.fixture(scope="module")
def engines(model: Path, logs: Path) -> Iterator[dict[str, LocalEngine]]:
    specs = [
        EngineSpec(
            model=model, log_dir=logs, name="tp2", dtype="float32", tensor_parallel_size=2, executor="mp"
        ),
        EngineSpec(model=model, log_dir=logs, name="multi", dtype="float32", kv_transfer_config=MULTI),
    ]
    with running([LocalEngine(spec) for spec in specs]) as started:
        yield {engine.spec.name: engine for engine in started}


@pytest.mark.parametrize(("name", "seed"), [("tp2", 50), ("multi", 51)])
def test_counts_are_exact(engines: dict[str, LocalEngine], model: Path, name: str, seed: int) -> None:
    engine = engines[name]
    prompts = random_prompts(seed, [20, 64, 150, 300])
    ask = {"kv_transfer_params": {"eldr": {"trace": "ids"}}}
    for prompt, answer in zip(prompts, complete_all(engine, prompts, 4, max_tokens=6, **ask), strict=True):
        assert answer.params is not None
        expected = reference.choices(model, prompt + answer.token_ids[:-1], torch.float32)
        counts = decode_counts(answer.params["eldr"])
        assert counts.covered == len(prompt)
        in_prompt = reference.count(expected.ids[: len(prompt)], counts.counts.shape[1])
        allowed = 0.01 * in_prompt.sum() if expected.tied else 0
        assert reference.mismatches(counts.counts, in_prompt) <= allowed
        assert decode_ids(answer.params["eldr_decode_ids"]).shape[0] == 5
    leg = complete(engine, prompts[0], 1, kv_transfer_params=PREFILL_LEG)
    assert leg.params is not None
    assert {"do_remote_prefill", "eldr"} <= set(leg.params)
    assert metrics(engine)["eldr_active_experts_count"] > 0
