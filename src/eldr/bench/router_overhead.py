"""What the router and the capture add to the time to first token (TTFT), on real engines.

    python -m eldr.bench.router_overhead --out docs/bench/router_overhead.json

Three ways for a request, in random order, one request at a time, each with a prompt of its own, all of one
length in a round:

    stock    by hand: a prefill worker with the stock NixlConnector, then the decode worker
    capture  by hand: a prefill worker with ELDR's connector, then the decode worker
    router   the same two workers through `eldr serve` with locality_band

By hand means: this process does what the router does (prefill, pass the parameters on, stream), without a
router. Overhead is the difference within a round, so what drifts on the machine cancels out. A second request
by way of the stock worker in each round is not recorded: it keeps both prefill workers equally warm.
"""

import asyncio
import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aiohttp
import click
import numpy as np
from rich.console import Console

from eldr import __version__, embedded
from eldr.bench.engine import EngineSpec, LocalEngine, running
from eldr.bench.machine import describe_machine
from eldr.bench.router import RouterProcess
from eldr.clock import MonotonicClock
from eldr.errors import EngineError
from eldr.files import replacing
from eldr.metrics.summary import Spread, spread
from eldr.profile.artifact import Profile, ProfileInfo, routing_fingerprint
from eldr.program import run
from eldr.proxy.handoff import PREFILL_PARAMS
from eldr.types import ExpertCounts
from eldr.wire import decode_counts

WAYS = ("stock", "capture", "router")
PROMPT_TOKENS = (64, 128, 256)
VOCABULARY = 4_000
"""Token ids below this exist in the embedded model's tokenizer; the first ten are special."""

OUTPUT_TOKENS = 4
WARM_UP_ROUNDS = 5

Body = dict[str, Any]


async def measure(
    engines: dict[str, LocalEngine], router_url: str, rounds: int, seed: int
) -> list[dict[str, Any]]:
    """One row a round: its prompt tokens and the TTFT in seconds of each way."""
    rng, rows = np.random.default_rng(seed), []
    urls = {way: engines[way].url for way in ("stock", "capture")}
    async with aiohttp.ClientSession() as http:
        for number in range(rounds + WARM_UP_ROUNDS):
            row: dict[str, Any] = {"prompt_tokens": PROMPT_TOKENS[number % len(PROMPT_TOKENS)]}
            for way in rng.permutation([*WAYS, "stock"]).tolist():
                prompt = rng.integers(10, VOCABULARY, row["prompt_tokens"]).tolist()
                body = {"prompt": prompt, "max_tokens": OUTPUT_TOKENS, "temperature": 0, "ignore_eos": True}
                if way == "router":
                    row[way] = await ttft_s(http, router_url, body)
                else:
                    row[way] = await by_hand_s(http, urls[way], engines["decode"].url, body)
            rows.append(row)
    return rows[WARM_UP_ROUNDS:]


async def by_hand_s(http: aiohttp.ClientSession, prefill: str, decode: str, body: Body) -> float:
    """TTFT in seconds without a router: prefill, then decode with the parameters of its answer."""
    clock = MonotonicClock()
    started_s = clock.now_s()
    params = await prefilled(http, prefill, body)
    params.pop("eldr", None)
    return clock.now_s() - started_s + await ttft_s(http, decode, {**body, "kv_transfer_params": params})


async def prefilled(http: aiohttp.ClientSession, url: str, body: Body) -> dict[str, Any]:
    """The transfer parameters of a prefill worker's answer."""
    leg = {**body, "max_tokens": 1, "kv_transfer_params": PREFILL_PARAMS}
    async with http.post(f"{url}/v1/completions", json=leg) as answer:
        params = (await answer.json()).get("kv_transfer_params")
    if not isinstance(params, dict):
        raise EngineError(f"{url} answered a prefill with status {answer.status} and without parameters")
    return params


