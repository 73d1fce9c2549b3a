"""What the router does that has no file descriptor left: it says so, and blames no worker."""

import asyncio
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from support.stack import Stack, stack

PROMPT = {"prompt": "hello world", "max_tokens": 4}


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Let this process open nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(autouse=True)
def _no_kept_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eldr.proxy.upstream.KEEP_ALIVE_S", 0)


async def check_nobody_is_blamed(s: Stack) -> None:
    text = (await s.get("/metrics")).text
    assert "eldr_upstream_errors_total{" not in text
    for name, right in (("worker_up", 1), ("worker_breaker_state", 0)):
        assert [await s.metric(f"eldr_{name}", worker=worker) for worker in ("p0", "d0", "d1")] == [right] * 3
    assert await s.metric("eldr_client_faults_total", kind="exhausted") == 1
    assert (await s.post(**PROMPT)).status == 200


async def test_a_request_is_a_503_and_no_worker_is_taken_out_by_it_or_by_its_checks() -> None:
    async with stack(health_interval_s=0.02) as s:
        await s.get("/health")  # leaves a connection to the router
        with no_descriptors():
            reply = await s.post(**PROMPT)
            await asyncio.sleep(0.2)
        assert reply.status == 503
        assert reply.json["error"]["type"] == "overloaded"
        assert reply.headers["Retry-After"] == "1"
        await check_nobody_is_blamed(s)


async def test_the_same_between_the_legs() -> None:
    async with stack() as s:
        s.prefill[0].faults.delay_s = 0.2
        asked = asyncio.create_task(s.post(**PROMPT))
        while not s.prefill[0].running:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        with no_descriptors():
            assert (await asked).status == 503
        await check_nobody_is_blamed(s)
