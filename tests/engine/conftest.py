"""Engines that tests share. `pair` serves the last two modules, so it does not wait beside other engines."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from eldr import embedded
from eldr.bench.engine import EngineSpec, LocalEngine, running

if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob = ["test_[!l]*.py", "test_layouts.py"]  # test_launcher needs no vLLM
else:
    from tokenizers import Tokenizer

KV_BLOCK_BYTES_FP32 = 4 * 2 * 2 * 32 * 32 * 4
"""Of the embedded model: layers x (K, V) x KV heads x head size x tokens a block x bytes."""


@pytest.fixture(scope="session")
def model() -> Path:
    """The embedded model; ELDR_TEST_MODEL names another of the same shape."""
    given = os.environ.get("ELDR_TEST_MODEL")
    return Path(given) if given else embedded.model_path()


@pytest.fixture(scope="session")
def texts(model: Path) -> list[list[int]]:
    """Token ids of the first prompts of every domain that the model was trained on."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    files = sorted(embedded.prompts_path().glob("*.jsonl"))
    lines = [line for file in files for line in file.read_text("utf-8").splitlines()[:6]]
    return [tokenizer.encode(json.loads(line)["prompt"]).ids for line in lines]


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engines")


@pytest.fixture(scope="module")
def tight(model: Path, logs: Path) -> Iterator[LocalEngine]:
    """fp32, 86 KV blocks, 128 tokens a step, 8 requests: chunks, evictions and preemptions come easily."""
    spec = EngineSpec(
        model=model,
        log_dir=logs,
        name="tight",
        dtype="float32",
        kv_cache_bytes=86 * KV_BLOCK_BYTES_FP32,
        max_num_batched_tokens=128,
        max_num_seqs=8,
        options={"step_log": str(logs / "steps.jsonl")},
    )
    with LocalEngine(spec) as engine:
        yield engine


@pytest.fixture(scope="session")
def pair(model: Path, logs: Path) -> Iterator[dict[str, LocalEngine]]:
    """bf16: a prefill worker, decode workers with the plug-in and with the stock connector, plain vLLM."""
    prefill = EngineSpec(model=model, log_dir=logs, name="prefill", role="kv_producer")
    specs = [
        prefill,
        EngineSpec(model=model, log_dir=logs, name="decode", role="kv_consumer"),
        EngineSpec(model=model, log_dir=logs, name="stock", connector="nixl", role="kv_consumer"),
        EngineSpec(model=model, log_dir=logs, name="plain", connector="none"),
    ]
    with running([LocalEngine(spec) for spec in specs]) as engines:
        yield {engine.spec.name: engine for engine in engines}
