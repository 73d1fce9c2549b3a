"""The study of pools that change, on a world that takes milliseconds."""

from pathlib import Path

import numpy as np
import pytest

from eldr.paper.beyond import worlds as beyond_worlds
from eldr.paper.beyond.cases import BAND, JSQ, SOFT
from eldr.paper.elastic import cases, page, results, seats
from eldr.paper.elastic.cases import Case, measured
from eldr.paper.elastic.seats import Seats

from .test_beyond import tiny


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(beyond_worlds.SOURCES, "tiny", tiny)
    monkeypatch.setattr(beyond_worlds, "LENGTHS", (20.0, 10.0, 40.0))
    monkeypatch.setattr(cases, "WORKERS", 3)
    monkeypatch.setattr(cases, "VICTIM", 1)
    monkeypatch.setattr(cases, "HEAVY", 4)
    monkeypatch.setattr(seats, "WINDOW", 64)
    for name in ("CHANGE_S", "BACK_S", "END_S", "BIN_S"):
        monkeypatch.setattr(cases, name, getattr(cases, name) / 40)
    phases = {name: (start / 40, end / 40) for name, (start, end) in cases.PHASES.items()}
    monkeypatch.setattr(cases, "PHASES", phases)


def run(event: str, policy: str, centroids: str = "kept"):
    return measured(source="tiny", event=event, policy=policy, centroids=centroids, seed=0, kept="")


@pytest.mark.parametrize("centroids", ["kept", "refitted"])
@pytest.mark.parametrize("policy", [BAND, SOFT])
def test_a_failure_cuts_off_requests_and_moves_some(policy: str, centroids: str) -> None:
    numbers = run("fail", policy, centroids)
    assert numbers["broken"] > 0
    assert numbers["refused"] == 0
    at_the_failure, at_the_return = numbers["moved"]
    assert 0 < at_the_failure < 1
    assert 0 < at_the_return < 1
    assert set(numbers["p50_ms"]) == set(cases.PHASES)
    assert len(numbers["times_ms"]) == 36


def test_a_worker_that_joins_gets_work_and_moves_requests_only_with_new_centroids() -> None:
    kept, refitted = (run("join", SOFT, centroids) for centroids in cases.CENTROIDS)
    assert kept["moved"] == [0.0]
    assert 0 < refitted["moved"][0] < 1
    assert kept["broken"] == refitted["broken"] == 0
    assert kept["joined"] > 0.2
    assert refitted["joined"] > 0.2


def test_without_centroids_nothing_moves() -> None:
    assert run("fail", JSQ)["moved"] == []


def test_who_returns_gets_what_it_had_unless_all_is_made_again() -> None:
    world = beyond_worlds.world_of("tiny", 3, 0, "")
    centroids = world.profile.centroids
    for refitted in (False, True):
        own = Seats(centroids, refitted=refitted)
        own._lately = lambda: world.served.signatures  # type: ignore[method-assign]
        away, back = own.change([0, 2]), own.change([0, 1, 2])
        if not refitted:
            assert away is None
            assert back is None
            np.testing.assert_array_equal(np.stack(list(own._now.values())), centroids)
        else:
            assert away is not None
            assert back is not None
            assert (list(away[1]), list(back[1])) == ([0, 2], [0, 1, 2])
            np.testing.assert_allclose(np.linalg.norm(back[0], axis=1), 1, rtol=1e-5)


def test_page_and_plot_come_from_the_saved_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = tuple(
        Case("tiny", event, policy, centroids)
        for event in cases.EVENTS
        for policy, centroids in ((JSQ, "kept"), (SOFT, "kept"), (SOFT, "refitted"))
    )
    for module in (cases, results):
        monkeypatch.setattr(module, "CASES", wanted)
        monkeypatch.setattr(module, "SEEDS", (0,))
    monkeypatch.setattr(page, "SOURCES", ("tiny",))
    for one in cases.pieces(str(tmp_path)):
        one.run(one.path(tmp_path))
    saved = results.collect(tmp_path)
    row = saved.of(Case("tiny", "fail", SOFT))
    at = 100 * (row.p50_ms["during"][0] / row.p50_ms["before"][0] - 1)
    assert f"{at:+.1f} ± 0.0 %" in page.phases(saved, "fail")
    assert f"| tiny | `{SOFT}` | kept | {row.broken[0]:.1f} |" in page.fail_cost(saved)
    assert page.join_cost(saved).count("| 0 % |") == 1
    assert page.refitted(saved).count(f"`{SOFT}`") == 2
    page.draw(saved, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000
