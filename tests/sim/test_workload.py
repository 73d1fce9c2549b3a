"""Arrivals, mixes and lengths against what they are meant to be."""

import msgspec
import numpy as np
import pytest

from eldr.errors import ConfigError
from eldr.metrics.records import RequestRecord
from eldr.sim import (
    cost_names,
    gamma_arrivals,
    lognormal_lengths,
    mixed_kinds,
    modulated_arrivals,
    named_cost,
    poisson_arrivals,
    replayed_requests,
    shared_prefixes,
)

from .small import pairs_of_experts

KINDS = pairs_of_experts(4)
N = 20_000


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 3.0])
def test_gaps_have_the_rate_and_the_variation_asked_for(cv: float) -> None:
    gaps = np.diff(gamma_arrivals(N, 20.0, cv, rng()), prepend=0.0)
    assert gaps.mean() == pytest.approx(0.05, rel=0.05 + 0.02 * cv)
    assert gaps.std() == pytest.approx(cv * 0.05, rel=0.1, abs=1e-9)


def test_modulated_arrivals_take_their_rates_in_turn() -> None:
    arrivals = modulated_arrivals(N, [10.0, 90.0], 20.0, rng())
    assert len(arrivals) == N
    assert (np.diff(arrivals) >= 0).all()
    per_second = np.bincount(arrivals.astype(int))
    assert N / arrivals[-1] == pytest.approx(50.0, rel=0.25)
    assert per_second.var() > 10 * per_second.mean()  # a Poisson process has 1 times


def test_a_mix_has_its_shares() -> None:
    shares = {"kind0": 3.0, "kind2": 1.0}
    drawn = np.bincount(mixed_kinds(KINDS, N, rng(), shares), minlength=4) / N
    assert drawn == pytest.approx([0.75, 0, 0.25, 0], abs=0.02)
    assert np.bincount(mixed_kinds(KINDS, N, rng())) / N == pytest.approx([0.25] * 4, abs=0.02)
    with pytest.raises(ConfigError, match="nonsense"):
        mixed_kinds(KINDS, 10, rng(), {"nonsense": 1.0})


def test_lengths_have_the_median_and_stay_within_bounds() -> None:
    lengths = lognormal_lengths(N, 200, 0.7, rng(), most=500)
    assert np.median(lengths) == pytest.approx(200, rel=0.03)
    assert (lengths.min() >= 1, lengths.max()) == (True, 500)
    assert set(lognormal_lengths(10, 7, 0.0, rng()).tolist()) == {7}


def test_shared_texts_belong_to_one_label() -> None:
    kind = mixed_kinds(KINDS, N, rng())
    prefix = shared_prefixes(kind, KINDS, 0.4, 3, rng())
    assert (prefix >= 0).mean() == pytest.approx(0.4, abs=0.02)
    assert (prefix[prefix >= 0] // 3 == kind[prefix >= 0]).all()


def test_recorded_requests_come_again() -> None:
    whole = RequestRecord(
        request_id="", path="", started_at=0, arrival_s=10.0, finish_s=20.0, outcome="ok", prompt_tokens=5,
        output_tokens=6, label="kind2",
    )  # fmt: skip
    later = msgspec.structs.replace(whole, arrival_s=14.0, prompt_tokens=7, label="other")
    broken = msgspec.structs.replace(whole, arrival_s=11.0, outcome="broken")
    requests = replayed_requests([later, broken, whole], KINDS, rng(), speed=2.0)
    assert requests.arrival_s.tolist() == [0.0, 2.0]
    assert requests.prompt_tokens.tolist() == [5, 7]
    assert requests.output_tokens.tolist() == [6, 6]
    assert requests.kind[0] == 2
    with pytest.raises(ConfigError, match="0 whole answers"):
        replayed_requests([broken], KINDS, rng())


@pytest.mark.parametrize(
    "make",
    [
        lambda: poisson_arrivals(5, 0.0, rng()),
        lambda: gamma_arrivals(5, 1.0, -1.0, rng()),
        lambda: modulated_arrivals(5, [0.0], 1.0, rng()),
        lambda: shared_prefixes(np.zeros(3, int), KINDS, 1.5, 1, rng()),
        lambda: named_cost("nonsense"),
    ],
)
def test_what_makes_no_sense_is_refused(make) -> None:
    with pytest.raises(ConfigError):
        make()


@pytest.mark.parametrize("name", cost_names())
def test_every_cost_file_is_whole_and_says_where_it_comes_from(name: str) -> None:
    """Steps grow with active experts, batch and context, and are of a plausible length."""
    cost = named_cost(name)
    assert cost.name == name
    base = cost.step_s(60, 32, 32_000)
    assert 1e-3 < base < 0.2
    assert cost.step_s(61, 32, 32_000) > base
    assert cost.step_s(60, 33, 32_000) > base
    assert cost.step_s(60, 32, 64_000) > base
    assert {fit.part for fit in cost.fits} >= {"moe", "attention", "rest"}
    assert all(fit.source for fit in cost.fits)
