"""Gate probabilities against plain loops."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax

from eldr.errors import ConfigError
from eldr.signature.gates import GATE_TRANSFORMATIONS, GateTransform, gate_sums


@given(seed=st.integers(0, 1000), tokens=st.integers(0, 5), scale=st.sampled_from([0.1, 3.0, 1000.0]))
def test_sums_of_softmax(seed: int, tokens: int, scale: float) -> None:
    logits = np.random.default_rng(seed).normal(scale=scale, size=(tokens, 2, 4)).astype(np.float32)
    gates = gate_sums(logits)
    assert gates.dtype == np.float32
    np.testing.assert_allclose(gates, softmax(logits, axis=2).sum(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gates.sum(axis=1), tokens, rtol=1e-5)


def oracle(calibration: np.ndarray, gates: np.ndarray, name: str) -> np.ndarray:
    features = []
    for layer, expert in np.ndindex(gates.shape):
        used = sum(1 for g in calibration if g[layer, expert] > g[layer].sum() / g.shape[1])
        weight = math.log((len(calibration) + 1) / (used + 1)) if name == "gates_idf" else 1.0
        value = gates[layer, expert]
        features.append((math.log1p(value) if name == "gates_log" else float(value)) * weight)
    length = math.sqrt(sum(f * f for f in features))
    return np.array(features) / length if length else np.array(features)


@given(seed=st.integers(0, 1000), name=st.sampled_from(GATE_TRANSFORMATIONS.names()))
def test_equals_the_formula(seed: int, name: str) -> None:
    rng = np.random.default_rng(seed)
    gates = np.stack([gate_sums(rng.normal(size=(rng.integers(1, 9), 2, 5))) for _ in range(6)])
    many = GateTransform(name).fit(gates).transform_many(gates)
    for row, request in zip(many, gates, strict=True):
        np.testing.assert_allclose(row, oracle(gates, request, name), atol=1e-5)


def test_an_even_router_and_an_empty_prompt_tell_nothing() -> None:
    even, empty = gate_sums(np.zeros((4, 2, 5))), gate_sums(np.zeros((0, 2, 5)))
    gates = np.stack([even, even, empty])
    assert not empty.any()
    for name in GATE_TRANSFORMATIONS.names():
        signatures = GateTransform(name).fit(gates).transform_many(gates)
        assert np.isfinite(signatures).all()
        assert not signatures[2].any()


def test_names_of_the_other_kind_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown gate transformation 'idf'"):
        GateTransform("idf").fit(np.ones((2, 2, 3)))
