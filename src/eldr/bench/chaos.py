"""Engines that fail, come and go at random behind a router under load: nothing may leak, hang or mix.

    python -m eldr.bench.chaos --out docs/bench/chaos.json        (make chaos)

`eldr serve` runs as a process of its own, with short time-outs. Engines are killed, hung, restarted,
cured, added and removed for some minutes under streams that never pause. Then all engines are well again,
and what must hold is checked: no reservation is left in the router's ledger, no client was left hanging,
no answer was cut off without an error or had another request's text, none was told that no engine is there
while some had long been well, and every request after it ends well. What an overloaded machine did is told
apart (eldr.bench.chaos_lag).
"""

import asyncio
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import click
import yaml

from eldr.bench.chaos_clients import HANG_S, OVERLOADED, VIOLATIONS, Clients
from eldr.bench.chaos_engine import ChaosEngine, counts_of
from eldr.bench.chaos_lag import Overload
from eldr.bench.chaos_tormentor import Tormentor
from eldr.bench.engine import free_port
from eldr.bench.machine import describe_machine
from eldr.bench.proxies import running
from eldr.bench.router_overhead import profile_of
from eldr.bench.usage import peak_bytes
from eldr.files import replacing

FIRST = {"prefill": 3, "decode": 4}
SETTLE_S = 30.0
"""For what is left to end, once all engines are well."""
BREAKERS_S = 5.0
PROBES = 50
ASK_S = aiohttp.ClientTimeout(total=30)
PROGRAM = "from eldr.cli import main; main()"
"""The router, as a program for Python."""
ADMIN_KEY = "chaos"

SETTINGS: dict[str, Any] = {
    "health_interval_s": 0.5,
    "health_timeout_s": 1.0,
    "connect_timeout_s": 1.0,
    "idle_timeout_s": 3.0,
    "breaker": {"open_s": 0.5, "longest_open_s": 4.0},
}
"""Shorter than in production, so that more happens in a minute."""


@asynccontextmanager
async def router(
    engines: dict[str, list[ChaosEngine]], folder: Path, processes: int
) -> AsyncIterator[tuple[str, str, int]]:
    """The URLs of a router before some engines and of its admin API, and its process id."""
    port, admin_port, log = free_port(), free_port(), folder / "router.log"
    profile, key, settings = folder / "p.safetensors", folder / "key", folder / "eldr.yaml"
    profile_of([counts_of(domain) for domain in range(FIRST["decode"])], "chaos").save(profile)
    key.write_text(ADMIN_KEY, encoding="utf-8")
    urls = {role: [engine.url for engine in those] for role, those in engines.items()}
    admin = {"port": admin_port, "key_file": str(key)}
    given = {
        **SETTINGS,
        **urls,
        "profile": str(profile),
        "port": port,
        "admin": admin,
        "processes": processes,
    }
    settings.write_text(yaml.safe_dump(given), encoding="utf-8")
    command = [sys.executable, "-c", PROGRAM, "serve", "--config", str(settings)]
    started = running(command, port, log)  # waits for the router, which waits for engines of this loop
    process = await asyncio.to_thread(started.__enter__)
    try:
        yield f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}", process
    finally:
        await asyncio.to_thread(started.__exit__, None, None, None)


async def in_flight(http: aiohttp.ClientSession, url: str) -> int:
    """Requests in the router's ledger."""
    async with http.get(f"{url}/metrics") as answer:
        samples = re.findall(r"^eldr_in_flight_requests\{.*\} (\S+)", await answer.text(), re.M)
    return int(sum(map(float, samples)))


async def settled(count: Callable[[], Awaitable[int]]) -> int:
    """What is left once nothing is, or after SETTLE_S."""
    until_s = time.monotonic() + SETTLE_S
    while (left := await count()) and time.monotonic() < until_s:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    return left


