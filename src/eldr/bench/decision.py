"""What one routing decision costs: payload to counts, counts to signature, signature to worker.

    python -m eldr.bench.decision --out FOLDER

Measured on made-up counts in the shape of Qwen3-30B-A3B (48 layers, 128 experts, top-8). The time depends on
the shape and hardly on the values.
"""

import json
import statistics
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

from eldr.bench.machine import describe_machine
from eldr.files import replacing
from eldr.policy import create_policy
from eldr.pool import Worker, WorkerPool
from eldr.program import run
from eldr.signature import SignatureTransform
from eldr.types import Counts, RoutingRequest
from eldr.wire import decode_counts, encode_counts

LAYERS, EXPERTS, TOP_K, PROMPT_TOKENS = 48, 128, 8, 1_000
POOL_SIZES = (16, 1024)
POLICIES = ("locality_band", "soft_locality")
CALLS = 2_000
"""Calls timed for each figure, one by one, so that other load on the machine hardly moves the median."""


def measure(name: str, workers: int, rng: np.random.Generator) -> dict[str, float]:
    """Return the median time in microseconds of each step of a policy's decision between decode workers."""
    calibration = np.stack([draw_counts(rng) for _ in range(64)])
    transform = SignatureTransform("idf").fit(calibration)
    payload = encode_counts(calibration[0], top_k=TOP_K, tokens=PROMPT_TOKENS)
    pool = WorkerPool(Worker(f"w{i}", f"http://w{i}") for i in range(workers))
    pool.set_centroids(transform.transform_many(calibration)[rng.integers(0, 64, workers)])
    policy = create_policy(name, rng=rng)
    request = RoutingRequest("r", transform.transform(calibration[0]))
    view = pool.view()

    def decide() -> None:
        signature = transform.transform(decode_counts(payload).counts)
        decision = policy.select(RoutingRequest("r", signature), pool.view())
        pool.reserve(decision.worker_id, PROMPT_TOKENS).release()

    return {
        "decode_us": median_us(lambda: decode_counts(payload)),
        "signature_us": median_us(lambda: transform.transform(calibration[0])),
        "view_us": median_us(pool.view),
        "select_us": median_us(lambda: policy.select(request, view)),
        "whole_us": median_us(decide),
    }


def draw_counts(rng: np.random.Generator) -> Counts:
    """Return counts [L, E] of PROMPT_TOKENS tokens that choose among skewed experts."""
    popularity = rng.gamma(0.5, size=(LAYERS, EXPERTS))
    share = popularity / popularity.sum(axis=1, keepdims=True)
    counts = np.minimum(rng.multinomial(PROMPT_TOKENS * TOP_K, share), PROMPT_TOKENS)
    for layer in counts:  # what was cut off at one choice a token goes to the least used experts
        while (missing := PROMPT_TOKENS * TOP_K - int(layer.sum())) > 0:
            least = int(layer.argmin())
            layer[least] += min(missing, PROMPT_TOKENS - int(layer[least]))
    return counts.astype(np.uint32)


def median_us(step: Callable[[], Any]) -> float:
    """Return the median time of a call."""
    return statistics.median(timeit.repeat(step, number=1, repeat=CALLS)) * 1e6


@click.command()
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Folder for decision.json.")
@click.option("--seed", default=0, show_default=True)
def main(out: Path | None, seed: int) -> None:
    """Measure a routing decision and print the median times."""
    measured = {
        (policy, workers): measure(policy, workers, np.random.default_rng(seed))
        for policy in POLICIES
        for workers in POOL_SIZES
    }
    for (policy, workers), times in measured.items():
        steps = ", ".join(f"{name.removesuffix('_us')} {time:.1f}" for name, time in times.items())
        print(f"{policy}, K = {workers}, {LAYERS} x {EXPERTS}, median us: {steps}")
    if out is not None:
        shape = {"layers": LAYERS, "experts": EXPERTS, "top_k": TOP_K, "prompt_tokens": PROMPT_TOKENS}
        rows = [
            {"policy": policy, "workers": workers, **times} for (policy, workers), times in measured.items()
        ]
        report = {"machine": describe_machine(), "shape": shape, "rows": rows}
        with replacing(out / "decision.json") as file:
            file.write(json.dumps(report, indent=2).encode() + b"\n")


if __name__ == "__main__":
    run(main)
