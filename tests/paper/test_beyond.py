"""The suite beyond the paper, on a world that takes milliseconds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eldr.errors import EldrError
from eldr.paper.beyond import build, cases, page, results, suite, worlds
from eldr.paper.beyond.cases import BAND, CANDIDATES, JSQ, ORACLES, RULES, SOFT, Case, measured, requests_of
from eldr.paper.beyond.results import Change, Row, Saved, Spread
from eldr.sim import StepCost
from eldr.sim.costs import named_cost
from eldr.traces import ExpertTraces
from eldr.traces.synthetic import Scales, SyntheticMoE, generate

MOE = SyntheticMoE(
    model="tiny",
    num_layers=2,
    num_experts=8,
    top_k=2,
    domains={"code": 1, "law": 1},
    scales=Scales(popularity=0.5, domain=1.5, topic=0.0, request=0.3, domain_phase=0.1, phase=0.1),
)
RUN = {"source": "tiny", "workers": 3, "batch": 4, "seed": 0, "kept": ""}


def tiny(seed: int, kept: Path) -> tuple[ExpertTraces, StepCost]:  # noqa: ARG001
    return generate(MOE, 60, prompt_tokens=50, seed=seed), named_cost("h200-qwen3-30b-a3b")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(worlds.SOURCES, "tiny", tiny)
    monkeypatch.setattr(cases, "LEAST_REQUESTS", 60)
    monkeypatch.setattr(worlds, "LENGTHS", (20.0, 10.0, 40.0))


@pytest.mark.parametrize("rule", RULES.names())
def test_every_rule_serves_all_requests(rule: str) -> None:
    numbers = measured(**RUN, rule=rule)
    assert 0 < numbers["p50_ms"] <= numbers["p99_ms"]
    assert 2 <= numbers["active"] <= 8
    assert numbers["busiest"] >= 1


def test_a_run_is_repeatable() -> None:
    assert measured(**RUN, rule=SOFT) == measured(**RUN, rule=SOFT)


def test_rules_get_the_same_requests_of_the_world() -> None:
    world = worlds.world_of("tiny", 3, 0, "")
    one, other = (requests_of(world, 3, 4, 0) for _ in range(2))
    np.testing.assert_array_equal(one.arrival_s, other.arrival_s)
    np.testing.assert_array_equal(one.output_tokens, other.output_tokens)
    assert len(world.served) == len(world.calibration_rates) == 30
    code = world.served.labels == "code"
    assert set(world.median_tokens[code]) == {20.0}
    assert set(world.median_tokens[~code]) == {10.0}


def test_a_light_load_makes_smaller_batches() -> None:
    light, heavy = (measured(**RUN | {"batch": batch}, rule=JSQ)["batch"] for batch in (2, 12))
    assert light < heavy


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results of one case and two seeds for the live policies only."""
    for module in (suite, results):
        monkeypatch.setattr(module, "CASES", (Case("tiny", 3, 4),))
        monkeypatch.setattr(module, "HELD_OUT", (0, 1))
    for one in suite.pieces(tmp_path, cases.LIVE):
        one.run(one.path(tmp_path))
    return tmp_path


def test_only_complete_rules_are_collected(kept: Path) -> None:
    saved = results.collect(suite.Runs(kept))
    (row,) = saved.rows
    assert set(row.rules) == {BAND, SOFT}
    values = [one.load(kept)["p50_ms"] for one in suite.pieces(kept, cases.LIVE)]
    jsq, band = np.array(values).reshape(2, 3).T[:2]
    assert row.jsq["p50_ms"] == pytest.approx(jsq.mean())
    assert row.rules[BAND].p50.mean == pytest.approx(100 * (band / jsq - 1).mean())


def test_the_file_the_plot_and_the_page_come_from_kept_runs(kept: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "bench").mkdir()
    page_of(tmp_path / build.PAGE)
    build.save(kept, tmp_path)
    build.show(tmp_path)
    assert (tmp_path / "bench" / "beyond.png").stat().st_size > 0
    text = (tmp_path / build.PAGE).read_text()
    assert "On 1 cases, with 2 seeds each:" in text
    assert text.count("Not run yet.") == 2  # neither oracles nor lengths


def test_a_missing_run_is_named(kept: Path) -> None:
    suite.piece(Case("tiny", 3, 4), JSQ, 1, kept).path(kept).unlink()
    with pytest.raises(EldrError, match="'jsq', seed 1"):
        results.collect(suite.Runs(kept))


