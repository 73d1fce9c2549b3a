"""The router before the real engines of the fixture `pair`, for tests that look through it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import numpy as np

from eldr.bench.engine import LocalEngine
from eldr.config import load_config
from eldr.policy import create_policy
from eldr.profile.artifact import Profile
from eldr.proxy.learner import Learner
from eldr.proxy.membership import Membership
from eldr.proxy.profiles import Profiles
from eldr.proxy.running import running_app
from support.stack import served

Engines = dict[str, LocalEngine]
DECODE = ("decode", "stock")
TEXTS = [
    "Question: A farmer has 12 cows and buys 30 more. How many has he?\nAnswer:",
    "def fibonacci(n):\n    ",
    "Patient question: I have had a headache for three days.\n",
    "Section 1-2.3. Definitions. In this chapter, ",
]


@asynccontextmanager
async def router(
    pair: Engines, policy: str = "jsq", profile: Profile | None = None, learner: Learner | None = None
) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    async with routing(pair, policy, profile, learner) as (url, http, _):
        yield url, http


@asynccontextmanager
async def routing(
    pair: Engines, policy: str, profile: Profile | None, learner: Learner | None
) -> AsyncIterator[tuple[str, aiohttp.ClientSession, Membership]]:
    """The same, with the router's workers, to change them."""
    urls = {"prefill": [pair["prefill"].url], "decode": [f"{name}={pair[name].url}" for name in DECODE]}
    config = load_config(None, {**urls, "health_timeout_s": 30})
    rng = np.random.default_rng(0)
    policies = create_policy("jsq", rng=rng), create_policy(policy, rng=rng)
    async with (
        running_app(config, Profiles(profile), lambda _: policies, learner=learner) as app,
        served(app, config) as url,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as http,
    ):
        yield url, http, app.membership


async def settled(http: aiohttp.ClientSession, url: str, pair: Engines) -> None:
    """Wait until neither the router nor an engine has a request."""
    async with asyncio.timeout(20):
        while await _running(http, url, pair):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def _running(http: aiohttp.ClientSession, url: str, pair: Engines) -> float:
    engines = [pair[name].url for name in ("prefill", *DECODE)]
    on_engines = [await total(http, engine, "vllm:num_requests_running") for engine in engines]
    return sum(on_engines) + await total(http, url, "eldr_in_flight_requests")


async def total(http: aiohttp.ClientSession, url: str, metric: str) -> float:
    async with http.get(url + "/metrics") as answer:
        page = await answer.text()
    return sum(float(value) for value in re.findall(rf"^{metric}\{{.*\}} (\S+)$", page, re.M))


async def generated(http: aiohttp.ClientSession, pair: Engines) -> float:
    """Output tokens of all decode workers so far."""
    return sum([await total(http, pair[name].url, "vllm:generation_tokens_total") for name in DECODE])
