"""From a calibration set to a profile."""

import time
from dataclasses import replace

import numpy as np
import pytest

from eldr.errors import CalibrationError, ConfigError
from eldr.profile.active import activation_rates, compare_grouping
from eldr.profile.dataset import CalibrationSet
from eldr.profile.fit import fit_profile, held_out_labels
from eldr.profile.kmeans import BalancedKMeans
from eldr.signature import TRANSFORMATIONS
from eldr.signature.quality import rho
from support.synthetic import calibration_set


def test_finds_the_domains_and_reports_them() -> None:
    calibration = calibration_set(requests=90, domains=3)
    profile, report = fit_profile(calibration, 3)
    assert sorted(list(c.values()) for c in report.compositions) == [[30], [30], [30]]
    assert profile.cluster_sizes.tolist() == [30, 30, 30]
    assert report.unsigned == 0
    assert set(report.rho) == set(TRANSFORMATIONS.names())
    assert report.rho[profile.info.transformation] == max(report.rho.values())
    assert profile.info.rho is not None
    assert profile.info.rho >= report.rho[profile.info.transformation]
    assert [figure.batch for figure in report.active] == [8, 16, 32, 64, 128]
    assert all(figure.change is not None and figure.change < 0 for figure in report.active)


def test_signatures_of_new_requests_are_nearest_to_their_domain() -> None:
    train, test = (calibration_set(requests=60, seed=1).rows(part) for part in (slice(0, 45), slice(45, 60)))
    profile, report = fit_profile(train, 3)
    domain_of = [max(c, key=lambda label: c[label]) for c in report.compositions]
    transform = profile.signature_transform()
    for counts, label in zip(test.prefill_counts, test.label, strict=True):
        signature = transform.transform(counts)
        assert signature is not None
        assert domain_of[int((profile.centroids @ signature).argmax())] == label


def test_repeatable_by_seed() -> None:
    calibration = calibration_set()
    first, second = (fit_profile(calibration, 4, seed=5)[0] for _ in range(2))
    for name in ("idf", "kept_layers", "centroids", "cluster_sizes"):
        assert np.array_equal(getattr(first, name), getattr(second, name))


@pytest.mark.parametrize("transformation", ["idf", "counts", "log"])
def test_a_named_transformation(transformation: str) -> None:
    profile, report = fit_profile(calibration_set(), 2, transformation=transformation, tau=0.3)
    assert list(report.rho) == [transformation]
    assert (profile.info.transformation, profile.info.tau) == (transformation, 0.3)
    assert (profile.idf == 1).all() == (transformation != "idf")


def test_layers_as_asked() -> None:
    calibration = calibration_set(layers=4)
    greedy, every, given = (
        fit_profile(calibration, 3, transformation="counts", layers=layers)[0]
        for layers in ("greedy", "all", [2, 0])
    )
    kept = greedy.info.layer_order[: int(np.argmax(greedy.info.layer_rho)) + 1]
    assert greedy.kept_layers.tolist() == sorted(kept)
    assert (every.kept_layers.tolist(), every.info.layer_order) == ([0, 1, 2, 3], ())
    assert given.kept_layers.tolist() == [2, 0]
    signatures = given.signature_transform().transform_many(calibration.prefill_counts)
    assert given.info.rho == rho(signatures, calibration.decode_counts)
    for wrong, message in (("best", "'layers' is 'best'"), ([4], "kept layers are"), ([], "kept layers are")):
        with pytest.raises(ConfigError, match=message):
            fit_profile(calibration, 3, layers=wrong)


def test_one_layer_and_identical_requests() -> None:
    one = calibration_set(layers=1)
    assert fit_profile(one, 3)[0].kept_layers.tolist() == [0]
    same = one.rows(np.zeros(12, int))
    profile, report = fit_profile(same, 3)
    assert (profile.info.transformation, profile.info.rho, report.unsigned) == ("counts", None, 0)
    assert profile.cluster_sizes.tolist() == [4, 4, 4]
    assert fit_profile(one.rows(np.array([3])), 1)[0].cluster_sizes.tolist() == [1]


def test_chance_is_no_gain() -> None:
    """Requests that differ by chance alone: their clusters tell nothing of others that differ by chance."""
    decode = np.random.default_rng(0).permuted(np.tile([8, 8, *[0] * 30], (160, 1, 1)), axis=2)
    rates, signatures = (
        activation_rates(decode, 2),
        (decode.reshape(160, -1) / np.sqrt(128)).astype(np.float32),
    )
    own = compare_grouping(rates, BalancedKMeans(16).fit(signatures).labels_, (8,))[0].change
    rates[:], shuffled = np.random.default_rng(1).permutation(rates), held_out_labels(signatures, 4, seed=0)
    other = compare_grouping(rates, shuffled, (8,))[0].change
    assert own is not None
    assert own < -0.1
    assert other == pytest.approx(0, abs=0.02)


