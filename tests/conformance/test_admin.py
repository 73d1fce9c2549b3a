"""Workers listed, added, drained and removed while requests run."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from eldr.errors import ConfigError
from eldr.proxy.admin import admin_key, admin_site, create_admin_app
from eldr.proxy.membership import POLL_S
from eldr.settings_fleet import AdminConfig
from support.mock_engine import MockEngine, engines
from support.profiles import domain_profile
from support.raw import exchange, status_of
from support.serving import free_port
from support.stack import COMPLETIONS, Stack, aiohttp_served, stack
from support.waiting import until, until_running

PROMPT = {"prompt": "a law text", "max_tokens": 4}
KEY = "a-long-secret"


class Admin:
    """A client of the admin API with its key."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self.url, self.http = url, http

    async def ask(self, method: str, path: str, key: str | None = KEY, **body: Any) -> tuple[int, Any]:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        json = body or None
        async with self.http.request(method, self.url + path, json=json, headers=headers) as answer:
            return answer.status, await answer.json() if await answer.read() else None

    async def states(self) -> dict[str, str]:
        _, body = await self.ask("GET", "/workers")
        return {worker["name"]: worker["state"] for worker in body["workers"]}

    async def until(self, **states: str) -> None:
        async def so() -> bool:
            return await self.states() == states

        await until(so)


@asynccontextmanager
async def administered(**settings: Any) -> AsyncIterator[tuple[Stack, Admin]]:
    async with (
        stack(**settings) as s,
        aiohttp_served(create_admin_app(s.app.membership, KEY)) as url,
    ):
        yield s, Admin(url, s.http)


@asynccontextmanager
async def one_more(s: Stack) -> AsyncIterator[MockEngine]:
    async with engines(1, s.prefill[0].blocks) as (engine,):
        yield engine


async def test_every_path_needs_the_key() -> None:
    async with administered() as (_, admin):
        for method, path in [
            ("GET", "/workers"),
            ("POST", "/workers"),
            ("POST", "/workers/d0/drain"),
            ("DELETE", "/workers/d0"),
            ("GET", "/nothing"),
        ]:
            for key in (None, "", "a-long-secre", KEY + "x", "ä"):
                status, body = await admin.ask(method, path, key)
                assert (status, body["error"]["type"]) == (401, "authentication_error")
        assert await admin.states() == {"p0": "up", "d0": "up", "d1": "up"}


async def test_the_admin_paths_are_not_on_the_routers_port() -> None:
    async with administered() as (s, _):
        assert (await s.get("/workers")).status == 404


async def test_workers_are_listed_with_what_they_do() -> None:
    async with administered() as (s, admin):
        answers = s.decode[0].faults.until = asyncio.Event()
        running = asyncio.create_task(s.post(**PROMPT))
        await until_running(s.decode[0])
        status, body = await admin.ask("GET", "/workers")
        assert status == 200
        assert body["workers"][1] == {
            "role": "decode",
            "name": "d0",
            "url": s.decode[0].url,
            "state": "up",
            "breaker": "closed",
            "in_flight": 1,
            "problem": None,
        }
        answers.set()
        await running


@pytest.mark.parametrize("policy", ["locality_band", "jsq", "round_robin"])
async def test_an_added_worker_gets_traffic_at_once(policy: str) -> None:
    options = (
        {"policy": policy, "profile": domain_profile()} if policy == "locality_band" else {"policy": policy}
    )
    async with administered(**options) as (s, admin), one_more(s) as engine:
        answers = asyncio.Event()
        for each in (*s.decode, engine):
            each.faults.until = answers
        status, body = await admin.ask("POST", "/workers", role="decode", url=engine.url, name="new")
        assert (status, body["state"], body["name"]) == (201, "up", "new")
        asked = [asyncio.create_task(s.post(**PROMPT)) for _ in range(6)]
        await until_running(*s.decode, engine, count=6)
        answers.set()
        assert "new" in {(await one).decode_worker for one in asked}
        assert await s.metric("eldr_worker_up", worker="new") == 1
        await s.settled()


async def test_an_added_prefill_worker_is_used_and_a_name_is_found_for_it() -> None:
    async with administered() as (s, admin), one_more(s) as engine:
        status, body = await admin.ask("POST", "/workers", role="prefill", url=engine.url + "/")
        assert (status, body["name"]) == (201, "p1")
        await s.prefill[0].stop()
        assert (await s.post(**PROMPT)).headers["x-eldr-prefill-worker"] == "p1"


