"""A router between mock engines, all in the test's own event loop."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np
from aiohttp import web
from aiohttp.test_utils import TestServer
from multidict import CIMultiDictProxy

from eldr.config import Config, load_config
from eldr.policy import create_policy
from eldr.profile.artifact import Profile
from eldr.proxy.app import App
from eldr.proxy.clients import Clients
from eldr.proxy.learner import Learner
from eldr.proxy.profiles import Profiles
from eldr.proxy.running import running_app
from eldr.proxy.tls import server_tls
from eldr.settings_front import SecurityConfig
from support.mock_engine import MockEngine, engines, prompt_of, words
from support.waiting import HANG_S, until

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@dataclass
class Stack:
    """Engines and the router before them (`app`); `http` is a client with its own connections."""

    prefill: list[MockEngine]
    decode: list[MockEngine]
    url: str
    http: aiohttp.ClientSession
    app: App

    async def post(
        self, path: str = COMPLETIONS, headers: dict[str, str] | None = None, **body: Any
    ) -> "Reply":
        """One whole request with a JSON body."""
        async with self.http.post(self.url + path, json=body, headers=headers) as response:
            return Reply(response.status, await response.read(), response.headers)

    async def get(self, path: str) -> "Reply":
        async with self.http.get(self.url + path) as response:
            return Reply(response.status, await response.read(), response.headers)

    async def metric(self, name: str, **labels: str) -> float:
        """One sample of /metrics, 0.0 where it does not exist yet."""
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        for line in (await self.get("/metrics")).text.splitlines():
            sample = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            if sample and sample[1] == name and wanted <= set((sample[2] or "").split(",")):
                return float(sample[3])
        return 0.0

    async def until_metric(self, name: str, value: float, **labels: str) -> None:
        """Wait until a sample of /metrics has this value."""

        async def has_it() -> bool:
            return await self.metric(name, **labels) == value

        await until(has_it)

    async def settled(self) -> None:
        """Wait until nothing runs on the engines, then check that the router's ledger is empty too."""
        await until(self._is_settled)

    async def _is_settled(self) -> bool:
        return (
            not any(engine.running for engine in (*self.prefill, *self.decode))
            and not await self._in_flight()
        )

    async def _in_flight(self) -> float:
        text = (await self.get("/metrics")).text
        return sum(float(value) for value in re.findall(r"^eldr_in_flight_requests\{.*\} (\S+)", text, re.M))


@dataclass
class Reply:
    """A whole answer."""

    status: int
    body: bytes
    headers: CIMultiDictProxy[str]

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def decode_worker(self) -> str | None:
        return self.headers.get("x-eldr-decode-worker")


def right_text(body: dict[str, Any], count: int) -> str:
    """What an engine must answer to a body, for a single prompt."""
    return "".join(words(prompt_of(body), count))


@asynccontextmanager
async def stack(
    prefill: int = 1,
    decode: int = 2,
    policy: str = "jsq",
    options: dict[str, Any] | None = None,
    profile: Profile | None = None,
    learned: Profile | None = None,
    engine_tls: dict[str, str] | None = None,
    learner: Learner | None = None,
    **settings: Any,
) -> AsyncIterator[Stack]:
    """A running stack; health checks are off (an hour apart) unless `health_interval_s` is given.

    engine_tls: tls_cert and tls_key of the engines, which speak HTTP without.
    """
    blocks: dict[str, str] = {}
    tls = server_tls(SecurityConfig(**(engine_tls or {})))
    async with engines(prefill, blocks, tls=tls) as first, engines(decode, blocks, tls=tls) as second:
        urls = {"prefill": [engine.url for engine in first], "decode": [engine.url for engine in second]}
        config = load_config(None, {"health_interval_s": 3600, "wait_s": HANG_S, **urls, **settings})
        rng = np.random.default_rng(0)
        policies = create_policy("jsq", rng=rng), create_policy(policy, rng=rng, **(options or {}))
        async with (
            running_app(config, Profiles(profile, learned), lambda _: policies, learner=learner) as app,
            served(app, config) as url,
        ):
            timeout = aiohttp.ClientTimeout(total=HANG_S)
            async with aiohttp.ClientSession(timeout=timeout) as http:
                for engine in (*first, *second):
                    engine.received.clear()  # what the router asked at its start is not the test's matter
                yield Stack(first, second, url, http, app)


@asynccontextmanager
async def served(app: App, config: Config) -> AsyncIterator[str]:
    """The URL of a router's application that is served as `eldr serve` serves it."""
    clients, tls = Clients(app.answer, config, app.metrics), server_tls(config.security)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(clients.connection, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await clients.drain(1)


@asynccontextmanager
async def aiohttp_served(app: web.Application) -> AsyncIterator[str]:
    """The URL of an application of aiohttp that is served."""
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")
