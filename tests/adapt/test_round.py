"""One look at what the router saw: a first profile, better centroids, or nothing."""

from typing import Any

import numpy as np
import pytest

from adapt.seen import record, sample
from eldr.adapt import child
from eldr.adapt.child import ChildError, ask, children_cpu_s
from eldr.adapt.choice import Choice
from eldr.adapt.round import Question, answer
from eldr.adapt.seats import Seats
from eldr.adapt.tune import Tuner
from eldr.adapt.window import Seen
from eldr.profile.artifact import Profile
from support.mock_engine import DOMAINS, TOP_K
from support.profiles import domain_profile

CURRENT = Choice.of("locality_band", tau=0.1)


def seats(profile: Profile | None, workers: int = 2, seated: int | None = None) -> Seats:
    names = tuple(f"d{number}" for number in range(workers))
    if profile is None:
        return Seats(names, None, np.zeros(workers, bool), None)
    centroids = np.zeros((workers, profile.centroids.shape[1]), np.float32)
    seated = workers if seated is None else seated
    centroids[:seated] = profile.centroids[:seated]
    return Seats(names, centroids, np.arange(workers) < seated, profile.centroids[:0])


def question(seen: list[Seen], profile: Profile | None, **given: Any) -> Question:
    facts: dict[str, Any] = {
        "seats": seats(profile),
        "asked_s": 1e6,
        "since_s": -1.0,
        "model": "mock",
        "top_k": TOP_K,
    }
    facts |= {"tuner": Tuner(CURRENT), "policy_since_s": 0.0, "latest": seen, "most_rows": 512}
    return Question(sample=seen, profile=profile, tau=0.1, **(facts | given))


def mixed(*domains: str, rows: int) -> list[str]:
    """As many of each, as far as that goes: balanced clusters of others would have to be mixed."""
    return np.random.default_rng(5).permutation(np.resize(domains, rows)).tolist()


def test_a_first_profile_is_made_once_there_is_enough() -> None:
    few = answer(question(sample(mixed(*DOMAINS[:2], rows=255)), None))
    assert few.profile is None
    assert "255 of 256" in few.why
    made = answer(question(sample(mixed(*DOMAINS[:2], rows=256)), None)).profile
    assert made is not None
    made.check_fits(layers=2, experts=8, top_k=TOP_K, model="mock", workers=2)
    known = domain_profile().centroids
    assert sorted((made.centroids @ known.T).argmax(axis=1)) == [0, 1]


def test_the_latest_requests_count_once_the_long_ones_of_their_time_have_ended() -> None:
    seen = sample(mixed(*DOMAINS[:2], rows=256))
    last_s = seen[-1].record.finish_s
    for number in range(0, 200, 10):  # every tenth takes longer
        decided_s = number / 10
        seen[number] = Seen(record(number, decided_s=decided_s, finish_s=decided_s + 3), seen[number].counts)
    now = answer(question(seen, None, asked_s=last_s))
    assert (now.profile, now.settling, now.result) == (None, True, "skipped")
    assert "236 of 256 requests" in now.why
    assert "and 20 of a time whose long ones may not have ended" in now.why
    later = answer(question(seen, None, asked_s=last_s + 3))
    assert later.profile is not None
    assert (later.settling, later.result) == (False, "used")
    assert not answer(question(seen[:200], None, asked_s=last_s)).settling


@pytest.mark.parametrize(
    ("workers", "most_rows", "needed"), [(8, 512, 256), (12, 512, 384), (70, 512, 512), (70, 90, 140)]
)
def test_no_more_is_asked_for_than_is_kept(workers: int, most_rows: int, needed: int) -> None:
    facts: dict[str, Any] = {"seats": seats(None, workers), "most_rows": most_rows}
    seen = sample(mixed(*DOMAINS, rows=needed + 20))
    assert f" of {needed} requests" in answer(question(seen[: needed - 1], None, **facts)).why
    made = answer(question(seen, None, **facts)).profile
    assert made is not None
    assert made.workers == workers
    again = question(seen, made, seats=seats(made, workers), most_rows=most_rows)
    assert answer(again).refit is not None