@pytest.mark.parametrize(
    ("counts", "problem"),
    [(None, "p1 (http://127.0.0.1:PORT) gives no expert counts"), ({"v": 99}, "prefill worker p1: ")],
)
async def test_an_added_prefill_worker_without_the_models_expert_counts_stays_out(
    counts: dict[str, Any] | None, problem: str
) -> None:
    profiled = {"policy": "locality_band", "profile": domain_profile()}
    async with administered(**profiled, health_interval_s=0.03) as (s, admin), one_more(s) as engine:
        engine.faults.counts, engine.faults.no_counts = counts, counts is None
        status, body = await admin.ask("POST", "/workers", role="prefill", url=engine.url)
        assert (status, body["state"]) == (201, "down")
        assert problem.replace("PORT", str(engine.port)) in body["problem"]
        assert {(await s.post(**PROMPT)).headers["x-eldr-prefill-worker"] for _ in range(3)} == {"p0"}
        engine.faults.counts, engine.faults.no_counts = None, False
        await admin.until(p0="up", p1="up", d0="up", d1="up")
        probes, checks = len(engine.received), engine.health_checks
        await until(lambda: engine.health_checks >= checks + 3)
        assert len(engine.received) == probes  # one that has told its counts is asked no more


async def test_an_added_worker_of_another_model_or_that_is_not_there_stays_out() -> None:
    async with administered() as (s, admin), one_more(s) as engine:
        engine.model = engine.root = "other"
        status, body = await admin.ask("POST", "/workers", role="decode", url=engine.url, name="new")
        assert (status, body["state"]) == (201, "down")
        assert "serves 'other'" in body["problem"]
        status, body = await admin.ask(
            "POST", "/workers", role="decode", url="http://127.0.0.1:1", name="off"
        )
        assert (status, body["state"]) == (201, "down")
        assert "cannot be reached" in body["problem"]
        assert {(await s.post(**PROMPT)).decode_worker for _ in range(4)} == {"d0"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"role": "decode", "url": "http://127.0.0.1:1", "name": "d0"}, "two workers are named 'd0'"),
        ({"role": "middle", "url": "http://127.0.0.1:1"}, "role 'middle' is none of prefill, decode"),
        ({"role": "decode", "url": "127.0.0.1:1"}, "not of the form http://HOST:PORT"),
        ({"role": "decode", "url": "http://u:secret@h"}, "not of the form http://HOST:PORT"),
        ({"role": "decode", "url": "http://127.0.0.1:1", "name": "a/b"}, "a/b"),
        ({"role": "decode", "url": "http://127.0.0.1:1", "port": 1}, "port"),
        ({"role": "decode"}, "url"),
    ],
)
async def test_a_wrong_worker_is_refused_with_the_reason(body: dict[str, Any], message: str) -> None:
    async with administered() as (_, admin):
        before = await admin.states()
        status, answer = await admin.ask("POST", "/workers", **body)
        assert status == 400
        assert message in answer["error"]["message"]
        assert await admin.states() == before


async def test_a_worker_that_is_there_is_not_added_twice() -> None:
    async with administered() as (s, admin):
        status, _ = await admin.ask("POST", "/workers", role="decode", url=s.decode[0].url)
        assert status == 400


async def test_an_unknown_worker_is_a_404() -> None:
    async with administered() as (_, admin):
        assert (await admin.ask("POST", "/workers/nobody/drain"))[0] == 404
        assert (await admin.ask("DELETE", "/workers/nobody"))[0] == 404
        assert (await admin.ask("GET", "/elsewhere"))[0] == 404


async def test_a_draining_worker_gets_nothing_new_ends_its_stream_and_leaves() -> None:
    async with administered() as (s, admin):
        rest = s.decode[0].faults.rest_until = asyncio.Event()
        async with s.http.post(s.url + COMPLETIONS, json={**PROMPT, "stream": True}) as streaming:
            await streaming.content.readany()
            status, body = await admin.ask("POST", "/workers/d0/drain")
            assert (status, body["state"], body["in_flight"]) == (202, "draining", 1)
            assert {(await s.post(**PROMPT)).decode_worker for _ in range(3)} == {"d1"}
            assert (await admin.states())["d0"] == "draining"
            rest.set()
            assert (await streaming.read()).endswith(b"data: [DONE]\n\n")
        await admin.until(p0="up", d1="up")
        assert "d0" not in (await s.get("/metrics")).text
        assert (await s.post(**PROMPT)).decode_worker == "d1"


