"""What the figures compute, on made-up requests of two domains."""

import numpy as np
import pytest

from eldr.paper.measure import costs, fitting, gates, locality, serving, signatures, sources
from eldr.paper.measure.worlds import World
from eldr.paper.stats import interval
from eldr.sim import Rates
from eldr.traces.presets import preset
from paper.made_up import DOMAINS, traces


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (locality, signatures):
        monkeypatch.setattr(module, "traces_of", lambda _: traces())


def test_requests_of_one_domain_are_more_alike() -> None:
    found = locality.domains("made-up")
    assert found["domains"] == list(DOMAINS)
    assert found["within"] > found["between"]
    mean, low, high = found["gap"]
    assert mean == pytest.approx(found["within"] - found["between"])
    assert low < mean < high
    assert np.array(found["deviation"]).shape == (2, 8)


def test_batches_of_one_domain_activate_fewer_experts() -> None:
    found = locality.batches("made-up", sizes=(4, 20), draws=10)
    assert list(found["sizes"]) == ["4"], "no domain has 20 requests"
    own = found["sizes"]["4"]
    assert own["same"] < own["mixed"]
    assert own["change"][0] == pytest.approx(100 * (own["same"] / own["mixed"] - 1))


def test_prefill_foretells_decode_of_domains_that_differ() -> None:
    found = locality.prediction("made-up")
    assert found["pooled"] > 0.9
    assert set(found["by_domain"]) == set(DOMAINS)


def test_signatures_of_domains_are_told_apart() -> None:
    assert signatures.transformations("made-up")["rho"]["counts"] > 0.5
    assert signatures.clusters("made-up", "counts", 2)["purity"] == 1.0
    chosen = signatures.layers("made-up", "counts")
    assert len(chosen["order"]) == len(chosen["curve"]) == 3
    assert chosen["kept"] == np.argmax(chosen["curve"]) + 1


def test_gate_sums_add_up_to_the_tokens() -> None:
    logits = np.array([[[2.0, 0.0, -2.0]]])
    sums = gates.gate_sums(np.repeat(logits, 50, axis=0), np.full(50, 7), np.random.default_rng(0))
    assert sums.sum(axis=2) == pytest.approx(7, rel=1e-5)
    assert (np.diff(sums.mean(axis=0)[0]) < 0).all()


@pytest.mark.parametrize(
    ("labels", "workers", "expected"),
    [
        ("aabb", 4, {"a": ["d0", "d1"], "b": ["d2", "d3"]}),
        ("aaab", 4, {"a": ["d0", "d1", "d2"], "b": ["d3"]}),
        ("aaaaaaaaab", 2, {"a": ["d0"], "b": ["d1"]}),
        ("abc", 2, {"a": ["d0"], "b": ["d1"], "c": ["d1"]}),
        ("aaaaabbc", 5, {"a": ["d0", "d1", "d2"], "b": ["d3"], "c": ["d4"]}),
    ],
)
def test_labels_get_workers_by_their_share(labels: str, workers: int, expected: dict[str, list[str]]) -> None:
    assert fitting.label_table(np.array(list(labels)), workers) == expected


def world() -> World:
    made = traces(40)
    return World(
        labels=made.label[20:],
        prompt_tokens=np.full(20, 30),
        prefill=made.prefill[20:],
        gates=None,
        experts=Rates(made.decode_rates(slice(20, None))),
        calibration_prefill=made.prefill[:20],
        calibration_gates=None,
        calibration_rates=made.decode_rates(slice(20)),
        cost=costs.cost_of("qwen3-30b-a3b"),
    )


def test_a_run_is_measured_and_can_be_had_again(monkeypatch: pytest.MonkeyPatch) -> None:
    one = world()
    for module in (serving, fitting):
        monkeypatch.setattr(module, "world_of", lambda *_: one)
    monkeypatch.setattr(serving, "LEAST_REQUESTS", 60)
    monkeypatch.setattr(serving, "SECONDS", 1)
    fitting.fitted.cache_clear()
    fitting._signatures.cache_clear()
    own = {"model": "m", "workload": "w", "rate": 200.0, "seed": 0, "prefill": 1, "decode": 2}
    routers = ("jsq", "domain_label", "locality_band")
    found = {router: serving.served(router=router, transformation="counts", **own) for router in routers}
    assert found["locality_band"] == serving.served(router="locality_band", transformation="counts", **own)
    assert found["locality_band"]["active_experts"] < found["jsq"]["active_experts"]
    assert all(run["tpot_p99_ms"] >= run["tpot_p50_ms"] > 0 for run in found.values())
    vanilla = serving.served(router="locality_band", transformation="counts", clustering="vanilla", **own)
    assert vanilla["busiest"] >= 1
    fitting.fitted.cache_clear()
    fitting._signatures.cache_clear()


def test_layers_that_are_made_are_spread_evenly() -> None:
    made = sources.made_layers(preset("qwen3-30b-a3b", "tasks"))
    assert (made[0], made[-1], len(made)) == (0, 47, sources.LAYERS)


def test_intervals() -> None:
    assert interval([3.0]) == (3.0, 3.0, 3.0)
    mean, low, high = interval([1.0, 2.0, 3.0])
    assert (mean, high - mean) == pytest.approx((2.0, 4.3027 / np.sqrt(3)), rel=1e-4)
    assert mean - low == pytest.approx(high - mean)
