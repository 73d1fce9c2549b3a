"""What routers cost: processor time a streamed chunk and a request, added time to first token, memory.

    python -m eldr.bench.router_cost --out docs/bench        (make bench-router)

The same mock engines, one router after the other in random order, each a fresh process:

    streams     every connection streams; chunks come at CHUNKS_PER_S in all, whatever the number of
                connections, and only the time in which all stream and none starts or ends is counted
    one token   requests of one token at ONE_TOKEN_RATE a second (Poisson), on the connections in turn

vllm-router and eldr hand off from prefill to decode; sglang-router cannot with these engines (it sends to
both at once), so it passes requests to decode engines alone. "Added" is to the same way without a router.
"""

import asyncio
import json
import os
import resource
import tempfile
from collections.abc import Coroutine
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import uvloop

from eldr.bench.connections import Path as Route
from eldr.bench.connections import Tally, Way, paced
from eldr.bench.decision import PROMPT_TOKENS, TOP_K, draw_counts
from eldr.bench.engine import free_port
from eldr.bench.machine import describe_machine
from eldr.bench.mock_engines import MODEL
from eldr.bench.proxies import PROXIES, Engines, installed, mock_engines, running
from eldr.bench.router_overhead import profile_of
from eldr.bench.usage import cpu_s, peak_bytes
from eldr.errors import ConfigError, EngineError
from eldr.files import replacing
from eldr.program import run
from eldr.types import ExpertCounts

CONNECTIONS = (64, 256, 1024)
CHUNKS_PER_S = 6_400
ONE_TOKEN_RATE = 200.0
SETTLE_S = 1.5
"""From the first chunk of the last stream to the start of the measurement."""

START_S, LATE_S = 3.0, 2.0
"""The time over which streams are asked for, and how much later they may all have begun."""

WITHOUT = {"none, hand-off": True, "none, decode only": False}
"""The ways without a router, and whether they prefill first."""


@dataclass(frozen=True)
class Plan:
    """How long a measurement is. window_s: of streams; requests: of one token; repeats: of all."""

    window_s: float
    requests: int
    repeats: int


FULL = Plan(window_s=6.0, requests=2_000, repeats=3)
SHORT = Plan(window_s=2.0, requests=400, repeats=1)


@dataclass
class Row:
    """One router at one number of connections, once. CPU in microseconds, None without a router."""

    router: str
    connections: int
    repeat: int
    cpu_per_chunk_us: float | None
    cpu_per_request_us: float | None
    ttft_ms: list[float]
    chunks: int
    peak_mib: float | None


async def measure_streams(ways: list[Way], tally: Tally, pid: int | None, plan: Plan) -> tuple[int, float]:
    """Chunks and processor seconds of a time in which all ways stream.

    Raises EngineError where they do not all begin in time, since beginnings cost more than what is measured.
    """
    interval_s = len(ways) / CHUNKS_PER_S
    span_s = START_S + LATE_S + plan.window_s + 2 * SETTLE_S
    tokens = int(span_s / interval_s) + 1
    tally.ttft_s.clear()

    async def stream(number: int) -> None:
        await asyncio.sleep(START_S * number / len(ways))
        await ways[number].send(tokens, round(interval_s * 1_000))

    async with asyncio.TaskGroup() as group:
        for number in range(len(ways)):
            group.create_task(stream(number))
        await asyncio.sleep(START_S)
        await _begun(tally, len(ways))
        await asyncio.sleep(SETTLE_S)
        before = tally.chunks, cpu_s(pid) if pid else 0.0
        await asyncio.sleep(plan.window_s)
        after = tally.chunks, cpu_s(pid) if pid else 0.0
    return after[0] - before[0], after[1] - before[1]


async def _begun(tally: Tally, streams: int) -> None:
    """Wait until so many streams have brought output."""
    try:
        async with asyncio.timeout(LATE_S):
            while len(tally.ttft_s) < streams:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    except TimeoutError:
        late = streams - len(tally.ttft_s)
        raise EngineError(
            f"{late} of {streams} streams did not begin; measure on a machine with less to do"
        ) from None


