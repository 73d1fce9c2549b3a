"""Hungarian-balanced K-means on the unit sphere: clusters of like signatures, none larger than its share."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from eldr.errors import CalibrationError
from eldr.profile.balance import assign_balanced
from eldr.profile.prices import Labels
from eldr.types import Matrix

SAMPLE = 4096
"""Rows, and 16 a cluster, that suffice to find where the clusters are: starts on more take a sample."""

TOLERANCE = 1e-6
"""A step helps that adds a larger share to the sum of cosines."""

PATIENCE = 3
"""Hartigan's steps in a row that do not help before they end."""

EXACT = 1 << 16
"""Above so many cosines (rows x clusters) an assignment is nearly the best instead of the best."""


@dataclass(frozen=True, slots=True)
class Clustering:
    """Centroids float32 [K, D], unit rows; labels int64 [N]; objective, the sum of the rows' cosines."""

    centroids: Matrix
    labels: Labels
    objective: float


class BalancedKMeans:
    """Groups N unit rows into K clusters of at most ceil(N / K) and at least one.

    Each step assigns all rows at once, by the Hungarian method, so that the sum of cosines is the largest
    that the capacity allows, then moves each centroid to the mean direction of its rows; further steps assign
    by what each row adds to its cluster (Hartigan's method). The best of `starts` k-means++ starts is kept.
    Deterministic by seed. With many rows the starts run on a sample, and the best goes on with all rows; with
    many cosines assignments are not exact (see SAMPLE, EXACT and docs/calibration.md).

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
        sample = self._sample(rows, rng)
        starts = (seed_centroids(sample, self.clusters, rng) for _ in range(self.starts))
        best = max((self._run(sample, start) for start in starts), key=lambda run: run.objective)
        if len(sample) < len(rows):
            best = self._run(rows, best.centroids)
        self.centroids_, self.labels_, self.objective_ = best.centroids, best.labels, best.objective
        self.sizes_ = np.bincount(best.labels, minlength=self.clusters)
        return self

    def _sample(self, rows: Matrix, rng: np.random.Generator) -> Matrix:
        size = max(SAMPLE, 16 * self.clusters)
        return rows if len(rows) <= size else rows[rng.choice(len(rows), size, replace=False)]

    def _run(self, rows: Matrix, centroids: Matrix) -> Clustering:
        """Lloyd's steps to a fixed point, then Hartigan's, which often lead on from there."""
        exact = len(rows) * self.clusters <= EXACT
        labels = self._lloyd(rows, centroids, exact)
        labels = self._hartigan(rows, labels, exact)
        centroids = mean_directions(rows, labels, centroids)
        return Clustering(centroids, labels, _objective(rows @ centroids.T, labels))

    def _lloyd(self, rows: Matrix, centroids: Matrix, exact: bool) -> Labels:
        value, prices = -np.inf, None
        for _ in range(self.steps):
            similarity = rows @ centroids.T
            labels, prices = assign_balanced(similarity, prices, exact=exact)
            before, value = value, _objective(similarity, labels)
            if value - before <= TOLERANCE * value:
                break
            centroids = mean_directions(rows, labels, centroids)
        return labels

    def _hartigan(self, rows: Matrix, labels: Labels, exact: bool) -> Labels:
        """Assign by `marginal_gains` for as long as that helps; all rows move at once, so it may not."""
        sums = cluster_sums(rows, labels, self.clusters)
        best, value, prices, without = labels, _lengths(sums).sum(), None, 0
        for _ in range(self.steps):
            labels, prices = assign_balanced(marginal_gains(rows, sums, labels), prices, exact=exact)
            sums = cluster_sums(rows, labels, self.clusters)
            before, value = value, max(value, _lengths(sums).sum())
            without = 0 if value - before > TOLERANCE * value else without + 1
            best = labels if value > before else best
            if without == PATIENCE:
                break
        return best


def marginal_gains(rows: Matrix, sums: Matrix, labels: Labels) -> Matrix:
    """Return what each row adds to the objective in each cluster [N, K], where sums [K, D] are the clusters'.

    |S_k + x_i| - |S_k| for another cluster, and |S_k| - |S_k - x_i| for its own: unlike the cosine, this does
    not count for the row that its own cluster's centroid contains it.
    """
    squares = np.einsum("kd,kd->k", sums, sums)
    dots = rows @ sums.T
    own = np.arange(len(rows)), labels
    without = np.sqrt(np.maximum(squares[labels] - 2 * dots[own] + 1, 0))
    gains: Matrix = np.sqrt(np.maximum(squares + 2 * dots + 1, 0)) - np.sqrt(squares)
    gains[own] = np.sqrt(squares[labels]) - without
    return gains


def cluster_sums(rows: Matrix, labels: Labels, clusters: int) -> Matrix:
    """Return the sum of each cluster's rows, float32 [K, D]."""
    sums: Matrix = (labels == np.arange(clusters)[:, None]).astype(np.float32) @ rows
    return sums


def _lengths(sums: Matrix) -> npt.NDArray[np.float64]:
    """The lengths [K]; their sum is the sum of cosines with the mean directions."""
    lengths: npt.NDArray[np.float64] = np.linalg.norm(sums.astype(np.float64), axis=1)
    return lengths


def _objective(similarity: Matrix, labels: Labels) -> float:
    return float(similarity[np.arange(len(labels)), labels].sum(dtype=np.float64))


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
    sums = cluster_sums(rows, labels, len(previous))
    length = np.linalg.norm(sums, axis=1, keepdims=True)
    return np.where(length > 1e-6, sums / np.maximum(length, 1e-6), previous)
