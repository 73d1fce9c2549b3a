"""`make chaos`, shortened; that it finds faults out; and how it judges what a client got."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.typedefs import Handler
from click.testing import CliRunner

from eldr.bench import chaos, chaos_engine, chaos_lag
from eldr.bench.chaos import PROBES, main, violations
from eldr.bench.chaos_clients import Clients, judge
from eldr.bench.chaos_engine import word
from eldr.bench.chaos_lag import Overload
from support.clock import SkippingClock
from support.stack import aiohttp_served as served_at
from support.waiting import HANG_S

WORDS = [word("0 p", index) for index in range(3)]
ERROR = b'data: {"error":{"message":"broke off"}}\n\n'
DONE = b"data: [DONE]\n\n"


def stream(*words: str) -> bytes:
    events = (json.dumps({"choices": [{"index": 0, "text": text}]}) for text in words)
    return "".join(f"data: {event}\n\n" for event in events).encode()


@pytest.mark.parametrize(
    ("data", "end"),
    [
        (stream(*WORDS) + DONE, "whole"),
        (stream(*WORDS[:2]) + ERROR, "broken"),
        (ERROR, "broken"),
        (stream(*WORDS[:2]), "cut off"),
        (stream(*WORDS[:2]) + DONE, "cut off"),
        (stream(*WORDS) + b'data: {"choi', "cut off"),
        (b"", "cut off"),
        (stream(word("1 other", 0), *WORDS[1:]) + DONE, "wrong text"),
        (stream(WORDS[0], WORDS[0], WORDS[2]) + DONE, "wrong text"),
        (stream(*WORDS, word("0 p", 3)) + DONE, "wrong text"),
        (stream(WORDS[1]) + ERROR, "wrong text"),
    ],
)
def test_what_a_client_got(data: bytes, end: str) -> None:
    assert judge(data, "0 p", 3) == end


def test_violations_are_named() -> None:
    right = {
        "ends": {"whole": 9, "broken": 1, "502": 1},
        "left_in_ledger": 0,
        "left_on_engines": 0,
        "requests_after_it": {"whole": PROBES},
    }
    assert violations(right) == []
    assert violations({**right, "ends": {"whole": 9, "hung": 2}}) == ["2 requests: hung"]
    assert violations({**right, "left_in_ledger": 3}) == ["left_in_ledger: 3"]
    assert violations({**right, "requests_after_it": {"whole": PROBES - 1, "502": 1}})
    assert violations({**right, "ends": {"502": 4}}) == ["no request ended whole"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams of less than half a second, engines that are soon known to be well, and no other long waits."""
    breaker = {"open_s": 0.1, "longest_open_s": 0.3}
    monkeypatch.setattr(chaos, "SETTINGS", {**chaos.SETTINGS, "health_interval_s": 0.1, "breaker": breaker})
    monkeypatch.setattr(chaos_engine, "CHUNK_S", 0.01)
    monkeypatch.setattr(chaos, "BREAKERS_S", 0.6)
    monkeypatch.setattr(chaos_lag, "WINDOW_S", 0.5)


def run(out: Path) -> tuple[int, dict[str, Any], str]:
    """Exit status, report and output of less than two seconds of chaos."""
    done = CliRunner().invoke(main, ["--minutes", "0.025", "--streams", "20", "--out", str(out)])
    return done.exit_code, json.loads(out.read_text()), done.output


@pytest.mark.usefixtures("quick")
def test_a_moment_of_chaos(tmp_path: Path) -> None:
    status, report, output = run(tmp_path / "chaos.json")
    assert (report["violations"], status) == ([], 0), output
    assert report["left_in_ledger"] == 0
    assert report["ends"]["whole"] > 0
    assert report["events"]
    assert report["overload"]["worst_lag_s"] > 0
    assert f"{report['requests']} requests in 0.025 minutes" in output