def test_a_first_profile_can_be_saved_and_loaded(tmp_path: Any) -> None:
    made = answer(question(sample(mixed(*DOMAINS[:2], rows=300)), None)).profile
    assert made is not None
    made.save(tmp_path / "p")
    assert np.array_equal(Profile.load(tmp_path / "p").centroids, made.centroids)


def test_counts_that_hold_nothing_are_no_part_of_a_first_profile() -> None:
    seen = sample(mixed(*DOMAINS[:2], rows=256))
    nothing = [Seen(one.record, np.zeros_like(one.counts)) for one in seen[:16] if one.counts is not None]
    assert "240 of 256" in answer(question([*nothing, *seen[16:]], None)).why
    made = answer(question([*nothing, *seen], None)).profile
    assert made is not None
    assert np.isfinite(made.centroids).all()


def test_nothing_changes_while_nothing_has_changed() -> None:
    first = answer(question(sample(mixed(*DOMAINS[:2], rows=400)), None)).profile
    again = answer(question(sample(mixed(*DOMAINS[:2], rows=400), seed=1), first))
    assert again.profile is None
    assert again.drift is not None
    assert not again.drift.alarm
    assert "stay" in again.why


def test_a_mix_that_jumps_raises_an_alarm_and_gives_centroids_of_what_is_asked_now() -> None:
    profile = domain_profile(DOMAINS[:2])
    jumped = sample(mixed(*DOMAINS[:2], rows=200) + mixed(DOMAINS[1], DOMAINS[2], rows=200))
    found = answer(question(jumped, profile))
    assert found.drift is not None
    assert found.drift.alarm
    assert found.profile is not None
    now = domain_profile(DOMAINS[1:3]).centroids
    assert set((found.profile.centroids @ now.T).argmax(axis=1)) == {0, 1}
    assert (found.profile.centroids @ domain_profile(DOMAINS[1:2]).centroids.T).argmax() == 1  # it stayed
    assert found.stale_s == pytest.approx(20, abs=0.2)


def test_what_came_before_the_last_change_is_not_taken_for_drift() -> None:
    jumped = sample(mixed(*DOMAINS[:2], rows=200) + mixed(DOMAINS[1], DOMAINS[2], rows=200))
    found = answer(question(jumped, domain_profile(DOMAINS[1:3]), since_s=19.95))
    assert found.drift is not None
    assert not found.drift.alarm


def test_a_worker_that_joined_gets_a_centroid() -> None:
    profile = domain_profile(DOMAINS[:2])
    found = answer(
        question(sample(mixed(*DOMAINS[:3], rows=200)), profile, seats=seats(profile, workers=3, seated=2))
    )
    assert found.profile is not None
    assert found.profile.workers == 3
    assert "the pool changed" in found.why


def test_where_centroids_stay_the_policy_is_looked_at() -> None:
    seen = sample(mixed(*DOMAINS[:2], rows=400))
    first = answer(question(seen, None)).profile
    again = answer(question(seen, first))
    assert again.study is not None
    assert again.study.requests == 400
    assert again.tuner is not None
    assert again.tuner.current == CURRENT
    assert "kept locality_band" in again.why
    off = answer(question(seen, first, tunes=False, refits=False))
    assert off.study is not None  # the estimate of the gain does not depend on it
    assert off.tuner == Tuner(CURRENT)
    assert off.refit is None


async def test_a_child_answers_as_this_process_does() -> None:
    asked = question(sample(mixed(*DOMAINS[:2], rows=300)), None)
    before_s = children_cpu_s()
    told = await ask(asked)
    here = answer(asked)
    assert told.profile is not None
    assert here.profile is not None
    assert np.allclose(told.profile.centroids, here.profile.centroids, atol=1e-6)
    assert told.why == here.why
    assert children_cpu_s() > before_s


async def test_a_child_that_dies_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = question(sample(["law"]), None, seats=None)
    with pytest.raises(ChildError, match="AttributeError"):
        await ask(broken)
    monkeypatch.setattr(child.sys, "executable", "/bin/false")
    with pytest.raises(ChildError, match="ended with 1"):
        await ask(broken)
