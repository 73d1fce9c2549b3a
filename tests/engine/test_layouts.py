"""Other MoE layouts, random weights, fp32: dense layers between, a shared expert, hybrid attention."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from eldr.bench.engine import EngineSpec, LocalEngine, running
from eldr.capture.tracing import decode_ids
from eldr.wire import decode_counts
from engine import models, reference
from engine.client import complete, complete_all, random_prompts

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def engines(
    tmp_path_factory: pytest.TempPathFactory, model: Path, logs: Path
) -> Iterator[dict[str, LocalEngine]]:
    folder = tmp_path_factory.mktemp("layouts")
    specs = [
        EngineSpec(
            model=models.build(layout, folder / layout, tokenizer=model),
            log_dir=logs,
            name=layout,
            dtype="float32",
            max_num_batched_tokens=256,
        )
        for layout in models.LAYOUTS
    ]
    with running([LocalEngine(spec) for spec in specs]) as started:
        yield {engine.spec.name: engine for engine in started}


@pytest.mark.parametrize("layout", models.LAYOUTS)
def test_counts_and_trace_are_exact(engines: dict[str, LocalEngine], layout: str) -> None:
    engine = engines[layout]
    shared, *tails = random_prompts(30, [140, 3, 60, 200, 33, 90])
    prompts = [shared + tail for tail in tails] + tails
    ask = {"kv_transfer_params": {"eldr": {"trace": "ids"}}}
    answers = [
        complete(engine, prompts[0], 6, **ask),
        *complete_all(engine, prompts[1:], 4, max_tokens=6, **ask),
    ]
    wrong = total = tied = 0
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.params is not None
        expected = reference.choices(engine.spec.model, prompt + answer.token_ids[:-1])
        counts = decode_counts(answer.params["eldr"])
        layers, experts = counts.counts.shape
        assert counts.covered == len(prompt)
        assert layers == expected.ids.shape[1]  # MoE layers only
        wrong += reference.mismatches(counts.counts, reference.count(expected.ids[: len(prompt)], experts))
        total += int(counts.counts.sum())
        tied += expected.tied
        if not expected.tied:
            ids = decode_ids(answer.params["eldr_decode_ids"])
            np.testing.assert_array_equal(np.sort(ids, axis=-1), expected.ids[len(prompt) :])
    print(f"{engine.spec.name}: {wrong} of {total} assignments differ, {tied} prompts with ties")
    assert wrong <= (0.01 * total if tied else 0)
