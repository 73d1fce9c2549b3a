"""What the router does that has no file descriptor left: it says so, and blames no worker."""

import asyncio
import resource
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from eldr.pool import Worker
from eldr.proxy.upstream import ExhaustedError, Upstream
from support.stack import Stack, stack
from support.waiting import until, until_running

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


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many checks of each worker found nothing left."""
    counts, get = Counter[str](), Upstream.get

    async def counted(self: Upstream, worker: Worker, *args: Any) -> tuple[int, bytes]:
        try:
            return await get(self, worker, *args)
        except ExhaustedError:
            counts[worker.id] += 1
            raise

    monkeypatch.setattr(Upstream, "get", counted)
    return counts


async def test_a_request_is_a_503_and_no_worker_is_taken_out_by_it_or_by_its_checks(
    unchecked: Counter[str],
) -> None:
    async with stack(health_interval_s=0.02) as s:
        await s.get("/health")  # leaves a connection to the router
        with no_descriptors():
            reply = await s.post(**PROMPT)
            await until(lambda: min(unchecked[worker] for worker in ("p0", "d0", "d1")) >= 3)
        assert reply.status == 503
        assert reply.json["error"]["type"] == "overloaded"
        assert reply.headers["Retry-After"] == "1"
        await check_nobody_is_blamed(s)


async def test_the_same_between_the_legs() -> None:
    async with stack() as s:
        answers = s.prefill[0].faults.until = asyncio.Event()
        asked = asyncio.create_task(s.post(**PROMPT))
        await until_running(s.prefill[0])
        with no_descriptors():
            answers.set()
            assert (await asked).status == 503
        await check_nobody_is_blamed(s)
