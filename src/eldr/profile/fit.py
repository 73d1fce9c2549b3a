"""From a calibration set to a profile: choose the transformation, make signatures, cluster them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from eldr import __version__
from eldr.clock import MonotonicClock
from eldr.errors import CalibrationError, ConfigError
from eldr.profile.active import ActiveExperts, activation_rates, compare_grouping
from eldr.profile.artifact import Profile, ProfileInfo, routing_fingerprint
from eldr.profile.dataset import CalibrationSet
from eldr.profile.kmeans import BalancedKMeans
from eldr.signature import TRANSFORMATIONS, SignatureTransform
from eldr.signature.quality import rho
from eldr.types import Matrix

AUTO = "auto"
BATCHES = (8, 16)


@dataclass(frozen=True, slots=True)
class FitReport:
    """What a fit found out, beside the profile. Everything is measured on the calibration set itself.

    rho: quality of each transformation that was tried. compositions: for each cluster, requests by label.
    active: expected active experts, mixed against by cluster. unsigned: requests that give no signature.
    selection_s, clustering_s: time taken to choose the transformation and to make the clusters.
    """

    rho: Mapping[str, float | None]
    compositions: tuple[Mapping[str, int], ...]
    active: tuple[ActiveExperts, ...]
    unsigned: int
    selection_s: float
    clustering_s: float


def fit_profile(
    calibration: CalibrationSet,
    workers: int,
    *,
    seed: int = 0,
    transformation: str = AUTO,
    tau: float = 0.1,
) -> tuple[Profile, FitReport]:
    """Fit a profile with one centroid for each of `workers` decode workers.

    transformation: a name of TRANSFORMATIONS, or "auto" for the one with the best rho. Deterministic by seed.
    Raises ConfigError for a bad parameter, CalibrationError for a set that is too small or tells nothing.
    """
    _check(workers, tau)
    clock = MonotonicClock()
    started_s = clock.now_s()
    quality = {name: _quality(calibration, name, seed) for name in _candidates(transformation)}
    best = max(quality, key=lambda name: -2.0 if (value := quality[name]) is None else value)
    selected_s = clock.now_s()
    transform = SignatureTransform(best).fit(calibration.prefill_counts)
    signatures = transform.transform_many(calibration.prefill_counts)
    clusters, labels = _cluster(signatures, workers, seed, best)
    clustered_s = clock.now_s()
    profile = Profile(
        idf=transform.weights_,
        kept_layers=transform.kept_layers_,
        centroids=clusters.centroids_,
        cluster_sizes=clusters.sizes_,
        info=_info(calibration, best, tau, quality[best], seed),
    )
    report = FitReport(
        rho=quality,
        compositions=tuple(dict(Counter(calibration.label[labels == k].tolist())) for k in range(workers)),
        active=_active(calibration, labels, seed),
        unsigned=int((labels < 0).sum()),
        selection_s=selected_s - started_s,
        clustering_s=clustered_s - selected_s,
    )
    return profile, report


def _check(workers: int, tau: float) -> None:
    if workers < 1:
        raise ConfigError(f"'workers' is {workers}, expected the number of decode workers, at least 1")
    if not 0 <= tau <= 2:
        raise ConfigError(f"'tau' is {tau}, expected a band width from 0 to 2")


def _candidates(transformation: str) -> tuple[str, ...]:
    """The transformations to try; of equal rho the first wins, so the paper's stands first."""
    if transformation == AUTO:
        return TRANSFORMATIONS.names()
    if transformation not in TRANSFORMATIONS.names():
        choices = ", ".join((AUTO, *TRANSFORMATIONS.names()))
        raise ConfigError(f"unknown transformation {transformation!r}; choose from {choices}")
    return (transformation,)


def _quality(calibration: CalibrationSet, transformation: str, seed: int) -> float | None:
    transform = SignatureTransform(transformation).fit(calibration.prefill_counts)
    signatures = transform.transform_many(calibration.prefill_counts)
    return rho(signatures, calibration.decode_counts, seed=seed)


def _cluster(
    signatures: Matrix, workers: int, seed: int, transformation: str
) -> tuple[BalancedKMeans, npt.NDArray[np.int64]]:
    """Return the clusters, and the cluster of every request, -1 for those without a signature."""
    signed = signatures.any(axis=1)
    if not signed.any():
        raise CalibrationError(
            f"{transformation!r} gives no request a signature: all use the same experts, or none; "
            "fit with --transformation counts, or record a mixture-of-experts model"
        )
    clusters = BalancedKMeans(workers, seed=seed).fit(signatures[signed])
    labels = np.full(len(signatures), -1)
    labels[signed] = clusters.labels_
    return clusters, labels


def _active(
    calibration: CalibrationSet, labels: npt.NDArray[np.int64], seed: int
) -> tuple[ActiveExperts, ...]:
    decoded = calibration.decode_counts.any(axis=(1, 2))
    rates = activation_rates(calibration.decode_counts[decoded], calibration.top_k)
    return compare_grouping(rates, labels[decoded], BATCHES, seed=seed)


def _info(
    calibration: CalibrationSet, transformation: str, tau: float, quality: float | None, seed: int
) -> ProfileInfo:
    shape = (calibration.layers, calibration.experts, calibration.top_k)
    return ProfileInfo(
        model=calibration.model,
        layers=calibration.layers,
        experts=calibration.experts,
        top_k=calibration.top_k,
        fingerprint=routing_fingerprint(*shape),
        transformation=transformation,
        tau=tau,
        rho=quality,
        calibration_requests=len(calibration),
        seed=seed,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        eldr_version=__version__,
    )
