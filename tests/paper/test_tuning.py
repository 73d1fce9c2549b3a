"""The tuner's closed loops, on a world that takes little time."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from eldr.adapt.choice import DEFAULT, JSQ
from eldr.paper.beyond import worlds
from eldr.paper.beyond.cases import requests_of
from eldr.paper.beyond.worlds import World, world_of
from eldr.paper.tuning import loop, page
from eldr.paper.tuning.live import Live, run
from eldr.paper.tuning.loop import measured
from eldr.paper.tuning.results import Estimate, Loop, Phase, Round, Run, Saved, known
from eldr.sim import StepCost
from eldr.sim.costs import named_cost
from eldr.traces import ExpertTraces
from eldr.traces.synthetic import Scales, SyntheticMoE, generate

MOE = SyntheticMoE(
    model="tiny",
    num_layers=2,
    num_experts=16,
    top_k=2,
    domains={"code": 1, "law": 1, "news": 1},
    scales=Scales(popularity=0.3, domain=2.0, topic=0.0, request=0.3, domain_phase=0.1, phase=0.1),
)
CASE: dict[str, Any] = {"source": "tuned", "workers": 3, "batch": 4, "noise": 0.0, "kept": ""}


def tiny(seed: int, kept: Path) -> tuple[ExpertTraces, StepCost]:  # noqa: ARG001
    return generate(MOE, 60, prompt_tokens=200, seed=seed), named_cost("h200-qwen3-30b-a3b").lent_to(16)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(worlds.SOURCES, "tuned", tiny)
    monkeypatch.setattr(worlds, "LENGTHS", (20.0, 10.0, 40.0))
    monkeypatch.setattr(loop, "LEAST_KEPT", 250)


@pytest.fixture
def world() -> World:
    return world_of("tuned", 3, 0, "")


def test_a_window_holds_the_last_requests_to_end(world: World) -> None:
    windows = []
    requests = requests_of(world, 3, 4, 0, 200)

    def look(live: Live, now_s: float) -> None:
        windows.append((now_s, live.window(30)))

    live = run(world, requests, 3, JSQ, look, every_s=float(requests.arrival_s[-1]) / 3)
    assert len(windows) == 3
    now_s, window = windows[1]
    assert len(window) == 30
    ended = live.records.finish_s[live.records.finish_s <= now_s]
    np.testing.assert_allclose(np.sort(window.finish_s), np.sort(ended)[-30:])
    assert (np.diff(window.decided_s) >= 0).all()
    row = int(np.flatnonzero(live.records.decided_s == window.decided_s[0])[0])
    np.testing.assert_array_equal(window.counts[0], world.prefill[requests.kind[row]])
    assert window.counted.all()


def test_a_policy_can_be_changed_while_it_runs(world: World) -> None:
    requests = requests_of(world, 3, 4, 0, 200)
    half_s = float(requests.arrival_s[-1]) / 2

    def look(live: Live, now_s: float) -> None:  # noqa: ARG001
        live.policy.switch(DEFAULT)

    changed = run(world, requests, 3, JSQ, look, half_s).records
    kept = run(world, requests, 3, JSQ).records
    before = changed.decided_s < half_s
    np.testing.assert_array_equal(changed.decode_worker[before], kept.decode_worker[before])
    assert (changed.decode_worker[~before] != kept.decode_worker[~before]).any()


def test_a_loop_studies_each_new_window() -> None:
    one = msgspec.convert(measured(**CASE, seed=0, starts=["tau 2"]), Run)
    rounds = one.loops["tau 2"].rounds
    assert [round(r.at_s / one.every_s) for r in rounds] == [1, 2, 3]
    assert rounds[0].current == "locality_band(tau=2.0)"
    assert rounds[-1].estimate is not None
    assert abs(rounds[-1].estimate.jsq_error) < 0.1
    assert all(r.said for r in rounds)


def saved() -> Saved:
    estimate = Estimate(
        r2=0.9,
        active_ratio=1.1,
        replay_error=0.01,
        jsq_error=-0.02,
        saving=0.08,
        low=0.05,
        high=0.11,
        true_saving=0.06,
    )
    round_ = Round(at_s=60.0, current="jsq()", estimate=estimate, cpu_s=1.5, said="kept jsq()")
    stays = Loop(
        begin=Phase(5.0, 6.0), final=Phase(5.0, 6.0), changes=[], choice="soft_locality()", rounds=[round_]
    )
    back = Loop(
        begin=Phase(6.0, 9.0),
        final=Phase(5.05, 6.3),
        changes=[(120.0, "soft_locality()")],
        choice="soft_locality()",
        rounds=[],
    )
    one = Run(
        source="tiny",
        workers=3,
        batch=8,
        noise=0.0,
        seed=0,
        evidence="model",
        rate=10.0,
        every_s=60.0,
        default_begin=Phase(5.0, 6.0),
        default=Phase(5.0, 6.0),
        jsq=Phase(5.5, 6.0),
        loops={"default": stays, "tau 0": back},
    )
    return Saved(created_at="", machine={}, runs=[one])


def test_the_page_is_made_of_the_numbers(tmp_path: Path) -> None:
    file = tmp_path / "tuning.md"
    names = ("verdict", "estimates", "recovery", "default")
    file.write_text("".join(f"<!-- begin {name} -->\n<!-- end {name} -->\n" for name in names))
    page.write_page(saved(), file)
    text = file.read_text()
    assert (
        "| tiny, 3 workers, light | model | 0.90 | 1.10 | -2.0 % | 8.0 % | 6.0 % | +2.0 (+2.0 to +2.0)"
        in text
    )
    assert "holds the true one in 1 of 1 studies" in text
    assert "| +20.0 % | at 120 s to `soft_locality()` | +1.0 % | +5.0 % |" in text
    assert "| tiny, 3 workers, light | never | +0.0 % | +0.0 % | +0.0 % |" in text
    assert "left by 120 s" in text


def test_only_estimates_with_a_known_truth_are_judged() -> None:
    (estimate,) = known(saved().runs)
    assert estimate.off_points == pytest.approx(2)
    assert estimate.holds
