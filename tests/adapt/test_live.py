"""A router that learns, between mock engines: the real loop, the real child process."""

import asyncio
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapt.seen import record
from eldr.adapt import live
from eldr.adapt.choice import Choice
from eldr.adapt.live import Learning, learning_for
from eldr.adapt.round import Answer, Question
from eldr.adapt.saving import Saving
from eldr.adapt.study import Study
from eldr.adapt.tune import Tuner
from eldr.config import load_config
from eldr.profile.artifact import Profile
from eldr.settings_adapt import AdaptConfig
from eldr.types import ExpertCounts
from eldr.wire import encode_counts
from support.mock_engine import DOMAINS, TOP_K, engines
from support.profiles import domain_profile
from support.stack import Stack, stack

URLS = {"prefill": ["http://a:1"], "decode": ["http://b:1"]}


def learning(**settings: Any) -> Learning:
    quick = {"interval_s": 0.1, "share": 1.0, "window_s": 0.1} | settings
    return Learning(AdaptConfig(**quick), Choice("locality_band"), tau=0.1, seed=0)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "POLL_S", 0.02)
    monkeypatch.setattr(live, "SETTLE_S", 0.05)


async def ask(stack: Stack, *domains: str, rounds: int = 1) -> list[str | None]:
    """One request of each domain a round, four at a time; returns the decode workers of the last round."""
    workers: list[str | None] = []
    for number in range(rounds):
        bodies = [{"prompt": f"{domain} text {number}", "max_tokens": 2} for domain in domains]
        replies = await asyncio.gather(*(stack.post(**body) for body in bodies))
        assert {reply.status for reply in replies} == {200}
        workers = [reply.decode_worker for reply in replies]
    return workers


async def until(is_so: Callable[[], Any]) -> None:
    async with asyncio.timeout(120):
        while not await is_so():  # noqa: ASYNC110 - a metric has no event
            await asyncio.sleep(0.02)


async def refits(stack: Stack) -> float:
    return await stack.metric("eldr_refits_total", result="used")


async def test_without_a_profile_a_router_starts_by_load_and_makes_one_from_what_it_sees(
    tmp_path: Path,
) -> None:
    file = tmp_path / "learned"
    async with stack(policy="locality_band", learner=learning(interval_s=1, save=str(file))) as router:
        await ask(router, "law", "zh")
        assert await router.metric("eldr_fallbacks_total", reason="no_profile") == 2
        await ask(router, "law", "zh", rounds=150)
        await until(lambda: refits(router))
        before = await router.metric("eldr_fallbacks_total", reason="no_profile")
        first, second = await ask(router, "law", "zh", rounds=4)
        assert first != second
        assert await ask(router, "law", "zh", rounds=4) == [first, second]
        assert await router.metric("eldr_fallbacks_total", reason="no_profile") == before
        assert await router.metric("eldr_learned_from_requests") > 256
        await until(lambda: router.metric("eldr_learning_cpu_seconds_total"))
    saved = Profile.load(file)
    assert (saved.workers, saved.info.model) == (2, "mock")


async def test_a_worker_that_joins_gets_a_cluster_and_one_that_leaves_gives_it_back() -> None:
    profile = domain_profile(DOMAINS[:2])
    async with (
        stack(policy="locality_band", profile=profile, learner=learning(interval_s=3600)) as router,
        engines(1, {}) as new,
    ):
        new[0].blocks = router.decode[0].blocks
        await ask(router, "code", "law", "zh", rounds=60)
        await router.app.membership.add("decode", new[0].url, "new")
        await until(lambda: refits(router))
        assert len(set(await ask(router, "code", "law", "zh", rounds=5))) == 3
        await ask(router, "code", "law", "zh", rounds=20)
        router.app.membership.remove("d1")
        await until(lambda: _more(router, 1))
        workers = await ask(router, "code", "law", "zh", rounds=5)
        assert set(workers) == {"d0", "new"}


async def _more(router: Stack, than: int) -> bool:
    return await refits(router) > than


