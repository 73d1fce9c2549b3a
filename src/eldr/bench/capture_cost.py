"""What capture costs: two real engines side by side, one with EldrConnector and one with the stock
NixlConnector.

    python -m eldr.bench.capture_cost --out docs/bench/capture.json

The engines get the same requests in turn, so that whatever else runs on the machine meets both. A prefill
is a request of one output token; a decode step is the difference between a long answer and a short one,
divided by the steps between them. The memory of the count cache is arithmetic and is given for large models
too.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from eldr import embedded
from eldr.bench.engine import EngineSpec, LocalEngine, running
from eldr.bench.machine import describe_machine
from eldr.files import replacing
from eldr.program import EXISTING_FOLDER, run

PROMPT_TOKENS = (32, 128, 512, 960)
BATCHES = (1, 8, 32)
SHORT, LONG = 2, 34
"""Output tokens of the two answers whose difference is the time of LONG - SHORT decode steps."""

Payload = dict[str, Any]
Pair = dict[str, list[float]]


@dataclass(frozen=True)
class Shape:
    """What the memory of the count cache depends on.

    layers: that hold KV in one block of the pool (of a hybrid model: in one of its groups).
    """

    moe_layers: int
    experts: int
    layers: int
    kv_heads: int
    head_size: int
    block_tokens: int
    kv_bytes: int = 2

    def memory(self) -> Payload:
        """Bytes that the counts add to a KV block, and their share of its KV bytes at tensor parallel size
        1.
        """
        counts = self.moe_layers * self.experts
        kv = 2 * self.layers * self.kv_heads * self.head_size * self.kv_bytes * self.block_tokens
        return {
            "block_tokens": self.block_tokens,
            "count_bytes_a_block": counts,
            "kv_bytes_a_block": kv,
            "share": counts / kv,
        }


SHAPES = {
    "embedded model": Shape(4, 64, 4, 2, 32, 32),
    "Qwen3-30B-A3B": Shape(48, 128, 48, 4, 128, 16),
    "Qwen3-235B-A22B": Shape(94, 128, 94, 4, 128, 16),
    "GPT-OSS-120B (two KV groups of 18 layers)": Shape(36, 128, 18, 8, 64, 16),
}


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="JSON file to write."
)
@click.option("--model", type=EXISTING_FOLDER, help="Model folder. [the embedded one]")
@click.option("--rounds", default=40, show_default=True, type=click.IntRange(2), help="Samples of each.")
def main(out: Path, model: Path | None, rounds: int) -> None:
    """Measure what capture costs, beside the stock connector."""
    report = measure(model or embedded.model_path(), rounds)
    content = json.dumps(report, indent=1)
    with replacing(out) as file:
        file.write(content.encode() + b"\n")
    click.echo(content)


def measure(model: Path, rounds: int) -> Payload:
    """The whole report; `rounds` samples of each quantity and engine."""
    with tempfile.TemporaryDirectory() as logs:
        specs = [
            EngineSpec(model=model, log_dir=Path(logs), name="on", connector="eldr"),
            EngineSpec(model=model, log_dir=Path(logs), name="off", connector="nixl"),
        ]
        with running([LocalEngine(spec) for spec in specs]) as engines:
            return {
                "evidence": "engine",
                "machine": describe_machine(),
                "load_average": list(os.getloadavg()),
                "rounds": rounds,
                "prefill": {str(n): prefill(engines, n, rounds) for n in PROMPT_TOKENS},
                "decode_step": {str(batch): decode_step(engines, batch, rounds) for batch in BATCHES},
                "memory": {name: shape.memory() for name, shape in SHAPES.items()},
            }


def prefill(engines: Sequence[LocalEngine], tokens: int, rounds: int) -> Payload:
    """Time of a prefill of `tokens` new tokens, ms."""

    def sample(engine: LocalEngine, rng: np.random.Generator) -> float:
        return _timed(lambda: _complete(engine, _prompt(rng, tokens), 1))

    return _compare(engines, sample, rounds)


def decode_step(engines: Sequence[LocalEngine], batch: int, rounds: int) -> Payload:
    """Time of one decode step with `batch` requests, ms."""

    def sample(engine: LocalEngine, rng: np.random.Generator) -> float:
        prompts = [_prompt(rng, 16) for _ in range(batch)]
        with ThreadPoolExecutor(batch) as pool:

            def answers(length: int) -> None:
                list(pool.map(lambda prompt: _complete(engine, prompt, length), prompts))

            return (_timed(lambda: answers(LONG)) - _timed(lambda: answers(SHORT))) / (LONG - SHORT)

    return _compare(engines, sample, max(rounds // 2, 2))


def _compare(
    engines: Sequence[LocalEngine], sample: Callable[[LocalEngine, np.random.Generator], float], rounds: int
) -> Payload:
    times: Pair = {engine.spec.name: [] for engine in engines}
    for number in range(rounds + 2):
        order = engines if number % 2 else engines[::-1]
        for engine in order:
            value = sample(engine, np.random.default_rng(number))
            if number >= 2:  # the first two warm up
                times[engine.spec.name].append(value)
    return summary(times["on"], times["off"])


def summary(on: Sequence[float], off: Sequence[float]) -> Payload:
    """Medians of paired samples in ms, and the median difference and ratio with their quartiles."""
    differences = [one - other for one, other in zip(on, off, strict=True)]
    ratios = [one / other for one, other in zip(on, off, strict=True)]
    return {
        "on_ms": round(statistics.median(on), 3),
        "off_ms": round(statistics.median(off), 3),
        "difference_ms": _quartiles(differences),
        "ratio": _quartiles(ratios),
    }


def _quartiles(values: Sequence[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return {"p25": round(low, 3), "p50": round(middle, 3), "p75": round(high, 3)}


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


def _prompt(rng: np.random.Generator, tokens: int) -> list[int]:
    return [int(token) for token in rng.integers(10, 4096, tokens)]


def _complete(engine: LocalEngine, prompt: list[int], max_tokens: int) -> None:
    """One greedy answer; the counts are asked for where there is something to ask."""
    body: Payload = {
        "model": engine.model_name,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    if engine.spec.connector == "eldr":
        body["kv_transfer_params"] = {"eldr": {}}
    request = urllib.request.Request(
        f"{engine.url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        answer.read()


if __name__ == "__main__":
    run(main)
