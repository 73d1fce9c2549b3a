"""Requests as a router saw them, of the mock engine's model."""

from collections.abc import Sequence

import numpy as np

from eldr.adapt.window import Seen
from eldr.metrics.records import RequestRecord
from support.mock_engine import domain_counts


def record(number: int, *, decided_s: float, worker: str = "d0", **given: object) -> RequestRecord:
    """A request that was decided at some time and took a second for 11 tokens."""
    facts: dict[str, object] = {
        "request_id": str(number),
        "path": "/v1/completions",
        "started_at": decided_s,
        "arrival_s": decided_s - 0.1,
        "decided_s": decided_s,
        "first_token_s": decided_s + 0.05,
        "finish_s": decided_s + 1.05,
        "prompt_tokens": 20,
        "output_tokens": 11,
        "decode_worker": worker,
        "outcome": "ok",
    }
    return RequestRecord(**(facts | given))  # type: ignore[arg-type]


def sample(domains: Sequence[str], start_s: float = 0.0, seed: int = 0) -> list[Seen]:
    """One request a tenth of a second, of these domains; counts vary from prompt to prompt."""
    rng = np.random.default_rng(seed)
    made = []
    for number, domain in enumerate(domains):
        noise = rng.integers(0, 6, domain_counts(domain, 1).shape)
        counts = (domain_counts(domain, 20) + noise).astype(np.uint16)
        made.append(Seen(record(number, decided_s=start_s + number / 10), counts))
    return made