@pytest.mark.usefixtures("quick")
def test_a_router_that_leaks_and_mixes_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leaks = "import eldr.pool; eldr.pool.Reservation.release = lambda self: None"
    mixes = "from eldr.proxy import handoff as h; read = h.read_prefill"
    mixes += "; first = []; h.read_prefill = lambda data: first.append(read(data)) or first[0]"
    monkeypatch.setattr(chaos, "SETTLE_S", 0.5)  # what leaks never settles
    monkeypatch.setattr(chaos, "PROGRAM", f"{leaks}; {mixes}; {chaos.PROGRAM}")
    status, report, output = run(tmp_path / "chaos.json")
    assert status == 1
    assert report["left_in_ledger"] > 0
    assert report["ends"]["wrong text"] > 0
    assert "VIOLATION: left_in_ledger" in output
    assert "requests: wrong text" in output


async def ended(
    answer: Handler, served: bool = True, overload: Overload | None = None, hang_s: float = 20
) -> str:
    """How a request to a server that answers so ends, after so many seconds at most."""
    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    async with served_at(app) as url, aiohttp.ClientSession() as http:
        return await Clients(url, Random(0), overload or Overload(), lambda: served, hang_s).ask(http)


async def refusing(_: web.Request) -> web.Response:
    return web.Response(status=503)


async def test_a_503_is_needless_while_engines_of_both_roles_are_well() -> None:
    assert await ended(refusing) == "needless 503"
    assert await ended(refusing, served=False) == "503"


@pytest.mark.parametrize("note", [lambda on, s: on.lagged(s, 0.3), lambda on, s: on.waited(s, 0.3, 1.0)])
async def test_an_overloaded_machine_excuses_a_503(note: Callable[[Overload, float], None]) -> None:
    overload, now_s = Overload(), asyncio.get_running_loop().time()
    note(overload, now_s - 20)
    overload.lagged(now_s, 0.1)
    overload.waited(now_s, 0.1, 1.0)
    assert await ended(refusing, overload=overload) == "needless 503"
    note(overload, now_s)
    assert await ended(refusing, overload=overload) == "503, overloaded machine"


async def test_a_client_that_gets_no_answer_hangs_but_time_that_its_loop_lost_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(_: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    overload, clock = Overload(), SkippingClock(monkeypatch)

    async def slowly(request: web.Request) -> web.Response:
        clock.skip(30)
        overload.lagged(asyncio.get_running_loop().time(), lost_s)
        await asyncio.sleep(0.01)
        return await refusing(request)

    assert await ended(never, hang_s=0.1) == "hung"
    lost_s = 0.0
    assert await ended(slowly, served=False, overload=overload) == "hung"
    lost_s = 30.0
    assert await ended(slowly, served=False, overload=overload) == "503"


async def test_lag_is_no_error_where_a_limit_has_just_passed() -> None:
    overload = Overload()

    async def waits() -> None:
        async with overload.limit(0.0):
            try:
                await asyncio.sleep(1)
            finally:
                overload.lagged(asyncio.get_running_loop().time(), 1.0)

    with pytest.raises(TimeoutError):
        await waits()


async def test_overload_is_what_the_loop_lost_and_what_a_process_waited_for_a_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chaos_lag, "DELAY_STEP_S", 0.0)
    overload = Overload()
    watching = asyncio.create_task(overload.run())
    await asyncio.sleep(0.01)
    time.sleep(0.15)  # noqa: ASYNC251
    await asyncio.sleep(0.1)
    watching.cancel()
    assert 0.09 < overload.worst_s <= overload.lost_s < overload.watched_s
    assert 0 <= overload.waited_s < overload.watched_s
    assert chaos_lag.cpu_wait_s() > 0


async def test_a_killed_engine_drops_its_streams_at_once() -> None:
    engine = await chaos_engine.ChaosEngine({}).start()
    body = {"prompt": "0 p", "max_tokens": 1000, "stream": True}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{engine.url}/v1/completions", json=body) as answer,
    ):
        await answer.content.readany()
        async with asyncio.timeout(HANG_S):
            await engine.kill()
            with pytest.raises(aiohttp.ClientError):
                await answer.read()
    assert (engine.running, engine.well_s) == (0, 0.0)
