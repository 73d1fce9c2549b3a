"""Greedy layer selection against the same search done slowly, by rho of whole signatures."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr.signature import SignatureTransform
from eldr.signature.layers import LayerCurve, select_layers
from eldr.signature.quality import rho
from support.synthetic import calibration_set


def slowly(prefill: np.ndarray, decode: np.ndarray) -> tuple[list[int], list[float]]:
    left, order, curve = list(range(prefill.shape[1])), [], []
    while left:
        values = []
        for layer in left:
            transform = SignatureTransform("counts", [*order, layer]).fit(prefill)
            values.append(rho(transform.transform_many(prefill), decode))
        best = int(np.argmax(values))
        order.append(left.pop(best))
        curve.append(values[best])
    return order, curve


@given(seed=st.integers(0, 200), layers=st.integers(1, 4))
def test_equals_the_slow_search(seed: int, layers: int) -> None:
    calibration = calibration_set(requests=14, layers=layers, experts=6, seed=seed, sharpness=0.5)
    prefill, decode = calibration.prefill_counts, calibration.decode_counts
    curve = select_layers(SignatureTransform("counts").fit(prefill).features(prefill), decode)
    assert curve is not None
    order, values = slowly(prefill, decode)
    np.testing.assert_allclose(curve.rho, values, atol=1e-3)
    if np.diff(np.sort(values)).min(initial=1) > 1e-3:
        assert list(curve.order) == order


def test_layers_that_tell_nothing_are_left_out() -> None:
    calibration = calibration_set(requests=80, layers=5, domains=4)
    prefill = calibration.prefill_counts.copy()
    rng = np.random.default_rng(0)
    for layer in (1, 3):
        prefill[:, layer] = rng.permuted(prefill[:, layer], axis=1)
    noisy = replace(calibration, prefill_counts=prefill)
    curve = select_layers(
        SignatureTransform("counts").fit(prefill).features(prefill), noisy.decode_counts, pairs=2000
    )
    assert curve is not None
    assert set(curve.kept) <= {0, 2, 4}
    assert set(curve.order) == {0, 1, 2, 3, 4}
    assert set(curve.order[3:]) == {1, 3}


def test_a_sample_of_pairs_is_repeatable_and_near_the_whole() -> None:
    calibration = calibration_set(requests=120, layers=4)
    features = (
        SignatureTransform("counts").fit(calibration.prefill_counts).features(calibration.prefill_counts)
    )
    whole, sampled, again, other = (
        select_layers(features, calibration.decode_counts, pairs=pairs, seed=seed)
        for pairs, seed in ((10_000, 0), (2000, 0), (2000, 0), (2000, 1))
    )
    assert sampled == again != other
    assert whole is not None
    assert sampled is not None
    assert max(sampled.rho) == pytest.approx(max(whole.rho), abs=0.05)


def test_the_top_of_the_curve_with_the_fewest_layers() -> None:
    assert LayerCurve((2, 0, 1), (0.5, 0.7, 0.7)).kept == (0, 2)
    assert LayerCurve((2, 0, 1), (0.7, -np.inf, 0.6)).kept == (2,)
    assert LayerCurve((0,), (0.1,)).kept == (0,)


def test_no_curve_where_rho_is_not_defined() -> None:
    calibration = calibration_set(requests=6)
    features = calibration.prefill_counts.astype(np.float32)
    decode = calibration.decode_counts
    assert select_layers(features[:2], decode[:2]) is None
    assert select_layers(features, np.zeros_like(decode)) is None
    assert select_layers(np.zeros_like(features), decode) is None
    same = np.zeros(6, int)
    assert select_layers(features[same], decode) is None
    assert select_layers(features, decode[same]) is None


def test_a_layer_without_features_comes_last() -> None:
    calibration = calibration_set(requests=30)
    features = calibration.prefill_counts.astype(np.float32)
    features[:, 1] = 0
    features[:4, 0] = 0  # requests that tell nothing while layer 0 is alone
    curve = select_layers(features, calibration.decode_counts)
    assert curve is not None
    assert 1 not in curve.kept
    assert np.isfinite(curve.rho).all()
