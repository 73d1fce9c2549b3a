from dataclasses import replace

import numpy as np
import pytest

from eldr.errors import ConfigError
from eldr.traces.synthetic import Population, Scales, SyntheticMoE, generate, inclusion

MOE = SyntheticMoE(
    model="made-up",
    num_layers=3,
    num_experts=32,
    top_k=4,
    domains={"a": 3, "b": 1},
    scales=Scales(popularity=1.0, domain=0.8, topic=0.3, request=0.3, domain_phase=0.2, phase=0.3),
    topics=2,
    depth=(1.0, 0.5, 1.5),
)


def test_inclusion_is_what_gumbel_top_k_draws() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=1.5, size=32).astype(np.float32)
    noisy = logits + rng.gumbel(size=(20_000, 32))
    chosen = np.argpartition(-noisy, 3, axis=1)[:, :4]
    drawn = np.bincount(chosen.ravel(), minlength=32) / 20_000
    np.testing.assert_allclose(inclusion(logits, 4), drawn, atol=0.04)


@pytest.mark.parametrize("scale", [0.0, 1.0, 6.0])
@pytest.mark.parametrize("top_k", [1, 8, 31, 32])
def test_inclusion_sums_to_top_k(scale: float, top_k: int) -> None:
    logits = np.random.default_rng(1).normal(scale=scale, size=(5, 32))
    chosen = inclusion(logits, top_k)
    np.testing.assert_allclose(chosen.sum(axis=1), top_k, rtol=2e-3)
    assert (chosen >= 0).all()
    assert (chosen <= 1).all()


def test_requests_are_whole() -> None:
    traces = generate(MOE, 700, prompt_tokens=np.arange(1, 701), seed=3)
    assert traces.prefill.dtype == np.uint16
    np.testing.assert_array_equal(traces.prefill.sum(axis=2), np.arange(1, 701)[:, None].repeat(3, 1) * 4)
    np.testing.assert_allclose(traces.decode_rates().sum(axis=2), 4, rtol=5e-3)
    assert 0.7 < (traces.label == "a").mean() < 0.8
    assert traces.evidence == "model"


def test_the_same_seed_gives_the_same_and_other_requests_of_the_same_model() -> None:
    first, again, others = (generate(MOE, 20, seed=3, requests_seed=s) for s in (0, 0, 1))
    np.testing.assert_array_equal(first.prefill, again.prefill)
    assert (first.prefill != others.prefill).any()
    np.testing.assert_array_equal(Population(MOE, 3).domain, Population(MOE, 3).domain)


def test_some_layers_are_those_of_the_whole_model() -> None:
    whole, part = Population(MOE, 5), Population(MOE, 5, np.array([0, 2]))
    second, nothing = np.ones(1, np.int64), (np.zeros(1, np.float32), np.zeros(1, np.float32))
    of_whole, of_part = (one.logits(second, second, nothing) for one in (whole, part))
    for mine, all_layers in zip(of_part, of_whole, strict=True):
        np.testing.assert_array_equal(mine, all_layers[:, [0, 2]])
    assert whole.factor.tolist() == [1.0, 0.5, 1.5]
    assert generate(MOE, 2, layers=np.array([0, 2])).layers.tolist() == [0, 2]


def test_without_a_phase_offset_prefill_says_all_of_decode() -> None:
    scales = replace(MOE.scales, phase=0.0, domain_phase=0.0)
    traces = generate(replace(MOE, scales=scales), 20, prompt_tokens=60_000)
    np.testing.assert_allclose(traces.prefill / 60_000, traces.decode_rates(), atol=0.02)


def test_request_and_phase_offsets_have_their_scales() -> None:
    """Prefill and decode logits of one domain: covariance request^2, variance request^2 + phase^2."""
    flat = Scales(popularity=0.0, domain=0.0, topic=0.0, request=0.6, domain_phase=0.0, phase=0.3)
    moe = replace(MOE, scales=flat, num_experts=256, top_k=2, depth=(1.0,))
    traces = generate(moe, 150, prompt_tokens=60_000)
    before, after = np.log(np.maximum(traces.prefill / 60_000, 1e-4)), np.log(traces.decode_rates())
    before, after = (x - x.mean(axis=2, keepdims=True) for x in (before, after))
    assert (before * after).mean() == pytest.approx(0.36, abs=0.02)
    assert (after**2).mean() == pytest.approx(0.45, abs=0.02)


def test_domains_are_as_similar_as_asked() -> None:
    wanted = np.array([[1, 0.9, 0], [0.9, 1, 0.2], [0, 0.2, 1]])
    moe = replace(MOE, num_layers=40, domains={"x": 1, "y": 1, "z": 1}, similarity=tuple(map(tuple, wanted)))
    offsets = Population(moe, 0).domain.reshape(3, -1)
    np.testing.assert_allclose(np.corrcoef(offsets), wanted, atol=0.08)
    assert offsets.std() == pytest.approx(0.8, abs=0.03)


def test_shared_topics_are_the_same_in_every_domain() -> None:
    own, shared = (Population(replace(MOE, shared_topics=s), 0).topic for s in (False, True))
    assert len(shared) == 1
    assert len(own) == 2
    traces = generate(replace(MOE, shared_topics=True), 10)
    assert len(traces) == 10


@pytest.mark.parametrize(
    "change",
    [
        {"top_k": 33},
        {"domains": {}},
        {"domains": {"a": -1.0, "b": 2.0}},
        {"similarity": ((1.0,),)},
    ],
)
def test_bad_models_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change)).split("_")[0]):
        replace(MOE, **change)


def test_a_similarity_that_cannot_be_is_refused() -> None:
    impossible = ((1.0, 2.0), (2.0, 1.0))
    with pytest.raises(ConfigError, match="eigenvalue"):
        Population(replace(MOE, similarity=impossible), 0)
