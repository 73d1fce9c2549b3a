"""What a router of expert locality is fitted with before a run: signatures and a centroid for each worker."""

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.cluster.vq import kmeans2

from eldr.errors import ConfigError
from eldr.paper.measure.worlds import world_of
from eldr.profile.kmeans import BalancedKMeans
from eldr.signature import SignatureTransform
from eldr.signature.gates import GATE_TRANSFORMATIONS, GateTransform
from eldr.signature.layers import select_layers
from eldr.types import Matrix

STARTS = 2

SELECTED_ON = 400
PAIRS = 20_000
"""Layers are chosen on so many calibration requests and pairs of them: a few seconds a fit."""


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """centroids [K, D] and signatures [P, D] of the requests that are served; kept: layers in a signature."""

    centroids: Matrix
    signatures: Matrix
    kept: int


@functools.lru_cache(maxsize=4)
def fitted(
    model: str,
    workload: str,
    seed: int,
    workers: int,
    transformation: str,
    clustering: str,
    gated: bool = False,
) -> Fitted:
    """Fit as the paper does, on the calibration requests of a world."""
    calibrated, signatures, kept = _signatures(model, workload, seed, transformation, gated)
    return Fitted(_centroids(calibrated, workers, clustering, seed), signatures, kept)


@functools.lru_cache(maxsize=2)
def _signatures(
    model: str, workload: str, seed: int, transformation: str, gated: bool
) -> tuple[Matrix, Matrix, int]:
    """Signatures of calibration requests and of those served, and the number of layers in them."""
    world = world_of(model, workload, seed, gated)
    gates = transformation in GATE_TRANSFORMATIONS.names()
    before = world.calibration_gates if gates else world.calibration_prefill
    served = world.gates if gates else world.prefill
    assert before is not None
    assert served is not None
    kind = GateTransform if gates else SignatureTransform
    everything = kind(transformation).fit(before)
    curve = select_layers(
        everything.features(before[:SELECTED_ON]),
        world.calibration_rates[:SELECTED_ON],
        pairs=PAIRS,
        seed=seed,
    )
    transform = everything if curve is None else kind(transformation, curve.kept).fit(before)
    return transform.transform_many(before), transform.transform_many(served), len(transform.kept_layers_)


def _centroids(signatures: Matrix, workers: int, clustering: str, seed: int) -> Matrix:
    signed = signatures[signatures.any(axis=1)]
    if clustering == "balanced":
        return BalancedKMeans(workers, seed=seed, starts=STARTS).fit(signed).centroids_
    if clustering != "vanilla":
        raise ConfigError(f"unknown clustering {clustering!r}; choose balanced or vanilla")
    means, _ = kmeans2(signed, workers, minit="++", seed=np.random.default_rng(seed), iter=50)
    length = np.linalg.norm(means, axis=1, keepdims=True)
    unit: Matrix = (means / np.maximum(length, 1e-12)).astype(np.float32)
    return unit


def label_table(labels: npt.NDArray[np.str_], workers: int) -> dict[str, list[str]]:
    """Which decode workers serve which label: as many as its share of the requests, and at least one.

    Largest remainders, so that all workers are used; with more labels than workers these share the last one.
    """
    names, counts = np.unique(labels, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    wanted = counts[order] / counts.sum() * workers
    given = np.maximum(np.floor(wanted).astype(int), 1)
    while given.sum() < workers:
        given[np.argmax(wanted - given)] += 1
    while given.sum() > workers and given.max() > 1:
        given[np.argmax(np.where(given > 1, given - wanted, -np.inf))] -= 1
    starts = np.minimum(given.cumsum() - given, workers - 1)
    return {
        str(names[own]): [f"d{k}" for k in range(start, min(start + count, workers))]
        for own, start, count in zip(order, starts.tolist(), given.tolist(), strict=True)
    }
