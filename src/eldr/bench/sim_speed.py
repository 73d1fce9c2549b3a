"""How fast the simulator is: `make bench-sim`.

Made-up requests in the shape of Qwen3-30B-A3B (48 layers, 128 experts, top-8) and signatures of full length;
the time depends on the shape and hardly on the values. Both targets are printed with what was reached.
"""

import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
import numpy as np

from eldr.bench.documents import replace_part
from eldr.bench.machine import describe_machine
from eldr.files import replacing
from eldr.program import run
from eldr.sim import (
    ClusterSpec,
    Kinds,
    Rates,
    Requests,
    lognormal_lengths,
    make_requests,
    mixed_kinds,
    named_cost,
    poisson_arrivals,
    simulate,
)

KINDS, DOMAINS = 400, 4
RATE = 10.0
"""Requests a second and decode worker."""


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """One run. cpu_s: of this one process on one core; wall_s: with what else ran on the machine.

    peak_gib: largest memory of the process so far. target_s: what cpu_s is to stay below.
    """

    policy: str
    decode_workers: int
    requests: int
    cpu_s: float
    wall_s: float
    peak_gib: float
    target_s: float
    target_gib: float
    mean_batch: float
    active_experts: float


def made_up_kinds(rng: np.random.Generator) -> Kinds:
    """Requests of four domains with experts of their own."""
    layers, experts, top_k = 48, 128, 8
    domain = rng.gamma(0.3, size=(DOMAINS, layers, experts))
    label = np.arange(KINDS) % DOMAINS
    weight = domain[label] * rng.gamma(3.0, size=(KINDS, layers, experts))
    rates = np.minimum(1, weight / weight.sum(axis=2, keepdims=True) * top_k).astype(np.float32)
    signatures = rates.reshape(KINDS, -1)
    signatures /= np.linalg.norm(signatures, axis=1, keepdims=True)
    return Kinds(np.array([f"domain{k}" for k in label]), Rates(rates), signatures)


def made_up_requests(kinds: Kinds, count: int, workers: int, rng: np.random.Generator) -> Requests:
    """Poisson arrivals; lengths with medians of 600 and 200 tokens."""
    arrivals = poisson_arrivals(count, RATE * workers, rng)
    prompt, output = lognormal_lengths(count, 600, 0.8, rng), lognormal_lengths(count, 200, 0.6, rng)
    return make_requests(kinds, arrivals, mixed_kinds(kinds, count, rng), prompt, output)


def measure(policy: str, workers: int, count: int, target_s: float, seed: int = 0) -> Speed:
    """Make requests and simulate them; making them does not count."""
    rng = np.random.default_rng(seed)
    kinds = made_up_kinds(rng)
    requests = made_up_requests(kinds, count, workers, rng)
    assert kinds.signatures is not None
    centroids = kinds.signatures[rng.integers(0, KINDS, workers)]
    spec = ClusterSpec(prefill=workers // 2, decode=workers)
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    result = simulate(requests, spec, policy, centroids, named_cost("h200-qwen3-30b-a3b"), seed)
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    summary = result.summary
    return Speed(
        policy=policy,
        decode_workers=workers,
        requests=count,
        cpu_s=cpu_s,
        wall_s=wall_s,
        peak_gib=peak / 2**30,
        target_s=target_s,
        target_gib=4.0,
        mean_batch=summary.mean_batch or 0.0,
        active_experts=summary.active_experts or 0.0,
    )


SIZES = ((16, 10_000, 5.0), (1024, 100_000, 60.0), (1024, 1_000_000, 600.0))
"""Decode workers, requests, and seconds that a run is to take at most."""


POLICIES = ("jsq", "locality_band")


class Report(msgspec.Struct, frozen=True):
    """All runs, of which each may be from another day."""

    machine: dict[str, object]
    rows: list[Speed]


@click.command()
@click.option(
    "--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="Folder to fill."
)
@click.option("--page", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="To fill.")
@click.option("--policy", "policies", multiple=True, type=click.Choice(POLICIES), help="Only these.")
@click.option("--requests", "sizes", multiple=True, type=int, help="Only runs of so many requests.")
def main(out: Path, page: Path | None, policies: tuple[str, ...], sizes: tuple[int, ...]) -> None:
    """Measure the simulator's speed; what is left out stays as it was measured before."""
    for workers, count, target_s in SIZES:
        for policy in policies or POLICIES:
            if count in (sizes or (count,)):
                row = measure(policy, workers, count, target_s)
                print(
                    f"{policy}: {workers} decode workers, {count} requests: {row.cpu_s:.1f} s of one core "
                    f"(target {target_s:g}), {row.wall_s:.1f} s by the clock, {row.peak_gib:.2f} GiB",
                    flush=True,
                )
                _keep(row, out / "sim_speed.json")
    if page is not None:
        replace_part(page, "speed", table(_report(out / "sim_speed.json").rows))


def _keep(row: Speed, path: Path) -> None:
    """Put a run in place of an earlier one of the same kind."""
    rows = {(r.decode_workers, r.requests, r.policy): r for r in _report(path).rows}
    rows[row.decode_workers, row.requests, row.policy] = row
    report = Report(describe_machine(), [rows[key] for key in sorted(rows)])
    with replacing(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")


def _report(path: Path) -> Report:
    return msgspec.json.decode(path.read_bytes(), type=Report) if path.is_file() else Report({}, [])


def table(rows: Sequence[Speed]) -> str:
    """The runs as Markdown."""
    lines = [
        "| decode workers | requests | policy | mean batch | seconds | target | GiB | target |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.decode_workers:,} | {r.requests:,} | {r.policy} | {r.mean_batch:.0f} | {r.cpu_s:.1f} "
        f"| {r.target_s:g} | {r.peak_gib:.2f} | {r.target_gib:g} |"
        for r in rows
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    run(main)
