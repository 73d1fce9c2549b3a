"""Figures 10 to 18 and Table 2: one simulated run of one router, in numbers.

A run is fixed by model, workload, pool, rate and seed; all routers of a figure get the same requests. The
seed draws everything: the synthetic model (or which recorded requests calibrate), the fit, arrivals and
lengths.
"""

from typing import Any

import numpy as np

from eldr.errors import ConfigError
from eldr.paper.measure.fitting import Fitted, fitted, label_table
from eldr.paper.measure.worlds import World, world_of
from eldr.sim import ClusterSpec, Kinds, Requests, SimResult, simulate

SECONDS = 20
LEAST_REQUESTS = 900
"""A run takes arrivals for so many seconds, or until there are so many requests."""

WINDOW = (0.25, 0.7)
"""Requests that arrive in this part of a run are measured: before, the batches fill; after, they drain."""

OUTPUT_MEDIAN, OUTPUT_SIGMA, OUTPUT_MOST = 400.0, 0.6, 2048
"""Output lengths, log-normal and cut off. The paper's are not in our notes on it."""

BLOCK = 16
CACHE_BLOCKS = 100_000
"""Blocks of a prefill worker's prefix cache, where there is one: 1.6 million tokens."""


def served(
    *,
    model: str,
    workload: str,
    router: str,
    rate: float,
    seed: int,
    prefill: int = 8,
    decode: int = 16,
    tau: float = 0.1,
    transformation: str = "idf",
    clustering: str = "balanced",
    gated: bool = False,
    prefix_tokens: int = 0,
    prefix_cache: bool = False,
) -> dict[str, Any]:
    """Serve Poisson arrivals of `rate` requests a second.

    router: a policy's name. tau, transformation, clustering ("balanced", "vanilla"): of locality_band.
    gated: of a draw of the model that has gate probabilities too.
    prefix_tokens: of each prompt that all requests of its label share; prefix_cache: whether they are kept.
    Times in ms, of the requests in WINDOW; active experts and batch a decode step, over all steps of the run;
    busiest: requests of the busiest worker over the mean.
    """
    world = world_of(model, workload, seed, gated)
    fit = fitted(model, workload, seed, decode, transformation, clustering, gated)
    requests = _requests(world, fit, rate, seed, prefix_tokens)
    spec = ClusterSpec(
        prefill=prefill,
        decode=decode,
        prefix_blocks=CACHE_BLOCKS if prefix_cache else 0,
        block_tokens=BLOCK,
    )
    result = simulate(
        requests, spec, router, fit.centroids, world.cost, seed, options=_options(router, world, decode, tau)
    )
    return _numbers(result)


def _options(router: str, world: World, decode: int, tau: float) -> dict[str, Any]:
    if router == "locality_band":
        return {"tau": tau}
    return {"workers": label_table(world.labels, decode)} if router == "domain_label" else {}


def _requests(world: World, fit: Fitted, rate: float, seed: int, prefix_tokens: int) -> Requests:
    number = max(LEAST_REQUESTS, int(rate * SECONDS))
    rng = np.random.default_rng([seed, 2])
    kind = rng.integers(len(world.labels), size=number)
    label = np.unique(world.labels, return_inverse=True)[1]
    output = np.rint(rng.lognormal(np.log(OUTPUT_MEDIAN), OUTPUT_SIGMA, number))
    return Requests(
        arrival_s=rng.exponential(1 / rate, number).cumsum(),
        prompt_tokens=world.prompt_tokens[kind] + prefix_tokens,
        output_tokens=np.clip(output, 2, OUTPUT_MOST).astype(np.int64),
        kind=kind,
        prefix=label[kind] if prefix_tokens else np.full(number, -1),
        prefix_tokens=np.full(number, prefix_tokens),
        kinds=Kinds(world.labels, world.experts, fit.signatures),
    )


def _numbers(result: SimResult) -> dict[str, Any]:
    records = result.records
    span_s = records.arrival_s[-1]
    inside = (records.arrival_s >= WINDOW[0] * span_s) & (records.arrival_s <= WINDOW[1] * span_s)
    tpot = 1e3 * records.tpot_s[inside]
    per_worker = np.bincount(records.decode_worker[inside], minlength=len(result.steps.steps))
    if np.isnan(tpot).any():
        raise ConfigError("a simulated request did not end; give the decode workers more room")
    return {
        "requests": int(inside.sum()),
        "tpot_p50_ms": float(np.median(tpot)),
        "tpot_p99_ms": float(np.percentile(tpot, 99)),
        "ttft_p50_ms": float(1e3 * np.median(records.ttft_s[inside])),
        "active_experts": result.steps.active_experts,
        "batch": result.steps.mean_batch,
        "busiest": float(per_worker.max() / per_worker.mean()),
    }
