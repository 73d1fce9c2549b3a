"""Made-up runs for the tests of tables and plots."""

import numpy as np

from eldr.bench.load import Reply
from eldr.bench.results import PolicyRun
from eldr.bench.scrape import Steps
from eldr.bench.steplog import Step
from eldr.metrics.records import RequestRecord

LABELS = ("code", "law", "zh")


def reply(index: int, worker: str, tpot_s: float, ttft_s: float = 0.1, tokens: int = 11) -> Reply:
    arrival_s = index * 0.1
    first = arrival_s + ttft_s
    record = RequestRecord(
        request_id=str(index),
        path="/v1/completions",
        label=LABELS[index % len(LABELS)],
        started_at=1000.0 + arrival_s,
        arrival_s=arrival_s,
        first_token_s=first,
        finish_s=first + tpot_s * (tokens - 1),
        output_tokens=tokens,
        decode_worker=worker,
        outcome="ok",
    )
    return Reply(index, f"prompt {index}", record, f"text {index}")


def run(
    policy: str, active: float, tpot_s: float, repeat: int = 0, workers: int = 2, seed: int = 0
) -> PolicyRun:
    """A run of 30 requests over 10 s; two layers, batches of 6, `active` experts a step and layer."""
    rng = np.random.default_rng([seed, repeat])
    names = [f"d{n}" for n in range(workers)]
    local = policy not in ("round_robin", "random", "jsq", "p2c")
    places = [n % len(LABELS) % workers if local else int(rng.integers(workers)) for n in range(30)]
    replies = [reply(n, names[place], tpot_s * rng.uniform(0.9, 1.1)) for n, place in enumerate(places)]
    log = [Step(at, name, 6, active + np.sin(at)) for at in np.arange(0, 10, 0.1) for name in names]
    return PolicyRun(policy, repeat, replies, {name: steps(active, 500.0) for name in names}, log)


def steps(active: float, number: float) -> Steps:
    return Steps(
        active_sum=active * 2 * number, active_count=2 * number, decode_steps=number, tokens=6 * number
    )