def change(p50: float, p99: float, over_band: float, *, spread: float = 1.0) -> Change:
    p50_, p99_, over = (Spread(v, v - spread, v + spread) for v in (p50, p99, over_band))
    return Change(p50=p50_, p99=p99_, mean=p50_, active=p50_, over_band=over, busiest=1.0, batch=8.0)


def saved(soft: Change, band: Change, **others: Change) -> Saved:
    rules = {BAND: band, SOFT: soft} | others
    row = Row(source="tiny", workers=3, load="light", evidence="model", jsq={"batch": 8.0}, rules=rules)
    return Saved(created_at="", machine={}, seeds=2, rows=[row])


BAND_CHANGE = change(-5, 9, 0)


@pytest.mark.parametrize(
    ("soft", "dominates"),
    [
        (change(-7, -1, -2), True),
        (change(-7, 0.5, 0.5), True),  # worse, but by less than the seeds' spread
        (change(-7, 2, -2), False),  # a worse tail than JSQ's
        (change(-7, -1, 2), False),  # a worse median than the band's
        (change(-5.5, -1, -0.5), False),  # not 1.2 times the band
    ],
)
def test_what_dominates_the_band(soft: Change, dominates: bool) -> None:
    assert saved(soft, BAND_CHANGE).dominates(SOFT) is dominates


def page_of(file: Path) -> None:
    """A page with nothing but marks."""
    names = ("verdict", "cases", "candidates", "oracles", "lengths")
    file.write_text("".join(f"<!-- begin {name} -->\n<!-- end {name} -->\n" for name in names))


def test_the_page_is_made_of_the_numbers(tmp_path: Path) -> None:
    oracle, candidate = next(iter(ORACLES)), next(iter(CANDIDATES))
    own: dict[str, Any] = {oracle: change(-8, -1, -3), candidate: change(-2, 4, 3)}
    file = tmp_path / "policies.md"
    page_of(file)
    page.write_page(saved(change(-6, -2, -1), BAND_CHANGE, **own), file)
    text = file.read_text()
    assert "| -5.0 ± 1.0 % | +9.0 ± 1.0 % | -5.0 ± 1.0 % | -6.0 ± 1.0 % | -2.0 ± 1.0 % |" in text
    assert f"| {candidate} | -2.0 % | +4.0 % | -2.0 % | 1 of 1 | 1 of 1 | 0.40 |" in text
    assert "| `soft_locality` | -6.0 % | -2.0 % | -6.0 % | 75 % |" in text
    assert "1.20 times" in text


@pytest.mark.parametrize(("oracle", "beyond"), [(-4.0, 1), (-6.0, 0)])
def test_a_median_that_no_oracle_reaches_is_told_from_one_that_we_missed(oracle: float, beyond: int) -> None:
    missed = saved(change(-3, -1, 2), BAND_CHANGE, **{next(iter(ORACLES)): change(oracle, -1, 1)})
    assert f"In {beyond} of the 1 cases in which `soft_locality` misses" in page.oracles(missed)


def test_rules_that_count_lengths_are_compared_where_these_differ_and_where_not() -> None:
    soft, plain = change(-6, -2, -1), change(-5, -4, -1)
    differ = saved(soft, BAND_CHANGE, **{"without stays": plain})
    alike = Row(
        source=page.ALIKE_LENGTHS,
        workers=3,
        load="light",
        evidence="trace",
        jsq={"batch": 8.0},
        rules={SOFT: soft, "without stays": soft, BAND: BAND_CHANGE},
    )
    both = Saved(created_at="", machine={}, seeds=2, rows=[*differ.rows, alike])
    last = page.lengths(both).splitlines()[-1]
    assert last == "| `soft_locality` | without stays | -1.0 | +2.0 | -1.0 | +0.0 | +0.0 | +0.0 |"


def test_every_candidate_says_why_it_failed() -> None:
    assert set(CANDIDATES) <= set(page.WHY)


def test_recorded_languages_are_skewed() -> None:
    labels = np.array(["en", "zh", "en", "ru", "de", "es", "fr"])
    weights = worlds._weights("embedded/languages", labels)
    assert weights.sum() == pytest.approx(1)
    assert weights[labels == "en"].sum() == pytest.approx(0.476)
    assert set(worlds._weights("gpt-oss-20b", labels)) == {1 / 7}