def test_held_out_labels_are_of_the_other_half() -> None:
    calibration = calibration_set(requests=31)
    signatures = calibration.prefill_counts.reshape(31, -1).astype(np.float32)
    signatures /= np.linalg.norm(signatures, axis=1, keepdims=True)
    signatures[7] = 0
    labels = held_out_labels(signatures, 3, seed=2)
    assert labels[7] == -1
    first = np.flatnonzero((labels >= 0) & (labels < 3))
    second = np.flatnonzero(labels >= 3)
    assert (len(first), len(second)) == (15, 15)
    fitted = BalancedKMeans(3, seed=2, starts=1).fit(signatures[_in_order(signatures, 2)[15:]])
    assert np.array_equal((signatures[first] @ fitted.centroids_.T).argmax(axis=1), labels[first])
    assert (held_out_labels(signatures, 16, seed=2) == -1).all()


def _in_order(signatures: np.ndarray, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(np.flatnonzero(signatures.any(axis=1)))


def everyone_uses_every_expert() -> CalibrationSet:
    calibration = calibration_set(requests=6, layers=2, experts=4, top_k=4)
    assert (calibration.prefill_counts > 0).all()
    return calibration


def test_requests_without_a_signature_are_left_out_and_counted() -> None:
    calibration = calibration_set(requests=20)
    prefill = calibration.prefill_counts.copy()
    prefill[[2, 5]] = 0
    profile, report = fit_profile(replace(calibration, prefill_counts=prefill), 3)
    assert report.unsigned == 2
    assert profile.cluster_sizes.sum() == 18
    assert profile.info.calibration_requests == 20


def test_without_decode_counts_there_is_no_rho() -> None:
    calibration = calibration_set(requests=12)
    empty = replace(calibration, decode_counts=np.zeros_like(calibration.decode_counts))
    profile, report = fit_profile(empty, 2)
    assert set(report.rho.values()) == {None}
    assert (profile.info.transformation, profile.info.rho) == ("idf", None)
    assert [(f.mixed, f.by_cluster) for f in report.active] == [(None, None)] * 5
    assert (profile.kept_layers.tolist(), profile.info.layer_order) == ([0, 1, 2], ())


def test_what_cannot_be_fitted() -> None:
    calibration = calibration_set(requests=6)
    with pytest.raises(CalibrationError, match="6 signatures cannot make 7 clusters"):
        fit_profile(calibration, 7)
    with pytest.raises(ConfigError, match="'workers' is 0"):
        fit_profile(calibration, 0)
    with pytest.raises(ConfigError, match=r"'tau' is 2\.5"):
        fit_profile(calibration, 2, tau=2.5)
    with pytest.raises(ConfigError, match="unknown transformation 'best'; choose from auto, idf,"):
        fit_profile(calibration, 2, transformation="best")
    with pytest.raises(CalibrationError, match=r"'idf' gives no request a signature.*transformation counts"):
        fit_profile(everyone_uses_every_expert(), 2, transformation="idf")


def test_auto_avoids_a_transformation_that_tells_nothing() -> None:
    rng = np.random.default_rng(0)
    calibration = calibration_set(requests=24, layers=2, experts=6, sharpness=0.5)
    spread = rng.permuted(np.tile(np.arange(1, 7, dtype=np.uint32) * 2, (24, 2, 1)), axis=2)
    dense = replace(calibration, prefill_counts=spread, prompt_tokens=np.full(24, 21, np.int32))
    profile, report = fit_profile(dense, 2)
    assert report.rho["idf"] is None
    assert profile.info.transformation != "idf"


def test_fits_a_large_model_in_time() -> None:
    rng = np.random.default_rng(0)
    domains = rng.gamma(0.3, size=(10, 48, 128))
    rates = domains[np.arange(1000) % 10] / domains.sum(axis=2, keepdims=True)[np.arange(1000) % 10]
    counts = rng.poisson(rates * 8 * 100).astype(np.uint32)
    counts[..., 0] += 2**12 - counts.sum(axis=2, dtype=np.uint32)  # every layer the same number of choices
    tokens = np.full(1000, 2**12 // 8, np.int32)
    label = np.array([f"d{i % 10}" for i in range(1000)])
    calibration = CalibrationSet(counts, counts, label, tokens, tokens, model="big", top_k=8)
    started_s = time.process_time()
    profile, report = fit_profile(calibration, 16, transformation="idf", layers=range(0, 48, 4))
    fitted_s = time.process_time()
    rows = counts.reshape(1000, -1).astype(np.float32)
    for _ in range(5):
        np.sort((rows @ rows.T).astype(np.float64))
    compared_s = time.process_time()
    assert fitted_s - started_s < 30 * (compared_s - fitted_s)  # of CPU, on any machine; 8 times is usual
    assert profile.cluster_sizes.max() <= 63
    assert report.clustering_s > 0
