"""From the sets that sources want to workers that join, drain and leave."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from eldr.errors import EldrError
from eldr.metrics.prometheus import RouterMetrics
from eldr.proxy.discovery.reconcile import Reconciler
from eldr.proxy.discovery.source import DiscoveryError, Wanted
from eldr.proxy.membership import Membership
from support.stack import COMPLETIONS, Stack, stack

PROMPT = {"prompt": "hello world", "max_tokens": 4}


@asynccontextmanager
async def reconciled(decode: int = 3) -> AsyncIterator[tuple[Stack, Reconciler, Membership]]:
    """A stack whose workers are those of a source named "x"."""
    async with stack(decode=decode) as s:
        membership = s.app.membership
        reconciler = Reconciler(membership, RouterMetrics())
        reconciler.hold("x", wanted(s, *range(decode)))
        yield s, reconciler, membership


def wanted(s: Stack, *decode: int) -> tuple[Wanted, ...]:
    prefill = Wanted("prefill", s.prefill[0].url, "p0")
    return (prefill, *(Wanted("decode", s.decode[index].url, f"d{index}") for index in decode))


def states(membership: Membership) -> dict[str, str]:
    return {seen.name: seen.state for seen in membership.snapshot()}


async def until(membership: Membership, **expected: str) -> None:
    async with asyncio.timeout(5):
        while states(membership) != expected:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_what_is_gone_drains_and_what_is_new_joins() -> None:
    async with reconciled() as (s, reconciler, membership):
        await reconciler.apply("x", wanted(s, 1))
        await until(membership, p0="up", d1="up")
        assert {(await s.post(**PROMPT)).decode_worker for _ in range(3)} == {"d1"}
        await reconciler.apply("x", wanted(s, 0, 1, 2))
        assert states(membership) == {"p0": "up", "d1": "up", "d0": "up", "d2": "up"}
        assert (await s.post(**PROMPT)).status == 200


async def test_a_stream_on_a_worker_that_is_gone_ends_as_it_should() -> None:
    async with reconciled() as (s, reconciler, membership):
        s.decode[0].faults.chunk_delay_s = 0.1
        async with s.http.post(s.url + COMPLETIONS, json={**PROMPT, "stream": True}) as streaming:
            await streaming.content.readany()
            await reconciler.apply("x", wanted(s, 1, 2))
            assert states(membership)["d0"] == "draining"
            assert (await streaming.read()).endswith(b"data: [DONE]\n\n")
        await until(membership, p0="up", d1="up", d2="up")


async def test_one_that_returns_while_it_drains_stays() -> None:
    async with reconciled() as (s, reconciler, membership):
        s.decode[0].faults.chunk_delay_s = 0.1
        async with s.http.post(s.url + COMPLETIONS, json={**PROMPT, "stream": True}) as streaming:
            await streaming.content.readany()
            await reconciler.apply("x", wanted(s, 1, 2))
            await reconciler.apply("x", wanted(s, 0, 1, 2))
            assert states(membership)["d0"] == "up"
            await streaming.read()
        await asyncio.sleep(0.2)
        assert states(membership)["d0"] == "up"


async def test_a_worker_keeps_its_name_when_others_before_it_go() -> None:
    async with reconciled() as (s, reconciler, membership):
        prefill, first, second = wanted(s, 1, 2)
        renumbered = (prefill, Wanted("decode", first.url, "d0"), Wanted("decode", second.url, "d1"))
        await reconciler.apply("x", renumbered)
        await until(membership, p0="up", d1="up", d2="up")


async def test_a_name_that_moves_to_another_address_takes_the_place_at_once() -> None:
    async with reconciled() as (s, reconciler, membership):
        prefill, d0, _ = wanted(s, 0, 1)
        await reconciler.apply("x", (prefill, d0))
        await until(membership, p0="up", d0="up")
        await reconciler.apply("x", (prefill, Wanted("decode", s.decode[2].url, "d0")))
        assert states(membership) == {"p0": "up", "d0": "up"}
        await s.post(**PROMPT)
        assert len(s.decode[2].received) == 1


async def test_a_worker_that_another_source_wants_too_stays() -> None:
    async with reconciled() as (s, reconciler, membership):
        await reconciler.apply("y", wanted(s, 0))
        await reconciler.apply("x", wanted(s, 1))
        await until(membership, p0="up", d0="up", d1="up")
        await reconciler.apply("y", ())
        await until(membership, p0="up", d1="up")


async def test_what_a_person_removed_stays_removed_until_the_source_changes_its_mind() -> None:
    async with reconciled() as (s, reconciler, membership):
        membership.remove("d0")
        await reconciler.apply("x", wanted(s, 0, 1, 2))
        assert "d0" not in states(membership)


class Script:
    """A source that plays steps: sets, and errors."""

    name = "x"

    def __init__(self, steps: list[Any]) -> None:
        self.steps = steps

    async def sets(self) -> AsyncIterator[tuple[Wanted, ...]]:
        while self.steps:
            step = self.steps.pop(0)
            if isinstance(step, Exception):
                raise step
            yield step
        await asyncio.sleep(3600)


@pytest.mark.parametrize("error", [DiscoveryError("away"), EldrError("away"), KeyError("away")])
async def test_a_source_that_fails_changes_nothing_is_counted_and_asked_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("eldr.proxy.discovery.reconcile.PAUSE_S", 0.01)
    async with reconciled() as (s, reconciler, membership):
        source = Script([error, error, wanted(s, 1, 2)])
        task = asyncio.create_task(reconciler.run(source))
        await until(membership, p0="up", d1="up", d2="up")
        task.cancel()
        sample = reconciler._metrics.registry.get_sample_value
        assert sample("eldr_discovery_updates_total", {"source": "x", "result": "failed"}) == 2
        assert sample("eldr_discovery_updates_total", {"source": "x", "result": "applied"}) == 1
        assert caplog.text.count("the workers stay as they are") == 1


async def test_a_worker_that_cannot_be_added_keeps_no_other_out() -> None:
    async with reconciled(decode=2) as (s, reconciler, membership):
        membership.remove("d1")
        reconciler.hold("x", wanted(s, 0))
        await reconciler.apply("x", (*wanted(s, 0, 1), Wanted("decode", "not a url", "bad")))
        assert states(membership) == {"p0": "up", "d0": "up", "d1": "up"}
