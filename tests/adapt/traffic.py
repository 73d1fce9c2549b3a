"""Windows of a simulated router whose step cost is known."""

from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec.structs import replace

from eldr.adapt.choice import JSQ, Choice
from eldr.adapt.window import Window
from eldr.signature.transform import SignatureTransform
from eldr.sim import ClusterSpec, Kinds, Rates, Requests, StepCost, simulate
from eldr.sim.cost import Moe, Rest

LAYERS, EXPERTS, TOP_K, DOMAINS, WORKERS = 2, 16, 2, 4, 4
PROMPT_TOKENS = 64
COST = StepCost(
    name="true",
    gpu="none",
    model="none",
    layers=LAYERS,
    experts=EXPERTS,
    top_k=TOP_K,
    moe=Moe(fixed_us=0.0, active_us=500.0),
    rest=Rest(fixed_us=4000.0, token_us=45.0),
)
"""4 ms + 1 ms an active expert + 45 us a request: the ratio of the two is near that of the prior."""

BATCH_LED = replace(
    COST, name="batch-led", moe=Moe(fixed_us=0.0, active_us=0.0), rest=Rest(fixed_us=6000.0, token_us=3000.0)
)
"""6 ms + 3 ms a request, whatever its experts."""

CONSTANT = replace(COST, name="constant", moe=Moe(fixed_us=0.0, active_us=0.0), rest=Rest(fixed_us=20000.0))


def noise_of(spread: float) -> Callable[[np.random.Generator, int], Any]:
    """Log-normal, for `window`."""
    return lambda rng, number: rng.lognormal(0, spread, number)


def chances(local: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    """[DOMAINS, LAYERS, EXPERTS]: a domain has 4 experts of its own, which get `local` of its choices."""
    own = np.zeros((DOMAINS, LAYERS, EXPERTS), np.float32)
    for domain in range(DOMAINS):
        own[domain, :, 4 * domain : 4 * domain + 4] = TOP_K / 4
    return local * own + (1 - local) * np.float32(TOP_K / EXPERTS)


def window(
    seed: int = 0,
    number: int = 1000,
    *,
    choice: Choice = JSQ,
    local: float = 0.9,
    cost: StepCost = COST,
    rate: float = 55.0,
    noise: Callable[[np.random.Generator, int], Any] | None = None,
) -> Window:
    """What a router keeps of requests of DOMAINS domains with outputs of 20 to 60 tokens.

    noise: factors [n] on the times from first token to end, as a client sees them.
    """
    rng = np.random.default_rng(seed)
    domain = rng.integers(0, DOMAINS, number)
    rates = chances(local)
    counts = rng.binomial(PROMPT_TOKENS, rates[domain]).astype(np.uint16)
    transform = transform_of()
    requests = Requests(
        arrival_s=rng.exponential(1 / rate, number).cumsum(),
        prompt_tokens=np.full(number, PROMPT_TOKENS),
        output_tokens=rng.integers(20, 61, number),
        kind=np.arange(number),
        prefix=np.full(number, -1),
        prefix_tokens=np.zeros(number, np.int64),
        kinds=Kinds(np.full(number, ""), Rates(rates[domain]), transform.transform_many(counts)),
    )
    records = simulate(
        requests, ClusterSpec(prefill=0, decode=WORKERS), choice.create(seed), centroids(), cost
    ).records
    finish_s = records.finish_s
    if noise is not None:
        finish_s = records.first_token_s + (finish_s - records.first_token_s) * noise(rng, number)
    return Window(
        worker_ids=tuple(f"d{k}" for k in range(WORKERS)),
        worker=records.decode_worker.astype(np.int64),
        decided_s=records.decided_s,
        first_token_s=records.first_token_s,
        finish_s=finish_s,
        prompt_tokens=requests.prompt_tokens,
        output_tokens=requests.output_tokens,
        counts=counts,
        top_k=TOP_K,
    )


def transform_of() -> SignatureTransform:
    """Plain counts, all layers."""
    ones = np.ones((LAYERS, EXPERTS), np.float32)
    return SignatureTransform.fitted("counts", ones, np.arange(LAYERS))


def centroids() -> np.ndarray[Any, np.dtype[np.float32]]:
    """[WORKERS, LAYERS * EXPERTS]: a domain each."""
    rows = chances(1.0).reshape(DOMAINS, -1)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)
