"""Engines that the tests of this folder share; each is started once, when the first test asks for it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from eldr import embedded
from eldr.bench.engine import EngineSpec, LocalEngine, running

if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]

KV_BLOCK_BYTES_FP32 = 4 * 2 * 2 * 32 * 32 * 4
"""Of the embedded model: layers x (K, V) x KV heads x head size x tokens a block x bytes."""


@pytest.fixture(scope="session")
def model() -> Path:
    """The embedded model; ELDR_TEST_MODEL names another of the same shape."""
    given = os.environ.get("ELDR_TEST_MODEL")
    return Path(given) if given else embedded.model_path()


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engines")


@pytest.fixture(scope="session")
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
    """bf16: a prefill worker, decode workers with the plug-in and with the stock connector, and plain vLLM."""
    prefill = EngineSpec(model=model, log_dir=logs, name="prefill", role="kv_producer")
    specs = [
        prefill,
        EngineSpec(model=model, log_dir=logs, name="decode", role="kv_consumer"),
        EngineSpec(model=model, log_dir=logs, name="stock", connector="nixl", role="kv_consumer"),
        EngineSpec(model=model, log_dir=logs, name="plain", connector="none"),
    ]
    with running([LocalEngine(spec) for spec in specs]) as engines:
        yield {engine.spec.name: engine for engine in engines}
