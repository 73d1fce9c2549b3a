"""Talks to a real engine as a client would, for the tests."""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from eldr.bench.engine import LocalEngine


@dataclass(frozen=True)
class Answer:
    """One completion: output token ids, text, and the transfer parameters that came with it."""

    token_ids: list[int]
    text: str
    params: dict[str, Any] | None


def complete(engine: LocalEngine, prompt: Sequence[int], max_tokens: int = 1, **body: Any) -> Answer:
    """A greedy completion of exactly `max_tokens` tokens."""
    body = {
        "model": engine.model_name,
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        **body,
    }
    request = urllib.request.Request(
        f"{engine.url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        answer = json.load(response)
    choice = answer["choices"][0]
    return Answer(choice["token_ids"], choice["text"], answer["kv_transfer_params"])


def complete_all(
    engine: LocalEngine, prompts: Sequence[Sequence[int]], concurrency: int, **body: Any
) -> list[Answer]:
    """`complete` for many prompts, at most `concurrency` at a time."""
    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(lambda prompt: complete(engine, prompt, **body), prompts))


def metrics(engine: LocalEngine) -> Counter[str]:
    """The engine's counters now, added up over their labels; `NAME{kind=VALUE}` for eldr_steps_total."""
    with urllib.request.urlopen(f"{engine.url}/metrics", timeout=10) as response:
        page = response.read().decode()
    totals: Counter[str] = Counter()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            totals[sample.name] += sample.value
            for label in ("kind", "outcome"):
                if label in sample.labels:
                    totals[f"{sample.name}{{{label}={sample.labels[label]}}}"] += sample.value
    return totals


def random_prompts(seed: int, lengths: Sequence[int], vocabulary: int = 4096) -> list[list[int]]:
    """Prompts of random token ids (0 to 9 left out: special tokens)."""
    rng = np.random.default_rng(seed)
    return [rng.integers(10, vocabulary, length).tolist() for length in lengths]
