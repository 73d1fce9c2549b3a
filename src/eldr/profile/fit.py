"""From a calibration set to a profile: choose transformation and layers, make signatures, cluster them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from eldr import __version__
from eldr.clock import MonotonicClock
from eldr.errors import CalibrationError, ConfigError
from eldr.profile.active import ActiveExperts, activation_rates, compare_grouping
from eldr.profile.artifact import Profile, ProfileInfo, routing_fingerprint
from eldr.profile.choice import AUTO, GREEDY, Choice, Layers, choose
from eldr.profile.dataset import CalibrationSet
from eldr.profile.kmeans import BalancedKMeans
from eldr.profile.prices import Labels
from eldr.types import Matrix

BATCHES = (8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class FitReport:
    """What a fit found out, beside the profile.

    rho: quality of each transformation that was tried, on all layers. compositions: for each cluster,
    requests by label. active: expected active experts, mixed against by cluster, of requests that the
    clusters were not fitted to (each half in the clusters of the other). unsigned: requests that give no
    signature.
    selection_s, clustering_s: time taken to choose transformation and layers, and to make the clusters.
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
    layers: Layers = GREEDY,
    tau: float = 0.1,
    batches: Sequence[int] = BATCHES,
) -> tuple[Profile, FitReport]:
    """Fit a profile with one centroid for each of `workers` decode workers.

    transformation: a name of TRANSFORMATIONS, or "auto" for the one with the best rho. layers: "greedy" for
    those that foretell decode best, "all", or the ones to keep. batches: to report active experts for.
    Deterministic by seed. Raises ConfigError for a bad parameter, CalibrationError for a set that is too
    small or tells nothing.
    """
    _check(workers, tau)
    clock = MonotonicClock()
    started_s = clock.now_s()
    choice = choose(calibration, transformation, layers, seed)
    selected_s = clock.now_s()
    signatures = choice.transform.transform_many(calibration.prefill_counts)
    signed = signatures.any(axis=1)
    if not signed.any():
        raise CalibrationError(
            f"{choice.transform.transformation!r} gives no request a signature: all use the same experts, or "
            "none; fit with --transformation counts, or record a mixture-of-experts model"
        )
    clusters = BalancedKMeans(workers, seed=seed).fit(signatures[signed])
    clustered_s = clock.now_s()
    labelled = calibration.label[signed]
    profile = Profile(
        idf=choice.transform.weights_,
        kept_layers=choice.transform.kept_layers_,
        centroids=clusters.centroids_,
        cluster_sizes=clusters.sizes_,
        info=_info(calibration, choice, tau, seed),
    )
    report = FitReport(
        rho=choice.tried,
        compositions=tuple(dict(Counter(labelled[clusters.labels_ == k].tolist())) for k in range(workers)),
        active=_active(calibration, held_out_labels(signatures, workers, seed), batches),
        unsigned=int((~signed).sum()),
        selection_s=selected_s - started_s,
        clustering_s=clustered_s - selected_s,
    )
    return profile, report


def held_out_labels(signatures: Matrix, workers: int, seed: int) -> Labels:
    """Return the nearest cluster [N] of each request among clusters of the other half of the requests.

    Labels of the halves differ; -1 for requests without a signature, or where a half is too small to cluster.
    What clusters seem to gain on the requests that they were fitted to is partly chance.
    """
    labels = np.full(len(signatures), -1)
    signed = np.random.default_rng(seed).permutation(np.flatnonzero(signatures.any(axis=1)))
    halves = np.array_split(signed, 2)
    for number, (own, other) in enumerate((halves, halves[::-1])):
        if len(other) >= workers:
            clusters = BalancedKMeans(workers, seed=seed, starts=1).fit(signatures[other])
            labels[own] = (signatures[own] @ clusters.centroids_.T).argmax(axis=1) + number * workers
    return labels


def _check(workers: int, tau: float) -> None:
    if workers < 1:
        raise ConfigError(f"'workers' is {workers}, expected the number of decode workers, at least 1")
    if not 0 <= tau <= 2:
        raise ConfigError(f"'tau' is {tau}, expected a band width from 0 to 2")


def _active(
    calibration: CalibrationSet, labels: npt.NDArray[np.int64], batches: Sequence[int]
) -> tuple[ActiveExperts, ...]:
    decoded = calibration.decode_counts.any(axis=(1, 2))
    rates = activation_rates(calibration.decode_counts[decoded], calibration.top_k)
    return compare_grouping(rates, labels[decoded], batches)


def _info(calibration: CalibrationSet, choice: Choice, tau: float, seed: int) -> ProfileInfo:
    shape = (calibration.layers, calibration.experts, calibration.top_k)
    return ProfileInfo(
        model=calibration.model,
        layers=calibration.layers,
        experts=calibration.experts,
        top_k=calibration.top_k,
        fingerprint=routing_fingerprint(*shape),
        transformation=choice.transform.transformation,
        tau=tau,
        rho=choice.rho,
        layer_order=choice.curve.order if choice.curve else (),
        layer_rho=choice.curve.rho if choice.curve else (),
        calibration_requests=len(calibration),
        seed=seed,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        eldr_version=__version__,
    )