async def test_a_drain_has_a_limit_and_the_stream_is_not_cut() -> None:
    async with administered() as (s, admin):
        rest = s.decode[0].faults.rest_until = asyncio.Event()
        async with s.http.post(s.url + COMPLETIONS, json={**PROMPT, "stream": True}) as streaming:
            await streaming.content.readany()
            await admin.ask("POST", "/workers/d0/drain", limit_s=0.1)
            await admin.until(p0="up", d1="up")
            rest.set()
            assert (await streaming.read()).endswith(b"data: [DONE]\n\n")
        await s.settled()
        assert "d0" not in (await s.get("/metrics")).text


async def test_a_health_check_does_not_bring_a_draining_worker_back() -> None:
    async with administered(health_interval_s=0.03) as (s, admin):
        s.decode[0].faults.hang = True
        hanging = asyncio.create_task(s.post(**PROMPT))
        await until_running(s.decode[0])
        await admin.ask("POST", "/workers/d0/drain")
        checks = s.decode[0].health_checks
        await until(lambda: s.decode[0].health_checks >= checks + 3)
        assert await s.metric("eldr_worker_up", worker="d0") == 0
        assert {(await s.post(**PROMPT)).decode_worker for _ in range(3)} == {"d1"}
        hanging.cancel()
        await s.settled()


async def test_adding_a_draining_worker_again_keeps_it() -> None:
    async with administered() as (s, admin):
        rest = s.decode[0].faults.rest_until = asyncio.Event()
        async with s.http.post(s.url + COMPLETIONS, json={**PROMPT, "stream": True}) as streaming:
            await streaming.content.readany()
            await admin.ask("POST", "/workers/d0/drain")
            status, body = await admin.ask("POST", "/workers", role="decode", url=s.decode[0].url)
            assert (status, body["name"], body["state"], body["in_flight"]) == (201, "d0", "up", 1)
            rest.set()
            await streaming.read()
        await s.settled()
        await asyncio.sleep(2 * POLL_S)  # by then the drain would have looked again, had it gone on
        assert (await admin.states())["d0"] == "up"


async def test_a_removed_worker_leaves_at_once_and_its_stream_ends() -> None:
    async with administered() as (s, admin):
        rest = s.decode[0].faults.rest_until = asyncio.Event()
        async with s.http.post(s.url + COMPLETIONS, json={**PROMPT, "stream": True}) as streaming:
            await streaming.content.readany()
            assert (await admin.ask("DELETE", "/workers/d0"))[0] == 204
            assert await admin.states() == {"p0": "up", "d1": "up"}
            rest.set()
            assert (await streaming.read()).endswith(b"data: [DONE]\n\n")
        assert (await s.post(**PROMPT)).decode_worker == "d1"
        await s.settled()


async def test_with_its_last_worker_removed_a_role_answers_503() -> None:
    async with administered(decode=1, health_interval_s=30) as (s, admin):
        await admin.ask("DELETE", "/workers/d0")
        reply = await s.post(**PROMPT)
        assert (reply.status, reply.headers["Retry-After"]) == (503, "30")
        assert not s.prefill[0].received


def test_the_key_comes_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ELDR_ADMIN_KEY", raising=False)
    (tmp_path / "key").write_text("from-file\n")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert admin_key(AdminConfig(key_file=str(tmp_path / "key"))) == "from-file"
    for config in (
        AdminConfig(),
        *(AdminConfig(key_file=str(tmp_path / name)) for name in ("empty", "binary", "no")),
    ):
        with pytest.raises(ConfigError, match="key"):
            admin_key(config)
    monkeypatch.setenv("ELDR_ADMIN_KEY", "from-environment")
    assert admin_key(AdminConfig()) == "from-environment"


@pytest.mark.parametrize("more", ["x" * 10_000, "\x00"])
async def test_a_key_in_a_header_that_is_refused_is_not_in_the_log(
    more: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "key").write_text(KEY)
    async with stack(decode=1) as s:
        config = AdminConfig(port=free_port(), key_file=str(tmp_path / "key"))
        async with admin_site(config, s.app.membership):
            head = f"GET /workers HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}{more}\r\n\r\n"
            answer = await exchange(f"http://127.0.0.1:{config.port}", head.encode())
    assert status_of(answer) == 400
    assert "Error handling request" in caplog.text
    assert KEY not in caplog.text
