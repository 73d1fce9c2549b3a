"""The study of expert parallelism, on a world that takes milliseconds."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from eldr.paper.beyond import cases as beyond_cases
from eldr.paper.beyond import worlds as beyond_worlds
from eldr.paper.beyond.cases import BAND, JSQ, SOFT
from eldr.paper.parallel import cases, page, results, validity, worlds
from eldr.paper.parallel.candidates import AddedExperts
from eldr.paper.parallel.cases import CANDIDATES, Case, measured
from eldr.paper.parallel.results import Row, Saved
from eldr.paper.parallel.worlds import Setting, cost_on, placement_on, world_on
from eldr.sim import Placement
from eldr.sim.costs import named_cost
from eldr.traces import DecodeIds
from eldr.types import PoolView, RoutingRequest

from . import made_up
from .test_beyond import tiny

COUNTED = {"placement": "linear", "ranks": 4, "redundant": 0, "batch": 16}
COUNTED |= {"counted": 5.0, "expected": 5.1, "of_means": 4.5}
SETTINGS = (Setting(4, "split"), Setting(4, "linear"), Setting(4, "own", 4))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds, "LIKE", "tiny")
    monkeypatch.setitem(beyond_worlds.SOURCES, "tiny/tasks", tiny)
    monkeypatch.setattr(beyond_cases, "LEAST_REQUESTS", 60)
    monkeypatch.setattr(beyond_worlds, "LENGTHS", (20.0, 10.0, 40.0))
    monkeypatch.setattr(cases, "WORKERS", 3)


def run(setting: Setting, rule: str) -> dict[str, float]:
    names = {"gpus": setting.gpus, "where": setting.where, "redundant": setting.redundant}
    return measured(workload="tasks", batch=4, rule=rule, seed=0, kept="", **names)


@pytest.mark.parametrize("rule", [JSQ, BAND, SOFT, *CANDIDATES])
def test_every_rule_serves_on_every_setting(rule: str) -> None:
    split, linear, own = (run(setting, rule) for setting in SETTINGS)
    for numbers in (split, linear, own):
        assert 0 < numbers["p50_ms"] <= numbers["p99_ms"]
    # 8 experts on 4 ranks: the busiest has between a fourth of the active ones and its two
    assert split["active"] / 4 < linear["active"] <= 2
    assert linear["p50_ms"] > split["p50_ms"]


def test_experts_move_where_each_worker_places_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    placed = []
    monkeypatch.setattr(
        cases.Cluster, "place", lambda _, worker, placement: placed.append((worker, placement))
    )
    run(Setting(4, "own", 4), SOFT)
    assert {worker for worker, _ in placed} == {0, 1, 2}
    assert len(placed) == 3 * len(cases.MOVES)
    assert all(placement.slots.shape == (2, 12) for _, placement in placed)
    assert any((placement.slots != placed[0][1].slots).any() for _, placement in placed)


def test_split_experts_take_each_gpu_its_share() -> None:
    """All ranks equally busy take as long as experts that are split over the GPUs."""
    four = named_cost(worlds.COST)
    assert cost_on(Setting(4, "linear")) == four
    split, parallel = (cost_on(Setting(8, where)) for where in ("split", "linear"))
    assert split.step_s(64, 32, 1000) == pytest.approx(parallel.step_s(64 / 8, 32, 1000))
    assert parallel.attention.sequence_us == pytest.approx(four.attention.sequence_us / 2)


def test_balanced_placement_is_by_the_calibration_requests() -> None:
    setting = Setting(4, "balanced", 4)
    world = world_on(setting, "tasks", 3, 0, "")
    placement = placement_on(setting, world)
    load = np.tensordot(world.calibration_tokens, world.calibration_rates, axes=1)
    assert placement.replicas[0].argmax() == load[0].argmax()
    assert placement.replicas[0].max() > 1


def test_a_rule_that_knows_the_ranks_avoids_the_busiest() -> None:
    """One worker's requests use experts of rank 0, the other's one of each rank; the request uses rank 0."""
    world = world_on(Setting(4, "linear"), "tasks", 2, 0, "")
    rule = AddedExperts(world, Placement.linear(2, 8, 2))
    rule._mean[:] = 0.01
    rule._mean[0][:, [0, 1, 2]] = rule._mean[1][:, [0, 4, 5]] = 0.9
    chance = np.zeros((2, 8), np.float32)
    chance[:, 3] = 1
    rule._chance = lambda _: chance  # type: ignore[method-assign]
    load = np.array([4, 4])
    pool = PoolView(("a", "b"), load, load.astype(float), np.ones(2, bool), None, np.ones(2, bool))
    assert rule.costs(RoutingRequest("0"), pool).argmin() == 1
    blind = AddedExperts(world, None)
    blind._mean, blind._chance = rule._mean, rule._chance  # type: ignore[method-assign]
    np.testing.assert_allclose(*blind.costs(RoutingRequest("0"), pool), atol=0.05)


def test_page_and_plot_come_from_the_saved_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cases, results):
        monkeypatch.setattr(module, "CASES", (Case("tasks", 4),))
        monkeypatch.setattr(module, "SETTINGS", SETTINGS[:2])
        monkeypatch.setattr(module, "TRIED", ())
        monkeypatch.setattr(module, "SEEDS", (0, 1))
    for one in cases.pieces(str(tmp_path)):
        one.run(one.path(tmp_path))
    one = validity.validity()
    one.path(tmp_path).write_bytes(msgspec.json.encode([COUNTED]))
    saved = results.collect(tmp_path)
    assert "| 4 | 0 | linear | 16 | 5.00 | +2.0 % | -10.0 % |" in page.validity(saved)
    split, linear = saved.rows
    assert saved.left(split, SOFT) == 1
    gains = [row.change(SOFT, "p50_ms").mean for row in (linear, split)]
    assert saved.left(linear, SOFT) == pytest.approx(gains[0] / gains[1])
    text = page.settings(saved)
    assert f"| tasks, heavy | EP 4, linear | {linear.mean(JSQ, 'p50_ms'):.1f} |" in text
    page.draw(saved, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_candidates_are_shown_with_their_average(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "TRIED", (Setting(4, "linear"),))
    values = {"p50_ms": [10.0, 10.0], "p99_ms": [20.0, 20.0], "active": [5.0, 5.0]}
    better = values | {"p50_ms": [9.0, 9.0]}
    rules = {JSQ: values} | dict.fromkeys((BAND, SOFT, *CANDIDATES), better)
    row = Row(case="tasks, heavy", setting=Setting(4, "linear"), rules=rules)
    text = page.candidates(Saved(created_at="", machine={}, seeds=2, rows=[row], validity=[]))
    assert text.count("-10.0 ± 0.0 %") == text.count("**-10.0 %**") == 1 + len(CANDIDATES)


def test_counts_of_recorded_ids_and_expectations_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that always choose the same experts: nothing is left to chance."""
    ids = DecodeIds.join([np.full((5, 2, 2), 2 * request + np.arange(2), np.uint8) for request in range(4)])
    traces = replace(made_up.traces(requests=4, layers=2), ids=ids, rates=None)
    monkeypatch.setattr(validity, "gpt_oss_20b", lambda: traces)
    monkeypatch.setattr(validity, "BATCHES", (4,))
    monkeypatch.setattr(validity, "RANKS", ((2, 0),))
    for row in validity.compared():
        assert row["counted"] == pytest.approx(4)
        assert row["expected"] == pytest.approx(4, abs=1e-3)
        assert row["of_means"] == pytest.approx(4)
