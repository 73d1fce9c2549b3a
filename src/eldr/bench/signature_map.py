"""Signatures in two dimensions, for a plot."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eldr.types import Matrix


@dataclass(frozen=True, slots=True, eq=False)
class SignatureMap:
    """points [N, 2] with their labels, centroids [K, 2] with their workers, explained: shares of the
    variance.
    """

    points: npt.NDArray[np.float64]
    labels: list[str]
    centroids: npt.NDArray[np.float64]
    workers: list[str]
    explained: tuple[float, float]


def project(
    signatures: Matrix, labels: Sequence[str], centroids: Matrix, workers: Sequence[str]
) -> SignatureMap:
    """Principal components of the signatures [N, D]; the centroids [K, D] are projected on the same plane."""
    mean = signatures.mean(axis=0)
    centred = (signatures - mean).astype(np.float64)
    _, spread, axes = np.linalg.svd(centred, full_matrices=False)
    shares = spread**2 / max(float((spread**2).sum()), 1e-12)
    plane = axes[:2].T
    return SignatureMap(
        centred @ plane,
        list(labels),
        (centroids - mean) @ plane,
        list(workers),
        (float(shares[0]), float(shares[1])),
    )