async def measure(route: Route, name: str, pid: int | None, connections: int, repeat: int, plan: Plan) -> Row:
    """Measure one router, or (without a process) the way without one."""
    tally = Tally()
    ways = [await route.open(tally) for _ in range(connections)]
    rng = np.random.default_rng(repeat)
    await paced(ways, ONE_TOKEN_RATE, connections, rng)  # every connection, and the router's own, is open
    chunks, stream_s = await measure_streams(ways, tally, pid, plan)
    tally.ttft_s.clear()
    before_s = cpu_s(pid) if pid else 0.0
    await paced(ways, ONE_TOKEN_RATE, plan.requests, rng)
    request_s = cpu_s(pid) - before_s if pid else 0.0
    row = Row(
        router=name,
        connections=connections,
        repeat=repeat,
        cpu_per_chunk_us=stream_s / chunks * 1e6 if pid else None,
        cpu_per_request_us=request_s / plan.requests * 1e6 if pid else None,
        ttft_ms=[round(ttft_s * 1_000, 4) for ttft_s in tally.ttft_s],
        chunks=chunks,
        peak_mib=peak_bytes(pid) / 2**20 if pid else None,
    )
    for way in ways:
        way.close()
    return row


def measure_router(
    name: str, connections: int, repeat: int, plan: Plan, engines: Engines, folder: Path, programs: Path
) -> Row:
    """Start a router (or none), measure it, end it."""
    if name in WITHOUT:
        route = Route(engines.decode[0], engines.prefill[0] if WITHOUT[name] else None)
        return _measured(measure(route, name, None, connections, repeat, plan))
    port = free_port()
    command = PROXIES[name].command(engines, port, folder / "p.safetensors", programs)
    with running(command, port, folder / "router.log") as pid:
        route = Route(f"http://127.0.0.1:{port}")
        return _measured(measure(route, name, pid, connections, repeat, plan))


def _row(name: str, connections: int, *rest: Any) -> Row:
    """One measurement; one that fails, as by other work on the machine, is made once more."""
    try:
        return measure_router(name, connections, *rest)
    except EngineError as error:
        print(f"{name} {connections}: {error}; once more", flush=True)
        return measure_router(name, connections, *rest)


def _measured(measurement: Coroutine[Any, Any, Row]) -> Row:
    """Run a measurement. Of its clients' failures, the first is raised."""
    try:
        return uvloop.run(measurement)
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


def save_profile(path: Path, workers: int) -> None:
    """A profile whose centroids are made-up counts: one for each decode engine."""
    rng = np.random.default_rng(1)
    counts = [ExpertCounts(draw_counts(rng), TOP_K, PROMPT_TOKENS, PROMPT_TOKENS) for _ in range(workers)]
    profile_of(counts, MODEL).save(path)


@click.command()
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Folder for router.json.")
@click.option(
    "--programs", type=click.Path(path_type=Path), default=Path("build/routers/bin"), show_default=True
)
@click.option("--router", "names", multiple=True, help="Only these. [all]")
@click.option("--connections", "sizes", multiple=True, type=int, help="[64, 256, 1024]")
@click.option("--short", is_flag=True, help="Less precise, for work on the router.")
def main(
    out: Path | None,
    programs: Path,
    names: tuple[str, ...],
    sizes: tuple[int, ...],
    short: bool,
) -> None:
    """Measure what routers cost, print it, and write all single values."""
    names = names or (*WITHOUT, *PROXIES)
    for name in names:
        if name not in PROXIES and name not in WITHOUT:
            raise ConfigError(f"no router {name!r}; choose from {', '.join((*WITHOUT, *PROXIES))}")
    plan, rng, rows = SHORT if short else FULL, np.random.default_rng(0), []
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    load_average = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="eldr-bench-") as folder, mock_engines() as engines:
        save_profile(Path(folder) / "p.safetensors", len(engines.decode))
        for repeat in range(plan.repeats):
            for connections in sizes or CONNECTIONS:
                for name in rng.permutation(names).tolist():
                    row = _row(name, connections, repeat, plan, engines, Path(folder), programs)
                    rows.append(asdict(row))
                    print(line(row), flush=True)
    report: dict[str, Any] = {
        "machine": describe_machine(),
        "peers": installed(programs),
        "load_average": load_average,
        "plan": asdict(plan),
        "chunks_per_s": CHUNKS_PER_S,
        "one_token_rate": ONE_TOKEN_RATE,
        "rows": rows,
    }
    if out is not None:
        with replacing(out / "router.json") as file:
            file.write(json.dumps(report, indent=1).encode() + b"\n")


def line(row: Row) -> str:
    """One measurement for the terminal."""
    p50, p99 = np.percentile(row.ttft_ms, (50, 99))
    cpu = (
        ""
        if row.cpu_per_chunk_us is None
        else (
            f"chunk {row.cpu_per_chunk_us:6.1f} us, request {row.cpu_per_request_us:6.0f} us, "
            f"peak {row.peak_mib:4.0f} MiB, "
        )
    )
    return f"{row.router:20} {row.connections:5}: {cpu}TTFT p50 {p50:.2f} ms, p99 {p99:.2f} ms"


if __name__ == "__main__":
    run(main)