async def test_a_mix_that_jumps_is_counted_and_logged_and_the_centroids_follow(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LEAST_NEW", 240)
    profile = domain_profile(DOMAINS[:2])
    async with stack(policy="locality_band", profile=profile, learner=learning()) as router:
        with caplog.at_level(logging.WARNING):
            await ask(router, "code", "law", rounds=60)
            await ask(router, "zh", "math", rounds=60)
            await until(lambda: refits(router))
        assert await router.metric("eldr_drift_alarms_total") == 1
        assert await router.metric("eldr_drift_p_value") < 1e-4
        assert "what is asked has changed" in caplog.text
        first, second = await ask(router, "zh", "math", rounds=4)
        assert first != second
        assert await ask(router, "zh", "math", rounds=4) == [first, second]


async def test_a_child_that_fails_is_counted_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(_: object) -> None:
        raise RuntimeError("no more memory")

    monkeypatch.setattr(live, "ask", broken)
    profile = domain_profile(DOMAINS[:2])
    async with stack(policy="locality_band", profile=profile, learner=learning()) as router:
        await ask(router, "code", "law", rounds=30)
        await until(lambda: router.metric("eldr_refits_total", result="failed"))
        assert await ask(router, "code", "law") == ["d0", "d1"]


async def test_counts_of_another_model_are_refused_and_not_learned_from() -> None:
    """A new model behind the same name: the profile's router goes by load, and learns nothing of it."""
    learner, other = learning(), np.full((3, 4), TOP_K, np.uint32)
    async with stack(policy="locality_band", profile=domain_profile(DOMAINS[:2]), learner=learner) as router:
        await ask(router, "code", "law", rounds=4)
        router.prefill[0].faults.counts = encode_counts(other, top_k=TOP_K, tokens=4)
        await ask(router, "code", "law", rounds=4)
        assert await router.metric("eldr_fallbacks_total", reason="other_profile") == 8
    assert [one.counts is None for one in learner._latest.seen()] == [False] * 8 + [True] * 8
    assert len(learner._sample) == 8


async def test_a_new_model_behind_the_same_name_gets_a_profile_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "ANOTHER_MODEL", 5)
    other = np.full((3, 4), TOP_K, np.uint32)
    async with stack(
        policy="locality_band", profile=domain_profile(DOMAINS[:2]), learner=learning()
    ) as router:
        router.prefill[0].faults.counts = encode_counts(other, top_k=TOP_K, tokens=4)
        await ask(router, "code", "law", rounds=140)
        await until(lambda: refits(router))
        before = await router.metric("eldr_fallbacks_total", reason="other_profile")
        await ask(router, "code", "law")
        assert await router.metric("eldr_fallbacks_total", reason="other_profile") == before


async def test_what_was_found_for_a_model_that_is_gone_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, profile = learning(), domain_profile(DOMAINS[:2])

    async def meanwhile(_: object) -> Answer:
        learner._begin_with((3, 4, TOP_K))
        return Answer(profile, "new centroids")

    monkeypatch.setattr(live, "ask", meanwhile)
    async with stack(policy="locality_band", profile=profile, learner=learner) as router:
        await ask(router, "code", "law", rounds=20)
        await until(lambda: router.metric("eldr_refits_total", result="failed"))
        assert await refits(router) == 0


async def test_a_profile_that_could_not_be_saved_is_saved_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile, answers = domain_profile(DOMAINS[:2]), iter([True])

    async def once(_: object) -> Answer:
        return Answer(profile if next(answers, False) else None, "made")

    monkeypatch.setattr(live, "ask", once)
    file = tmp_path / "folder" / "learned"
    file.parent.write_text("in the way")
    learner = learning(save=str(file))
    async with stack(policy="locality_band", profile=profile, learner=learner) as router:
        await ask(router, "code", "law", rounds=20)
        await until(lambda: refits(router))
        file.parent.unlink()
        await ask(router, "code", "law", rounds=20)
        await until(lambda: asyncio.to_thread(file.exists))
    assert np.array_equal(Profile.load(file).centroids, profile.centroids)


async def test_what_needs_time_alone_is_looked_at_again_without_a_new_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers = [Answer(None, "240 of 256 requests", settling=True)] * 2
    answers.append(Answer(domain_profile(DOMAINS[:2]), "first profile"))

    async def settles(_: object) -> Answer:
        return answers.pop(0)

    monkeypatch.setattr(live, "ask", settles)
    async with stack(policy="locality_band", learner=learning()) as router:
        with caplog.at_level(logging.INFO):
            await ask(router, "law", rounds=live.LEAST_NEW)
            await until(lambda: refits(router))
        assert await router.metric("eldr_refits_total", result="skipped") == 2
    assert caplog.text.count("240 of 256 requests") == 2
    assert not answers


