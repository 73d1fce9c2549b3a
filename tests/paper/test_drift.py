"""The study of what is asked and changes, on a world that takes milliseconds."""

from pathlib import Path

import numpy as np
import pytest

from eldr.paper.beyond import worlds as beyond_worlds
from eldr.paper.beyond.cases import BAND, JSQ, SOFT
from eldr.paper.drift import alarms, cases, learner, page, plot, results
from eldr.paper.drift.cases import Case, measured
from eldr.paper.drift.learner import Look
from eldr.paper.drift.traffic import Load, calibration_labels, mixes, traffic_of
from eldr.traces.synthetic import generate

from .test_beyond import MOE, tiny

FASTER = 20
LOAD = Load(3, 4, 5.0, 14.0)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(beyond_worlds.SOURCES, "tiny", tiny)
    monkeypatch.setattr(beyond_worlds, "LENGTHS", (20.0, 10.0, 40.0))
    monkeypatch.setattr(cases, "WORKERS", 3)
    monkeypatch.setattr(cases, "BATCHES", {"tiny": 4})
    monkeypatch.setattr(learner, "KEPT", 512)
    monkeypatch.setattr(learner, "EVERY_S", learner.EVERY_S / FASTER)
    for name in ("EVENT_S", "END_S", "BIN_S"):
        monkeypatch.setattr(cases, name, getattr(cases, name) / FASTER)
    phases = {name: (start / FASTER, end / FASTER) for name, (start, end) in cases.PHASES.items()}
    monkeypatch.setattr(cases, "PHASES", phases)


def run(event: str, policy: str, centroids: str = "kept"):
    return measured(source="tiny", event=event, policy=policy, centroids=centroids, seed=0, kept="")


@pytest.mark.parametrize(
    ("event", "shares"), [("jump", (1.0, 0.0)), ("new", (1.0, 2 / 3)), ("none", (1.0, 1.0))]
)
def test_what_is_asked_changes_at_the_event_and_the_profile_knows_what_was_before(
    event: str, shares: tuple[float, float]
) -> None:
    world, requests = traffic_of("tiny", event, 0, "", LOAD)
    known, (before, after) = mixes(world, event, 0)
    asked = np.isin(world.served.labels[requests.kind], known)
    early = requests.arrival_s < LOAD.event_s
    assert (asked[early].mean(), asked[~early].mean()) == pytest.approx(shares, abs=0.08)
    assert before.sum() == pytest.approx(1)
    assert after.sum() == pytest.approx(1)
    assert requests.arrival_s[-1] < LOAD.end_s
    plain = beyond_worlds.world_of("tiny", 3, 0, "").profile.centroids
    assert np.array_equal(world.profile.centroids, plain) == (event == "none")


def test_calibration_requests_are_known_again() -> None:
    world = beyond_worlds.world_of("tiny", 3, 0, "")
    found = np.concatenate([calibration_labels("tiny", world, 0, ""), world.served.labels])
    wanted = generate(MOE, 60, prompt_tokens=50, seed=0).label
    assert sorted(found) == sorted(wanted)


@pytest.mark.parametrize("policy", [BAND, SOFT])
def test_a_jump_is_found_and_centroids_follow(policy: str) -> None:
    looks = [Look(**one) for one in run("jump", policy, "refitted")["looks"]]
    assert [one.at_s for one in looks] == pytest.approx(np.arange(1.5, 14, 1.5))
    alarm = next(one for one in looks if one.alarm)
    assert 5 < alarm.at_s <= 9
    moved = next(one for one in looks if one.at_s >= alarm.at_s and one.moved is not None)
    assert moved.at_s - alarm.at_s <= 3
    assert moved.gain is not None
    assert moved.gain > 0.05
    assert not any(one.first for one in looks)


def test_a_cold_start_makes_one_first_profile() -> None:
    numbers = run("none", BAND, "cold")
    assert sum(one["first"] for one in numbers["looks"]) == 1
    assert not any(one["alarm"] for one in numbers["looks"])


def test_centroids_that_are_kept_are_never_looked_at() -> None:
    assert run("jump", SOFT)["looks"] == []


def test_times_to_what_is_found_count_from_the_event() -> None:
    def look(at_s: float, alarm: bool, moved: float | None) -> Look:
        return Look(at_s=at_s, kept=9, p_value=None, alarm=alarm, first=False, moved=moved, gain=None)

    found = [[look(30, True, 0.1), look(120, False, 0.2), look(150, True, None)], [look(120, False, None)]]
    ms = {"before": [1.0, 1.0]}
    row = results.Row(
        case=Case("tiny", "jump", BAND, "refitted"),
        evidence="model",
        p50_ms=ms,
        mean_ms=ms,
        p99_ms=ms,
        looks=found,
        times_ms=[[1.0], [1.0]],
    )
    assert row.until("alarm", 100.0) == [50, None]
    assert row.until("moved", 100.0) == [20, None]


@pytest.mark.parametrize("users", alarms.USERS)
def test_checks_without_drift_raise_few_alarms(users: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarms, "CHECKS", 20)
    monkeypatch.setattr(alarms, "ROWS", 400)
    below = alarms.false_alarms(source="tiny", users=users, workers=3, kept="")["below"]
    assert below == sorted(below, reverse=True)
    assert below[0] <= 0.25  # one of 20 expected; six or more has a chance below 1 in 1,000
    assert below[-1] == 0


def test_page_and_plot_come_from_the_saved_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = ("kept", "refitted")
    wanted = [
        Case("tiny", event, policy, centroids)
        for event in ("jump", "none")
        for policy, centroids in ((JSQ, "kept"), *((SOFT, kind) for kind in kinds))
    ]
    monkeypatch.setattr(alarms, "CHECKS", 2)
    monkeypatch.setattr(learner, "EVERY_S", 4.0)
    for module in (cases, results):
        monkeypatch.setattr(module, "cases", lambda: wanted)
        monkeypatch.setattr(module, "SEEDS", (0,))
    for module in (plot, results):
        monkeypatch.setattr(module, "BATCHES", cases.BATCHES)
    monkeypatch.setattr(results, "EVENT_S", cases.EVENT_S)
    for one in cases.pieces(str(tmp_path)):
        one.run(one.path(tmp_path))
    saved = results.collect(tmp_path)
    row, jsq = saved.of(Case("tiny", "jump", SOFT, "refitted")), saved.of(Case("tiny", "jump", JSQ))
    later = 100 * (row.mean_ms["later"][0] / jsq.mean_ms["later"][0] - 1)
    assert f"{later:+.1f} ± 0.0 %" in page.tpot(saved, "jump")
    assert page.refits(saved).count(f"`{SOFT}`") == 2
    assert f"| tiny | `{SOFT}` | refitted | 3 | 0 |" in page.quiet(saved)
    assert page.alarms(saved).count("jump") == 1
    assert page.false_alarms(saved).count("| tiny |") == len(alarms.USERS)
    plot.draw(saved, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000
