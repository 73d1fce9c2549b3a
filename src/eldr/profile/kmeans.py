"""Hungarian-balanced K-means on the unit sphere: clusters of like signatures, none larger than its share."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from eldr.errors import CalibrationError
from eldr.profile.balance import assign_balanced
from eldr.types import Matrix

Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Clustering:
    """Centroids float32 [K, D], unit rows; labels int64 [N]; objective, the sum of the rows' cosines."""

    centroids: Matrix
    labels: Labels
    objective: float


class BalancedKMeans:
    """Groups N unit rows into K clusters of at most ceil(N / K) and at least one.

    Each step assigns all rows at once, by the Hungarian method, so that the sum of cosines is the largest
    that the capacity allows, then moves each centroid to the mean direction of its rows. The best of `starts`
    k-means++ starts is kept. Deterministic by seed.

    Learned by `fit`: centroids_, labels_, sizes_ int64 [K] and objective_.
    """

    centroids_: Matrix
    labels_: Labels
    sizes_: npt.NDArray[np.int64]
    objective_: float

    def __init__(self, clusters: int, *, seed: int = 0, starts: int = 4, steps: int = 50) -> None:
        self.clusters = clusters
        self.seed = seed
        self.starts = starts
        self.steps = steps

    def fit(self, rows: Matrix) -> Self:
        """Cluster unit rows [N, D]; raises CalibrationError unless 1 <= K <= N."""
        if not 1 <= self.clusters <= len(rows):
            raise CalibrationError(
                f"{len(rows)} signatures cannot make {self.clusters} clusters; "
                "record more requests or fit for fewer workers"
            )
        rng = np.random.default_rng(self.seed)
        best = max((self._run(rows, rng) for _ in range(self.starts)), key=lambda run: run.objective)
        self.centroids_, self.labels_, self.objective_ = best.centroids, best.labels, best.objective
        self.sizes_ = np.bincount(best.labels, minlength=self.clusters)
        return self

    def _run(self, rows: Matrix, rng: np.random.Generator) -> Clustering:
        centroids = seed_centroids(rows, self.clusters, rng)
        labels, prices = assign_balanced(rows @ centroids.T)
        for _ in range(self.steps):
            centroids = mean_directions(rows, labels, centroids)
            previous = labels
            labels, prices = assign_balanced(rows @ centroids.T, prices)
            if np.array_equal(labels, previous):
                break
        objective = float(np.einsum("nd,nd->", rows, centroids[labels], dtype=np.float64))
        return Clustering(centroids, labels, objective)


def seed_centroids(rows: Matrix, clusters: int, rng: np.random.Generator) -> Matrix:
    """Choose rows far apart (k-means++): each next one with probability proportional to 1 - cosine."""
    chosen = [int(rng.integers(len(rows)))]
    distance = np.full(len(rows), np.inf)
    while len(chosen) < clusters:
        distance = np.minimum(distance, np.maximum(1 - rows @ rows[chosen[-1]], 0))
        distance[chosen] = 0
        total = distance.sum()
        if total > 0:
            chosen.append(int(rng.choice(len(rows), p=distance / total)))
        else:  # the rows that are left equal those chosen
            chosen.append(int(rng.choice(np.setdiff1d(np.arange(len(rows)), chosen))))
    return rows[chosen]


def mean_directions(rows: Matrix, labels: Labels, previous: Matrix) -> Matrix:
    """Return the unit mean of each cluster's rows; one whose rows cancel out keeps its previous centroid."""
    members = (labels == np.arange(len(previous))[:, None]).astype(np.float32)
    sums = members @ rows
    length = np.linalg.norm(sums, axis=1, keepdims=True)
    return np.where(length > 1e-6, sums / np.maximum(length, 1e-6), previous)