async def ttft_s(http: aiohttp.ClientSession, url: str, body: Body) -> float:
    """Seconds until the first piece of a stream; the rest is read too."""
    clock = MonotonicClock()
    started_s = clock.now_s()
    async with http.post(f"{url}/v1/completions", json={**body, "stream": True}) as answer:
        first = await answer.content.readany()
        first_s = clock.now_s() - started_s
        if answer.status != 200 or not first.startswith(b"data: {") or b'"error"' in first:
            raise EngineError(f"{url} answered with status {answer.status}: {first[:200]!r}")
        await answer.read()
    return first_s


def profile_of(counts: list[ExpertCounts], model: str) -> Profile:
    """A profile without calibration: worker i takes what resembles `counts[i]`."""
    rows = np.array([one.counts.reshape(-1) for one in counts], np.float32)
    layers, experts = counts[0].counts.shape
    info = ProfileInfo(
        model=model,
        layers=layers,
        experts=experts,
        top_k=counts[0].top_k,
        fingerprint=routing_fingerprint(layers, experts, counts[0].top_k),
        transformation="counts",
        tau=0.1,
        rho=None,
        calibration_requests=len(counts),
        seed=0,
        created_at="1970-01-01T00:00:00+00:00",
        eldr_version=__version__,
    )
    return Profile(
        idf=np.ones((layers, experts), np.float32),
        kept_layers=np.arange(layers),
        centroids=rows / np.linalg.norm(rows, axis=1, keepdims=True),
        cluster_sizes=np.ones(len(counts), np.int64),
        info=info,
    )


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Spreads in milliseconds: TTFT of each way, and the differences within a round."""

    def ms(seconds: list[float]) -> dict[str, Any]:
        sample = spread(1_000 * value for value in seconds)
        assert isinstance(sample, Spread)
        return asdict(sample)

    differences = {
        "router": ("router", "capture"),
        "capture": ("capture", "stock"),
        "both": ("router", "stock"),
    }
    return {
        "ttft_ms": {way: ms([row[way] for row in rows]) for way in WAYS},
        "added_ms": {name: ms([row[b] - row[a] for row in rows]) for name, (b, a) in differences.items()},
    }


async def _profile(engine: LocalEngine) -> Profile:
    async with aiohttp.ClientSession() as http:
        params = await prefilled(http, engine.url, {"prompt": list(range(10, 74)), "temperature": 0})
    return profile_of([decode_counts(params["eldr"])], engine.model_name)


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="JSON file to write."
)
@click.option(
    "--model", type=click.Path(path_type=Path, exists=True), help="Model folder. [the embedded one]"
)
@click.option("--rounds", default=150, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(out: Path, model: Path | None, rounds: int, seed: int) -> None:
    """Measure what router and capture add to the TTFT, print it and write it with all single values."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="eldr-overhead-") as folder:
        logs = Path(folder)
        folder_of_model = model or embedded.model_path()
        specs = (
            EngineSpec(folder_of_model, logs, "stock", connector="nixl", role="kv_producer"),
            EngineSpec(folder_of_model, logs, "capture", connector="eldr", role="kv_producer"),
            EngineSpec(folder_of_model, logs, "decode", connector="nixl", role="kv_consumer"),
        )
        made = [LocalEngine(spec) for spec in specs]
        console.print("starting three engines (about a minute)")
        with running(made):
            engines = {engine.spec.name: engine for engine in made}
            asyncio.run(_profile(engines["capture"])).save(logs / "p.safetensors")
            workers = {"p0": engines["capture"].url}, {"d0": engines["decode"].url}
            with RouterProcess(
                *workers, "locality_band", logs / "p.safetensors", logs / "router.log"
            ) as router:
                console.print(f"{rounds} rounds")
                rows = asyncio.run(measure(engines, router.url, rounds, seed))
    summary = summarize(rows)
    for table, samples in summary.items():
        for name, sample in samples.items():
            console.print(f"{table:8} {name:8} p50 {sample['p50']:7.2f}   p90 {sample['p90']:7.2f}")
    report = {"evidence": "engine", "machine": describe_machine(), "rounds": rounds, "seed": seed}
    with replacing(out) as file:
        file.write(json.dumps({**report, **summary, "rows": rows}, indent=1).encode())


if __name__ == "__main__":
    run(main)
