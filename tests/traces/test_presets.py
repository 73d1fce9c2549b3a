from dataclasses import asdict

import numpy as np
import pytest

from eldr.errors import ConfigError
from eldr.traces import fit, fit_page
from eldr.traces.presets import FITTED, SHAPES, fitted, preset
from eldr.traces.synthetic import Scales, generate
from eldr.traces.targets import Target


@pytest.mark.parametrize("model", SHAPES)
@pytest.mark.parametrize("workload", ["tasks", "languages"])
def test_every_preset_makes_requests(model: str, workload: str) -> None:
    moe = preset(model, workload)
    traces = generate(moe, 3, prompt_tokens=20, layers=np.array([0, moe.num_layers - 1]))
    assert (traces.prefill.sum(axis=2) == 20 * SHAPES[model][2]).all()
    assert set(traces.label) <= set(moe.domains)


def test_languages_that_the_traffic_does_not_have_are_never_drawn() -> None:
    traces = generate(preset(FITTED, "languages"), 300, layers=np.array([0]))
    assert not {"bn", "sw"} & set(traces.label)
    assert 0.38 < (traces.label == "en").mean() < 0.58


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="known: qwen3-30b-a3b"):
        preset("gpt-5", "tasks")
    with pytest.raises(ConfigError, match="known: tasks, languages"):
        preset(FITTED, "poems")


def test_every_scale_was_fitted() -> None:
    names = set(asdict(fit.START))
    assert all(set(of["scales"]) == names for of in fitted().values())


def test_a_target_is_a_band() -> None:
    target = Target("t", 1.0, 2.0, 0.1, "here", lambda traces: len(traces))
    assert target.residual(1.5) == 0
    assert abs(target.residual(1.9)) < 0.3
    assert target.residual(2.2) == pytest.approx(2.35)
    assert target.residual(0.8) == pytest.approx(2 - 0.35)


def test_depth_profile_follows_how_much_domains_differ() -> None:
    domains = np.ones((2, 2, 4))
    domains[:, 1] = [[1, 1, 0, 0], [0, 0, 1, 1]]
    assert fit.depth_profile(domains) == [0.0, pytest.approx(2**0.5, abs=1e-3)]


def test_similarity_keeps_what_was_measured() -> None:
    names = ["de", "en", "es", "fr", "zh"]
    cosines = np.full((5, 5), 0.6)
    cosines[2, 3] = cosines[3, 2] = 0.9
    cosines[4, :4] = cosines[:4, 4] = 0.5
    np.fill_diagonal(cosines, 1)
    found = fit.with_unmeasured(names, cosines)
    place = {name: row for row, name in enumerate([*names, "ru", "pt"])}
    assert found.shape == (7, 7)
    np.testing.assert_allclose(np.diag(found), 1)
    assert np.linalg.eigvalsh(found).min() > -1e-9
    assert found[place["es"], place["fr"]] == pytest.approx(0.8, abs=0.02)
    assert found[place["zh"], place["en"]] == pytest.approx(0, abs=0.02)
    assert found[place["pt"], place["es"]] == pytest.approx(0.8, abs=0.05)
    assert found[place["ru"], place["de"]] == pytest.approx(0.2, abs=0.05)


def test_the_nearest_correlation_of_one_is_itself() -> None:
    good = np.array([[1, 0.3], [0.3, 1]])
    np.testing.assert_allclose(fit.nearest_correlation(good), good)
    bad = np.array([[1, 0.9, -0.9], [0.9, 1, 0.9], [-0.9, 0.9, 1]])
    assert np.linalg.eigvalsh(fit.nearest_correlation(bad)).min() > -1e-9


def test_fixed_scales_stay() -> None:
    free = tuple(name for name in asdict(fit.START) if name != "topic")
    job = fit.Job("x", {"scales": {"topic": 0.25}}, [], free)
    assert fit.scales_of(job, np.zeros(5)) == Scales(1.0, 1.0, 0.25, 1.0, 1.0, 1.0)


def test_the_page_shows_targets_beside_what_was_achieved() -> None:
    goals = [Target(n, -0.2, -0.1, 0.01, "Fig. 4", lambda traces: len(traces)) for n in ("change", "out")]
    cosines = fit_page.Cosines(["a-b", "a-c", "b-c"], [0.5, 0.6, 0.9], [0.5, 0.7, 0.9])
    parameters = {"tasks": {"scales": asdict(fit.START)}}
    text = fit_page.page(
        parameters, [("tasks", goals, {FITTED: [[-0.12, -0.14], [0.0]], "x": [[-0.3], [0.0]]})], cosines
    )
    assert "| change | [-0.200, -0.100] | -0.130 ± 0.010 | -0.300 | Fig. 4 |" in text
    assert "| out | [-0.200, -0.100] | 0.000 (!) | 0.000 |" in text
    assert "a-c: 0.70, recorded 0.60" in text
    assert "popularity 1.200" in text
