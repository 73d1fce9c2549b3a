"""rho against scipy and plain loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from eldr.signature import SignatureTransform
from eldr.signature.quality import MAX_REQUESTS, decode_overlap, rho, spearman
from support.synthetic import calibration_set


@given(values=st.lists(st.tuples(st.integers(0, 5), st.floats(-3, 3, width=32)), min_size=3, max_size=40))
def test_spearman_equals_scipy(values: list[tuple[int, float]]) -> None:
    x, y = np.array(values, np.float64).T
    got = spearman(x, y)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert got is None
    else:
        assert got == pytest.approx(spearmanr(x, y)[0], abs=1e-9)


def test_overlap_is_the_mean_cosine_over_layers() -> None:
    counts = np.random.default_rng(0).poisson(1.0, (6, 3, 4)).astype(np.uint32)
    counts[2, 1] = 0
    overlap = decode_overlap(counts)
    for i in range(6):
        for j in range(6):
            cosines = []
            for a, b in zip(counts[i].astype(float), counts[j].astype(float), strict=True):
                lengths = np.linalg.norm(a) * np.linalg.norm(b)
                cosines.append(a @ b / lengths if lengths else 0.0)
            assert overlap[i, j] == pytest.approx(np.mean(cosines), abs=1e-6)


def test_rho_is_high_for_domains_and_about_zero_for_shuffled_ones() -> None:
    calibration = calibration_set(requests=60)
    signatures = SignatureTransform("counts").fit(calibration.prefill_counts)
    rows = signatures.transform_many(calibration.prefill_counts)
    true = rho(rows, calibration.decode_counts)
    shuffled = rho(np.random.default_rng(0).permutation(rows), calibration.decode_counts)
    assert true is not None
    assert shuffled is not None
    assert true > 0.6
    assert abs(shuffled) < 0.2


def test_requests_that_tell_nothing_are_left_out() -> None:
    calibration = calibration_set(requests=30)
    rows = (
        SignatureTransform("counts")
        .fit(calibration.prefill_counts)
        .transform_many(calibration.prefill_counts)
    )
    decode = calibration.decode_counts.copy()
    rows[[3, 8]], decode[[5]] = 0, 0
    kept = np.setdiff1d(np.arange(30), [3, 8, 5])
    assert rho(rows, decode) == pytest.approx(rho(rows[kept], decode[kept]))
    assert rho(rows[:2], decode[:2]) is None
    assert rho(rows, np.zeros_like(decode)) is None


def test_a_sample_stands_for_a_large_set() -> None:
    calibration = calibration_set(requests=MAX_REQUESTS + 200, layers=2, experts=8)
    rows = (
        SignatureTransform("counts")
        .fit(calibration.prefill_counts)
        .transform_many(calibration.prefill_counts)
    )
    estimates = [rho(rows, calibration.decode_counts, seed=seed) for seed in (0, 0, 1)]
    assert estimates[0] == estimates[1] != estimates[2]
    assert estimates[0] == pytest.approx(estimates[2], abs=0.05)