@pytest.mark.parametrize("another_model", [True, False])
async def test_while_there_is_no_profile_of_the_model_one_new_request_is_enough_for_a_look(
    monkeypatch: pytest.MonkeyPatch, another_model: bool
) -> None:
    asked: list[Question] = []

    async def too_few(question: Question) -> Answer:
        asked.append(question)
        return Answer(None, "too few requests")

    monkeypatch.setattr(live, "ask", too_few)
    monkeypatch.setattr(live, "ANOTHER_MODEL", 1)
    profile = domain_profile(DOMAINS[:2])
    async with stack(policy="locality_band", profile=profile, learner=learning()) as router:
        if another_model:
            other = np.full((3, 4), TOP_K, np.uint32)
            router.prefill[0].faults.counts = encode_counts(other, top_k=TOP_K, tokens=4)
        monkeypatch.setattr(live, "LEAST_NEW", 8)
        await ask(router, "law", rounds=8)
        await until(lambda: asyncio.sleep(0, bool(asked) and len(asked[-1].sample) == 8))
        await ask(router, "law")
        if another_model:
            await until(lambda: asyncio.sleep(0, len(asked[-1].sample) == 9))
        else:
            await asyncio.sleep(0.5)
            assert len(asked) == 1
        assert (asked[-1].profile is None) == another_model


async def test_a_child_that_takes_too_long_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = asyncio.Event()

    async def hangs(_: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    monkeypatch.setattr(live, "ask", hangs)
    monkeypatch.setattr(live, "LONGEST_S", 0.05)
    profile = domain_profile(DOMAINS[:2])
    async with stack(policy="locality_band", profile=profile, learner=learning()) as router:
        await ask(router, "code", "law", rounds=20)
        await until(lambda: router.metric("eldr_refits_total", result="failed"))
        assert stopped.is_set()


async def test_another_policy_takes_over_between_two_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Question] = []

    async def change(question: Question) -> Answer:
        asked.append(question)
        saved = Saving(0.06, 0.05, 0.08, 0.02, 0.01)
        study = Study(60, None, (), saved, None)
        return Answer(None, "changed", study=study, tuner=Tuner(Choice("jsq")))

    monkeypatch.setattr(live, "ask", change)
    profile = domain_profile(DOMAINS[:2], tau=0.3)
    async with stack(policy="locality_band", profile=profile, learner=learning()) as router:
        assert math.isnan(await router.metric("eldr_estimated_tpot_saving_ratio"))
        await ask(router, "law", rounds=40)
        await until(lambda: router.metric("eldr_policy_changes_total", policy="jsq"))
        assert asked[0].tuner.current == Choice.of("locality_band", tau=0.3)
        assert len(asked[0].latest) >= 32
        reply = await router.post(prompt="a law text", max_tokens=2)
        assert reply.headers["x-eldr-policy"] == "jsq"
        names = ("ratio", "ratio_low", "ratio_high")
        told = [await router.metric(f"eldr_estimated_tpot_saving_{name}") for name in names]
        assert told == [0.06, 0.05, 0.08]
        assert await router.metric("eldr_estimated_tpot_error_ratio") == 0.01


def test_counts_of_another_shape_count_once_nothing_else_comes(caplog: pytest.LogCaptureFixture) -> None:
    learner = learning()
    one, other = (
        ExpertCounts(np.ones(shape, np.uint32), 2, tokens=8, covered=8) for shape in ((2, 8), (3, 8))
    )
    for number in range(300):
        learner.saw(record(number, decided_s=float(number)), other if number % 2 else one)
    assert {seen.counts.shape for seen in learner._sample.seen() if seen.counts is not None} == {(2, 8)}
    assert not caplog.records
    for number in range(live.ANOTHER_MODEL + 20):
        learner.saw(record(number, decided_s=400.0 + number), other)
    assert {seen.counts.shape for seen in learner._sample.seen() if seen.counts is not None} == {(3, 8)}
    assert caplog.text.count("learning begins anew") == 1


def test_counts_of_a_large_model_have_the_same_room() -> None:
    learner = learning()
    large = ExpertCounts(np.ones((60, 384), np.uint32), 8, tokens=8, covered=8)
    for number in range(3000):
        learner.saw(record(number, decided_s=float(number)), large)
    assert len(learner._latest) == live.ROOM_BYTES // (2 * 60 * 384)


@pytest.mark.parametrize(
    ("settings", "learns"),
    [
        ({}, True),
        ({"policy": {"name": "soft_locality"}}, True),
        ({"policy": {"name": "jsq"}}, False),
        ({"adapt": {"refit": False}}, False),
        ({"adapt": {"refit": False}, "profile": "p"}, True),
        ({"adapt": {"refit": False, "tune": False}, "profile": "p"}, False),
        ({"adapt": {"tune": False}}, True),
    ],
)
def test_who_learns(settings: dict[str, Any], learns: bool) -> None:
    assert (learning_for(load_config(None, URLS | settings)) is not None) == learns
