"""`eldr serve --processes N`: one port, one ledger, one set of metrics, whichever process takes a request."""

import asyncio
import math
import os
import re
import signal
from pathlib import Path

import pytest

from eldr.config import load_config
from eldr.errors import ConfigError
from eldr.metrics.decisions import read_decisions
from eldr.proxy.processes import part
from eldr.proxy.server import serve
from support.mock_engine import engines
from support.processes import BODY, Running, quick, running
from support.serving import failure, free_port, until_healthy, until_refused, workers
from support.stack import right_text
from support.waiting import HANG_S, until, until_running


async def test_eight_concurrent_requests_split_evenly_whichever_process_takes_them() -> None:
    async with running(processes=3) as s:
        for _ in range(5):
            until_all_run = asyncio.Event()
            for engine in s.decode:
                engine.peak, engine.faults.until = 0, until_all_run
            posts = [s.post(**{**BODY, "prompt": f"law {n}"}) for n in range(8)]
            requests = [asyncio.create_task(post) for post in posts]
            await until_running(*s.decode, count=8)
            until_all_run.set()
            replies = await asyncio.gather(*requests)
            assert [reply.status for reply in replies] == [200] * 8
            assert [engine.peak for engine in s.decode] == [4, 4]
        assert await s.metric("eldr_requests_total", outcome="ok") == 40
        assert await s.metric("eldr_time_to_first_token_seconds_count") == 0
        assert await s.metric("eldr_decision_seconds_count") == 40
        await s.settled()


async def test_a_killed_process_returns_what_it_held_and_is_replaced() -> None:
    async with running() as s:
        s.decode[0].faults.hang = s.decode[1].faults.hang = True
        # So many that each process holds some.
        requests = [asyncio.create_task(s.post(**BODY)) for _ in range(40)]
        await until_running(*s.decode, count=40)
        assert await s._in_flight() == 40
        before = s.children()
        killed = min(before)
        os.kill(killed, signal.SIGKILL)
        await until(lambda: len(s.children() - before) == 1 and killed not in s.children())
        await until(lambda: any(request.done() for request in requests))

        async def those_that_are_left_are_counted() -> bool:
            return await s._in_flight() == sum(not request.done() for request in requests)

        await until(those_that_are_left_are_counted)
        assert 0 < await s._in_flight() < 40
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        for engine in s.decode:
            engine.faults.hang = False
        await s.settled()
        replies = await asyncio.gather(*(s.post(**BODY) for _ in range(8)))
        assert [reply.json["choices"][0]["text"] for reply in replies] == [right_text(BODY, 5)] * 8


async def test_counts_go_on_after_a_process_was_replaced() -> None:
    async with running() as s:
        await asyncio.gather(*(s.post(**BODY) for _ in range(20)))
        before = s.children()
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        await until(lambda: len(s.children() - before) == 2)
        await s.post(**BODY)
        assert await s.metric("eldr_requests_total", outcome="ok") == 21


async def test_a_worker_that_one_process_finds_down_is_out_for_all(tmp_path: Path) -> None:
    async with running(*quick(tmp_path)) as s:
        await s.decode[0].stop()
        await s.post(**BODY)
        replies = await asyncio.gather(*(s.post(**BODY) for _ in range(8)))
        assert {reply.decode_worker for reply in replies} == {"d1"}
        assert [await s.metric("eldr_worker_up", worker="d0") for _ in range(6)] == [0] * 6
        await s.decode[0].start()
        await s.until_metric("eldr_worker_up", 1, worker="d0")


async def test_sigterm_drains_all_processes_and_ends_with_0(tmp_path: Path) -> None:
    async with running("--decision-log", str(tmp_path / "d.jsonl")) as s:
        until_nobody_can_connect = asyncio.Event()
        for engine in s.decode:
            engine.faults.until = until_nobody_can_connect
        requests = [asyncio.create_task(s.post(**BODY)) for _ in range(8)]
        await until_running(*s.decode, count=8)
        s.process.send_signal(signal.SIGTERM)
        await until_refused(s.url)
        until_nobody_can_connect.set()
        assert [(await request).status for request in requests] == [200] * 8
        async with asyncio.timeout(HANG_S):
            assert await s.process.wait() == 0
    names = sorted(os.listdir(tmp_path))
    assert names == ["d-0.jsonl", "d-1.jsonl"]
    assert sum(1 for name in names for _ in read_decisions(tmp_path / name)) == 8


async def test_what_keeps_it_from_starting_is_one_line() -> None:
    args = ["--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2", "--port", "0", "--wait", "0"]
    line = await failure(*args, "--processes", "2")
    assert line.startswith("eldr: no prefill worker is reachable: worker p0 (http://127.0.0.1:1)")


async def test_a_port_in_use() -> None:
    async with engines(1, {}) as (engine,):
        line = await failure(*workers([engine, engine]), "--port", str(engine.port), "--processes", "2")
    assert line == f"eldr: port {engine.port} on 127.0.0.1 is in use; choose another with --port"


