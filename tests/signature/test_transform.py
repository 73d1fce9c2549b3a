"""Signatures against plain loops, and their degenerate inputs."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr.errors import ConfigError, PayloadError
from eldr.signature import TRANSFORMATIONS, SignatureTransform

SCALE = {"idf": float, "counts": float, "log": math.log1p, "binary": lambda count: float(count > 0)}


def random_counts(seed: int, requests: int = 9, layers: int = 3, experts: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).poisson(0.8, (requests, layers, experts)).astype(np.uint32)


def oracle(calibration: np.ndarray, counts: np.ndarray, name: str, layers: list[int]) -> list[float]:
    """The paper's formula, one number at a time."""
    features = []
    for layer in layers:
        for expert in range(counts.shape[1]):
            df = sum(1 for request in calibration if request[layer, expert] > 0)
            weight = math.log((len(calibration) + 1) / (df + 1)) if name == "idf" else 1.0
            features.append(SCALE[name](counts[layer, expert]) * weight)
    length = math.sqrt(sum(f * f for f in features))
    return [f / length for f in features] if length else features


@given(
    seed=st.integers(0, 1000),
    name=st.sampled_from(TRANSFORMATIONS.names()),
    layers=st.permutations([0, 1, 2]).flatmap(lambda p: st.integers(1, 3).map(lambda n: p[:n])),
)
def test_equals_the_formula(seed: int, name: str, layers: list[int]) -> None:
    counts = random_counts(seed)
    transform = SignatureTransform(name, layers).fit(counts)
    many = transform.transform_many(counts)
    assert many.shape == (9, transform.length) == (9, len(layers) * 5)
    for row, request in zip(many, counts, strict=True):
        expected = oracle(counts, request, name, layers)
        np.testing.assert_allclose(row, expected, atol=1e-6)
        one = transform.transform(request)
        if any(expected):
            np.testing.assert_allclose(one, row, atol=1e-6)
            assert one is not None
            assert one.dtype == np.float32
            assert np.linalg.norm(one) == pytest.approx(1, abs=1e-6)
        else:
            assert one is None


def test_an_expert_that_every_request_uses_weighs_nothing() -> None:
    counts = np.array([[[3, 1, 0]], [[2, 0, 4]]], np.uint32)
    weights = SignatureTransform("idf").fit(counts).weights_
    np.testing.assert_allclose(weights, [[0, math.log(3 / 2), math.log(3 / 2)]], rtol=1e-6)


def test_degenerate_inputs_have_no_signature() -> None:
    counts = np.ones((4, 2, 3), np.uint32)
    idf = SignatureTransform("idf").fit(counts)
    assert idf.transform(counts[0]) is None
    assert not idf.transform_many(counts).any()
    for name in TRANSFORMATIONS.names():
        transform = SignatureTransform(name).fit(counts)
        assert transform.transform(np.zeros((2, 3), np.uint32)) is None
        assert np.isfinite(transform.transform_many(np.zeros((2, 2, 3), np.uint32))).all()


def test_largest_counts_stay_finite() -> None:
    counts = np.full((2, 48, 128), 2**32 - 1, np.uint32)
    for name in ("counts", "log", "binary"):
        signature = SignatureTransform(name).fit(counts).transform(counts[0])
        assert signature is not None
        np.testing.assert_allclose(signature, 1 / math.sqrt(48 * 128), rtol=1e-4)


def test_does_not_change_its_input() -> None:
    counts = random_counts(3)
    before = counts.copy()
    for name in TRANSFORMATIONS.names():
        transform = SignatureTransform(name).fit(counts)
        transform.transform(counts[0])
        transform.transform_many(counts)
        transform.transform_many(counts.astype(np.float32))
    assert np.array_equal(counts, before)


def test_fitted_again_from_what_was_learned() -> None:
    counts = random_counts(5)
    first = SignatureTransform("idf", [2, 0]).fit(counts)
    again = SignatureTransform.fitted("idf", first.weights_, first.kept_layers_)
    assert np.array_equal(again.transform_many(counts), first.transform_many(counts))


def test_bad_input_is_named() -> None:
    counts = random_counts(0)
    with pytest.raises(
        ConfigError, match="unknown transformation 'tfidf'; choose from idf, counts, log, binary"
    ):
        SignatureTransform("tfidf").fit(counts)
    with pytest.raises(ConfigError, match=r"got \(3, 5\)"):
        SignatureTransform().fit(counts[0])
    for layers in ([], [3], [-1], [0, 0]):
        with pytest.raises(ConfigError, match="kept layers are"):
            SignatureTransform("idf", layers).fit(counts)
    transform = SignatureTransform().fit(counts)
    for wrong in (np.ones((3, 6), np.uint32), np.ones((4, 5), np.uint32), np.ones(15, np.uint32)):
        with pytest.raises(PayloadError, match=r"the profile's \[3, 5\]"):
            transform.transform(wrong)
