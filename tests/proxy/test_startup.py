"""What keeps a router from starting, and which workers it lets in."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import numpy as np
import pytest

from eldr.config import load_config
from eldr.errors import ConfigError, EldrError, NoWorkerError, ProfileError
from eldr.policy import Policy, create_policy
from eldr.pool import Worker
from eldr.profile.artifact import Profile
from eldr.proxy.models import ModelGuard
from eldr.proxy.profiles import Profiles
from eldr.proxy.running import running_app
from eldr.proxy.startup import check_named_workers
from support import waiting
from support.clock import SkippingClock
from support.mock_engine import MockEngine, engines
from support.profiles import domain_profile
from support.stack import Stack, stack
from support.waiting import HANG_S

SOON = {"open_s": 0.1}
"""A breaker that soon lets a worker try again."""


@asynccontextmanager
async def two_and_one() -> AsyncIterator[tuple[MockEngine, list[MockEngine]]]:
    blocks: dict[str, str] = {}
    async with engines(1, blocks) as prefill, engines(2, blocks) as decode:
        yield prefill[0], decode


async def start(
    prefill: MockEngine,
    decode: list[MockEngine],
    profile: Profile | None = None,
    wait_s: float = 0.3,
    learned: Profile | None = None,
) -> None:
    urls = {"prefill": [prefill.url], "decode": [engine.url for engine in decode]}
    config = load_config(None, {"wait_s": wait_s, **urls})
    jsq = create_policy("jsq", rng=np.random.default_rng(0))
    async with running_app(config, Profiles(profile, learned), lambda _: (jsq, jsq)):
        pass


async def refusal(*args: Any, **options: Any) -> EldrError:
    with pytest.raises(EldrError) as caught:
        await start(*args, **options)
    assert "\n" not in str(caught.value)
    return caught.value


async def test_no_worker_reachable_names_the_role_the_address_and_the_remedy() -> None:
    async with two_and_one() as (prefill, decode):
        await prefill.stop()
        error = await refusal(prefill, decode)
        assert isinstance(error, NoWorkerError)
        assert "no prefill worker is reachable" in str(error)
        assert prefill.url in str(error)
        assert "--wait" in str(error)


async def test_a_worker_that_comes_up_in_time_is_waited_for() -> None:
    async with two_and_one() as (prefill, decode):
        await prefill.stop()

        async def later() -> None:
            await asyncio.sleep(0.4)
            await prefill.start()

        await asyncio.gather(later(), start(prefill, decode, wait_s=HANG_S))


async def test_one_of_several_workers_is_enough_to_start() -> None:
    async with two_and_one() as (prefill, decode):
        await decode[0].stop()
        await start(prefill, decode)


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        (domain_profile(model="other"), "fitted for model 'other', worker p0 serves 'mock'"),
        (domain_profile(("code", "law", "zh")), "3 centroids cannot serve 2 workers; fit with --workers 2"),
        (domain_profile(experts=16), "experts 16 in the profile and 8 running"),
        (domain_profile(top_k=1), "top_k 1 in the profile and 2 running"),
    ],
)
async def test_a_profile_of_another_model_or_pool(profile: Profile, message: str) -> None:
    async with two_and_one() as (prefill, decode):
        error = await refusal(prefill, decode, profile)
        assert isinstance(error, ProfileError)
        assert message in str(error)


@pytest.mark.parametrize(
    ("learned", "signature"),
    [
        (domain_profile(), True),
        (domain_profile(("code", "law", "zh")), True),
        (domain_profile(model="other"), False),
        (domain_profile(experts=16), False),
        (domain_profile(top_k=1), False),
    ],
)
async def test_what_was_learned_of_another_model_keeps_no_router_from_starting(
    learned: Profile, signature: bool
) -> None:
    async with stack(policy="locality_band", learned=learned) as router:
        assert (await router.post(prompt="code text", max_tokens=2)).status == 200
        assert (await router.metric("eldr_similarity_count") == 1) == signature


@pytest.mark.parametrize(("learned_of", "in_use"), [("mock", "learned"), ("other", "given")])
async def test_the_policy_is_the_one_of_the_profile_in_use(learned_of: str, in_use: str) -> None:
    given, learned = domain_profile(tau=0.2), domain_profile(model=learned_of, tau=0.9)
    made: dict[str, Policy] = {}

    def policies(profile: Profile | None) -> tuple[Policy, Policy]:
        jsq, decode = (create_policy("jsq", rng=np.random.default_rng(0)) for _ in range(2))
        made["given" if profile is given else "learned"] = decode
        return jsq, decode

    async with two_and_one() as (prefill, decode):
        urls = {"prefill": [prefill.url], "decode": [engine.url for engine in decode]}
        config = load_config(None, {"wait_s": 20, **urls})
        async with running_app(config, Profiles(given, learned), policies) as app:
            _, decoding = app._fleets
            assert decoding.policy is made[in_use]


async def test_where_neither_profile_fits_it_is_the_given_one_that_keeps_the_router_from_starting() -> None:
    async with two_and_one() as (prefill, decode):
        given, learned = domain_profile(model="other"), domain_profile(model="another")
        error = await refusal(prefill, decode, given, learned=learned)
        assert isinstance(error, ProfileError)
        assert "fitted for model 'other', worker p0 serves 'mock'" in str(error)


async def test_what_was_learned_asks_for_no_counts() -> None:
    async with two_and_one() as (prefill, decode):
        prefill.faults.no_counts = True
        await start(prefill, decode, learned=domain_profile())


async def test_a_model_without_experts() -> None:
    async with two_and_one() as (prefill, decode):
        prefill.faults.no_counts = True
        error = await refusal(prefill, decode, domain_profile())
        assert isinstance(error, ConfigError)
        assert "p0" in str(error)
        assert "not a mixture of experts" in str(error)


async def test_counts_of_another_version() -> None:
    async with two_and_one() as (prefill, decode):
        prefill.faults.counts = {"v": 99}
        error = await refusal(prefill, decode, domain_profile())
        assert "prefill worker p0" in str(error)
        assert "version" in str(error)


async def test_a_prefill_worker_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eldr.proxy.probe.PROBE_TIMEOUT_S", 0.2)
    async with two_and_one() as (prefill, decode):
        prefill.faults.hang = True
        error = await refusal(prefill, decode, domain_profile())
        assert "p0" in str(error)
        assert "did not prefill one token within 0.2 s" in str(error)


async def test_a_model_named_by_its_folder_is_the_same_model() -> None:
    async with two_and_one() as (prefill, decode):
        for engine in (prefill, *decode):
            engine.model, engine.root = "served-name", "/some/where/mock"
        await start(prefill, decode, domain_profile(model="/else/where/mock"))


@pytest.mark.parametrize(("status", "let_in"), [(401, True), (404, False), (405, False), (503, False)])
async def test_what_lists_no_models_is_no_engine_unless_it_wants_a_key(status: int, let_in: bool) -> None:
    async with two_and_one() as (prefill, decode):
        for engine in decode:
            engine.models_status = status
        if let_in:
            await start(prefill, decode)
        else:
            error = await refusal(prefill, decode)
            assert isinstance(error, NoWorkerError)
            assert f"answers /v1/models with {status}; is it an engine?" in str(error)


async def test_workers_of_two_models_are_refused() -> None:
    async with two_and_one() as (prefill, decode):
        decode[1].model = decode[1].root = "other"
        error = await refusal(prefill, decode)
        assert isinstance(error, ConfigError)
        assert "worker d1 serves 'other'" in str(error)


@pytest.mark.parametrize(
    ("table", "more", "message"),
    [
        ({"law": ["x"], "code": ["y"]}, {}, None),
        (
            {"law": ["x", "z"]},
            {},
            "policy 'domain_label' names the worker 'z', but the decode workers are x, y",
        ),
        ({"law": ["z"]}, {"dns": {"decode": ["http://decode.svc:8000"]}}, None),
        (None, {}, None),
    ],
)
def test_a_policy_may_name_only_workers_that_are_there(
    table: dict[str, list[str]] | None, more: dict[str, Any], message: str | None
) -> None:
    config = load_config(
        None, {"prefill": ["http://p:1"], "decode": ["x=http://x:1", "y=http://y:1"], **more}
    )
    name, options = ("domain_label", {"workers": table}) if table else ("jsq", {})
    policy = create_policy(name, rng=np.random.default_rng(0), **options)
    with nullcontext() if message is None else pytest.raises(ConfigError, match=message):
        check_named_workers(policy, config)


async def test_a_table_of_labels_with_a_worker_that_is_not_there_keeps_the_router_from_starting() -> None:
    with pytest.raises(ConfigError, match="names the worker 'd7'"):
        async with stack(policy="domain_label", options={"workers": {"law": ["d7"]}}):
            pass


async def test_an_engine_that_wants_a_key_is_not_probed_but_used() -> None:
    async with two_and_one() as (prefill, decode):
        prefill.faults.status = (401, b"", "application/json")
        await start(prefill, decode, domain_profile())


async def until(s: Stack, worker: str, up: bool) -> None:
    await s.until_metric("eldr_worker_up", up, worker=worker)


async def test_an_unhealthy_worker_gets_nothing_until_it_is_healthy_again() -> None:
    async with stack(health_interval_s=0.03) as s:
        s.decode[0].healthy = False
        await until(s, "d0", up=False)
        assert await s.metric("eldr_upstream_errors_total", worker="d0", kind="health") == 1
        assert (await s.post(prompt="x", max_tokens=1)).decode_worker == "d1"
        s.decode[0].healthy = True
        await until(s, "d0", up=True)
        assert (await s.post(prompt="x", max_tokens=1)).decode_worker == "d0"


async def test_a_busy_worker_that_answers_requests_but_not_its_checks_in_time_stays_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SkippingClock(monkeypatch, "eldr.clock.MonotonicClock.now_s")
    async with stack(decode=1, health_interval_s=0.02, health_timeout_s=50) as s:
        engine = s.decode[0]
        engine.health_delay_s = 3600

        async def check_begins() -> None:  # a router that still connects would take the skip for its own lag
            before = engine.health_checks
            await waiting.until(lambda: engine.health_checks > before)

        for _ in range(4):
            await check_begins()
            for _ in range(3):  # the check's time runs out in the last one
                assert (await s.post(prompt="x", max_tokens=1)).status == 200
                clock.skip(20)
        assert await s.metric("eldr_upstream_errors_total", worker="d0", kind="health") == 0
        for _ in range(2):  # now that it answers no requests either
            await check_begins()
            clock.skip(60)
        await s.until_metric("eldr_worker_up", 0, worker="d0")


async def test_a_worker_that_died_and_came_back_gets_traffic_again() -> None:
    async with stack(health_interval_s=0.03, breaker=SOON) as s:
        await s.decode[0].stop()
        await until(s, "d0", up=False)
        await s.decode[0].start()
        await until(s, "d0", up=True)


async def test_a_worker_whose_checks_hang_delays_no_other_workers_return() -> None:
    async with stack(decode=3, health_interval_s=0.03, health_timeout_s=60, breaker=SOON) as s:
        s.decode[0].health_delay_s = 60
        await s.decode[1].stop()
        await until(s, "d1", up=False)
        await s.decode[1].start()
        await until(s, "d1", up=True)


async def test_a_worker_that_comes_back_with_another_model_stays_out() -> None:
    async with stack(health_interval_s=0.03) as s:
        await s.decode[0].stop()
        await until(s, "d0", up=False)
        s.decode[0].model = s.decode[0].root = "other"
        await s.decode[0].start()
        checks = s.decode[0].health_checks
        while s.decode[0].health_checks < checks + 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert await s.metric("eldr_worker_up", worker="d0") == 0


async def test_a_worker_whose_restart_only_one_check_saw_is_asked_for_its_model_again() -> None:
    async with stack(health_interval_s=0.03) as s:
        engine = s.decode[0]
        engine.healthy = False
        while s.app.membership.seen("d0").problem is None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        engine.model, engine.root, engine.healthy = "other", "other", True
        await until(s, "d0", up=False)
        assert (await s.post(prompt="x", max_tokens=1)).decode_worker == "d1"


async def test_a_worker_that_lists_no_model() -> None:
    guard = ModelGuard(None)
    with pytest.raises(ConfigError, match="worker d0 lists no model"):
        guard.check(Worker("d0", "http://d0:1"), [])
    guard.check(Worker("d1", "http://d1:1"), [{"id": "m"}])
    with pytest.raises(ConfigError, match="d2 serves 'other' but d1 serves 'm'"):
        guard.check(Worker("d2", "http://d2:1"), [{"id": "other"}])


async def test_a_prefill_worker_without_transfer_parameters_is_told_of_with_the_first_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with stack(profile=domain_profile()) as s:
        s.prefill[0].faults.no_kv_params = True
        for _ in range(3):
            assert (await s.post(prompt="law", max_tokens=2)).status == 200
        assert await s.metric("eldr_fallbacks_total", reason="no_kv_params") == 3
    assert caplog.text.count("(no_kv_params): the prefill worker's answer has no transfer parameters") == 1


async def test_what_the_start_asks_leaves_nothing_that_an_engine_holds() -> None:
    async with two_and_one() as (prefill, decode):
        await start(prefill, decode, domain_profile())
        assert prefill.received
        assert not prefill.blocks