async def chaos(seconds: float, streams: int, seed: int, folder: Path, processes: int = 1) -> dict[str, Any]:
    """Run it; return the report."""
    rng, blocks = random.Random(seed), dict[str, str]()
    engines = {role: [await ChaosEngine(blocks).start() for _ in range(n)] for role, n in FIRST.items()}
    async with (
        router(engines, folder, processes) as (url, admin, process),
        aiohttp.ClientSession(timeout=ASK_S) as http,
    ):
        tormentor = Tormentor(engines, blocks, admin, ADMIN_KEY, http, rng)
        overload = Overload()
        watching = asyncio.create_task(overload.run())
        clients = Clients(url, random.Random(seed + 1), overload, tormentor.served)
        load = asyncio.create_task(clients.run(streams))
        torment = asyncio.create_task(tormentor.run())
        await asyncio.wait((load, torment), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        clients.stopping = tormentor.stopping = True
        await torment
        await tormentor.calm()
        await load
        reserved = await settled(lambda: in_flight(http, url))
        on_engines = await settled(tormentor.running)
        ends = dict(clients.ends.most_common())
        after = await probes(clients, http)
        peak = peak_bytes(process)
        if not watching.cancel():
            watching.result()  # it ends by itself only with an error
        await tormentor.end()
    report = {
        "requests": sum(ends.values()),
        "ends": ends,
        "longest_s": round(clients.longest_s, 1),
        "late_by_an_overloaded_machine": clients.late - ends.get("hung", 0),
        "overload": overload.report(),
        "events": dict(tormentor.events.most_common()),
        "left_in_ledger": reserved,
        "left_on_engines": on_engines,
        "requests_after_it": dict(after),
        "router_peak_mib": round(peak / 2**20, 1),
    }
    return report | {"violations": violations(report)}


async def probes(clients: Clients, http: aiohttp.ClientSession) -> Counter[str]:
    """How requests end once all engines are well, and the breakers have had time to see it.

    An overloaded machine may still make healthy engines miss their checks: that is waited for, too.
    """
    until_s = time.monotonic() + SETTLE_S
    while await clients.ask(http) != "whole" and time.monotonic() < until_s:  # noqa: ASYNC110
        await asyncio.sleep(0.5)
    await asyncio.sleep(BREAKERS_S)
    while clients.overload.lately() and time.monotonic() < until_s:  # noqa: ASYNC110
        await asyncio.sleep(0.5)
    return Counter(await asyncio.gather(*(clients.ask(http) for _ in range(PROBES))))


def violations(report: dict[str, Any]) -> list[str]:
    """What must not be, in words; empty when all is right."""
    found = [f"{report['ends'][end]} requests: {end}" for end in VIOLATIONS if end in report["ends"]]
    found += [f"{place}: {report[place]}" for place in ("left_in_ledger", "left_on_engines") if report[place]]
    after = report["requests_after_it"]
    if set(after) - {"whole", OVERLOADED} or not after.get("whole"):
        found.append(f"requests after it ended {after}")
    if not report["ends"].get("whole"):
        found.append("no request ended whole")
    return found


def text_of(report: dict[str, Any]) -> str:
    """The report for people."""
    lines = [f"{report['requests']} requests in {report['minutes']:g} minutes, {report['streams']} at a time"]
    lines += [f"  {count:8}  {end}" for end, count in report["ends"].items()]
    lines.append("what was done to engines")
    lines += [f"  {count:8}  {deed}" for deed, count in report["events"].items()]
    lines.append(f"reservations left: {report['left_in_ledger']}; longest request: {report['longest_s']} s")
    overload, late = report["overload"], report["late_by_an_overloaded_machine"]
    lines.append(f"waits for a CPU: {overload['waited_for_cpu']:.1%} of the time;")
    lines.append(
        f"clients and engines lagged {overload['worst_lag_s']} s at worst: {overload['lost_by_clients']:.1%}"
    )
    lines.append(f"requests that took longer than {HANG_S:g} s only by that: {late}")
    return "\n".join([*lines, *(f"VIOLATION: {text}" for text in report["violations"])])


@click.command()
@click.option("--minutes", default=10.0, show_default=True)
@click.option("--streams", default=200, show_default=True, help="Concurrent requests.")
@click.option("--processes", default=1, show_default=True, help="Router processes.")
@click.option("--seed", default=0, show_default=True)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="JSON file to write.")
def main(minutes: float, streams: int, processes: int, seed: int, out: Path | None) -> None:
    """Torment engines behind a router, say how requests ended; status 1 where something was violated."""
    with tempfile.TemporaryDirectory(prefix="eldr-chaos-") as folder:
        found = asyncio.run(chaos(60 * minutes, streams, seed, Path(folder), processes))
    facts = {"evidence": "mock", "machine": describe_machine(), "settings": SETTINGS}
    asked = {"minutes": minutes, "streams": streams, "processes": processes, "seed": seed}
    report = {**facts, **asked, **found}
    click.echo(text_of(report))
    if out is not None:
        with replacing(out) as file:
            file.write(json.dumps(report, indent=1).encode() + b"\n")
    sys.exit(1 if report["violations"] else 0)


if __name__ == "__main__":
    main()