async def test_the_admin_api_changes_all_processes_and_those_that_take_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELDR_ADMIN_KEY", "a-secret")
    port = free_port()
    admin, key = f"http://127.0.0.1:{port}/workers", {"Authorization": "Bearer a-secret"}
    async with running("--admin-port", str(port), *quick(tmp_path)) as s, engines(1, {}) as (new,):
        new.blocks = s.decode[0].blocks

        async def decode_workers() -> set[str]:
            """Decode workers that all processes know: each tells the gauges of its own."""
            seen = [
                re.findall(r'eldr_worker_up\{role="decode",worker="(.+?)"\} 1', await page())
                for _ in range(8)
            ]
            return set(seen[0]) if all(each == seen[0] for each in seen) else set()

        async def page() -> str:
            return (await s.get("/metrics")).text

        async def until_known(names: set[str]) -> None:
            async def known() -> bool:
                return await decode_workers() == names

            await until(known)

        await until_known({"d0", "d1"})
        body = {"role": "decode", "url": new.url, "name": "new"}
        async with s.http.post(admin, json=body, headers=key) as answer:
            assert (answer.status, (await answer.json())["state"]) == (201, "up")
        async with s.http.post(f"{admin}/d0/drain", headers=key) as answer:
            assert answer.status == 202
        await until_known({"d1", "new"})
        replies = await asyncio.gather(*(s.post(**BODY) for _ in range(12)))
        assert {reply.decode_worker for reply in replies} == {"d1", "new"}

        before = s.children()
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        await until(lambda: len(s.children() - before) == 2)
        await until_healthy(s.url)
        await until_known({"d1", "new"})
        async with s.http.delete(f"{admin}/new", headers=key) as answer:
            assert answer.status == 204
        await until_known({"d1"})
        assert set(re.findall(r'role="decode",worker="(.+?)"', await page())) == {"d1"}
        s.process.kill()
        assert s.process.stderr is not None
        assert b"UserWarning" not in await s.process.stderr.read()


def test_processes_divide_the_limits_so_that_they_hold_together() -> None:
    assert [part(10, row, 4) for row in range(4)] == [3, 3, 2, 2]
    assert [part(1, row, 2) for row in range(2)] == [1, 0]
    assert sum(part(4096, row, 3) for row in range(3)) == 4096


async def test_no_more_requests_run_at_once_than_the_limit_of_all_processes(tmp_path: Path) -> None:
    limits = "limits: {in_flight: 4, queued: 0}\n"
    async with running(*quick(tmp_path, limits)) as s:
        for engine in s.decode:
            engine.faults.hang = True
        requests = [asyncio.create_task(s.post(**BODY)) for _ in range(40)]
        await until(lambda: sum(request.done() for request in requests) == 36)
        await until(lambda: sum(engine.running for engine in s.decode) == 4)
        assert {request.result().status for request in requests if request.done()} == {429}
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        await s.settled()


def test_fewer_requests_at_once_than_processes() -> None:
    urls = {"prefill": ["http://127.0.0.1:1"], "decode": ["http://127.0.0.1:2"]}
    config = load_config(None, {**urls, "processes": 4, "limits": {"in_flight": 3}})
    with pytest.raises(ConfigError, match=r"limits\.in_flight: 3 is less than one for each of 4 processes"):
        serve(config)


async def test_sighup_without_a_file_to_read_again_ends_nothing() -> None:
    async with running() as s:
        before = s.children()
        s.process.send_signal(signal.SIGHUP)
        for _ in before:
            await s.line("SIGHUP changes nothing")
        assert s.children() == before
        assert (await s.post(**BODY)).status == 200


async def decoders(s: Running) -> tuple[set[str | None], set[str | None]]:
    """The workers that decode requests of two domains, whichever processes take them."""
    law, zh = set[str | None](), set[str | None]()
    for _ in range(15):  # of both by turns, and fewer than there is something to learn from
        for domain, seen in (("law", law), ("zh", zh)):
            seen.add((await s.post(prompt=f"{domain} text", max_tokens=2)).decode_worker)
    return law, zh


async def test_what_one_process_learned_all_of_them_route_by(tmp_path: Path) -> None:
    settings = "adapt: {interval_s: 0.5, share: 1.0, window_s: 1}\n"
    async with running("--policy", "locality_band", *quick(tmp_path, settings)) as s:
        async with asyncio.timeout(HANG_S):
            while not await s.metric("eldr_refits_total", result="used"):
                await asyncio.gather(
                    *(s.post(prompt=f"a {domain} text", max_tokens=2) for domain in ("law", "zh") * 16)
                )
                await asyncio.sleep(0.1)  # for the child that learns, which needs a core as well
            while any(
                len(each) > 1 for each in await decoders(s)
            ):  # until the others have looked at the file
                pass
        learned = await decoders(s)
        assert [len(each) for each in learned] == [1, 1]
        assert learned[0] != learned[1]
        before = s.children()
        for child in before:
            os.kill(child, signal.SIGKILL)
        await until(lambda: len(s.children() - before) == 2)
        assert await decoders(s) == learned
        assert math.isnan(await s.metric("eldr_estimated_tpot_saving_ratio"))
