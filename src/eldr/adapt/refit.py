"""New centroids for the live pool, from what it saw lately (the paper's v3: refitting in the background)."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from eldr.profile.balance import assign_balanced
from eldr.profile.kmeans import BalancedKMeans, mean_directions, seed_centroids
from eldr.types import Matrix

STEPS = 10
"""Of balanced K-means from warm centroids, which are near already."""

STARTS = 2
"""From nothing, to compare with what today's centroids lead to."""

ROWS_A_WORKER = 32
"""Signatures a worker to make clusters of."""

SURE = 3.0
"""Standard errors by which new centroids must be better than today's, on requests not fitted to."""

WORTH = 0.01
"""Share of the distance to today's centroids (1 - cosine) that new ones must take away to be worth moving."""

Flags = npt.NDArray[np.bool_]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Refit:
    """Centroids float32 [K, D] for the K live workers in their order, and why they should be used, or not.

    sizes: int64 [K], requests of the window nearest to each. gain: mean cosine that they add on requests
    that they were not fitted to, under balanced assignment; None where there is nothing to compare with.
    moved: share of the window's requests whose nearest centroid is another worker's than before.
    """

    centroids: Matrix
    sizes: Labels
    gain: float | None
    moved: float
    worth_it: bool
    reason: str


def refit(signatures: Matrix, centroids: Matrix, has_centroid: Flags, left: Matrix, seed: int = 0) -> Refit:
    """Make centroids of signatures [N, D] for K live workers, N >= 2 K, from today's.

    centroids: [K, D], rows without `has_centroid` are of workers that joined. left: [n, D], centroids of
    workers that are gone: who joined takes over from these first, and then a part of the hottest cluster.
    Which new centroid a worker gets is chosen (Hungarian method) so that the fewest requests move.

    They are worth it where the pool changed; else where they are better by more than chance, judged by halves
    of the requests: fitted to one, compared on the other.
    """
    changed = not has_centroid.all() or bool(len(left))
    rng = np.random.default_rng(seed)
    start = _seated(signatures, centroids, has_centroid, left, rng)
    best, anew = _fitted(signatures, start, rng)
    fitted = _matched(signatures, start, best)
    before, after = _nearest(signatures, start), _nearest(signatures, fitted)
    stays = has_centroid[before] & (before == after)
    gain = error = None
    if not changed:
        gain, error = _held_out_gain(rng.permutation(signatures), centroids, anew, rng)
    worth_it, reason = _verdict(gain, error, float(1 - (signatures * start[before]).sum(axis=1).mean()))
    return Refit(
        centroids=fitted,
        sizes=np.bincount(after, minlength=len(fitted)),
        gain=gain,
        moved=float(1 - stays.mean()),
        worth_it=worth_it,
        reason=reason,
    )


def _verdict(gain: float | None, error: float | None, distance: float) -> tuple[bool, str]:
    if gain is None or error is None:
        return True, "the pool changed"
    if gain <= SURE * error:
        return (
            False,
            f"better by {gain:.4f}, which may be chance ({SURE:g} standard errors: {SURE * error:.4f})",
        )
    if gain <= WORTH * distance:
        return False, f"better by {gain:.4f} only, of a distance of {distance:.3f}"
    return True, f"better by {gain:.4f} of a distance of {distance:.3f}"


def _seated(
    signatures: Matrix, centroids: Matrix, has_centroid: Flags, left: Matrix, rng: np.random.Generator
) -> Matrix:
    """A centroid for every worker to start from."""
    seated = centroids.copy()
    new = list(np.flatnonzero(~has_centroid))
    if len(new) == len(seated):
        return BalancedKMeans(len(seated), seed=int(rng.integers(1 << 31))).fit(signatures).centroids_
    known = list(np.flatnonzero(has_centroid))
    for row in _hottest_first(signatures, left, seated[known])[: len(new)]:
        seated[new[0]] = left[row]
        known.append(new.pop(0))
    for worker in new:
        hottest, seated[worker] = _split(signatures, seated, np.array(known), rng)
        seated[hottest[0]] = hottest[1]
        known.append(worker)
    return seated


def _hottest_first(signatures: Matrix, left: Matrix, others: Matrix) -> list[int]:
    """Rows of `left` by how many requests are nearest to them, most first."""
    if not len(left):
        return []
    nearest = _nearest(signatures, np.concatenate([left, others]))
    counts = np.bincount(nearest, minlength=len(left))[: len(left)]
    return [int(row) for row in np.argsort(-counts, kind="stable")]


def _split(
    signatures: Matrix, seated: Matrix, known: Labels, rng: np.random.Generator
) -> tuple[tuple[int, Matrix], Matrix]:
    """Halve the cluster with the most requests: its worker with what it keeps, and what it gives away."""
    nearest = _nearest(signatures, seated[known])
    hottest = int(np.bincount(nearest, minlength=len(known)).argmax())
    rows = signatures[nearest == hottest]
    old = seated[known[hottest]]
    if len(rows) < 2:
        return (int(known[hottest]), old), old
    halves = _improved(rows, seed_centroids(rows, 2, rng))
    keeps = int((halves @ old).argmax())
    return (int(known[hottest]), halves[keeps]), halves[1 - keeps]


def _fitted(rows: Matrix, start: Matrix, rng: np.random.Generator) -> tuple[Matrix, bool]:
    """Centroids from a warm start; from nothing where that is better by more than WORTH of the distance, and
    whether it is.

    A warm start keeps requests where they are, and may be stuck where what is asked has changed much.
    """
    warm, fresh = _improved(rows, start), _anew(rows, len(start), rng)
    values = [float(_balanced(rows, one).sum()) for one in (warm, fresh)]
    anew = values[1] - values[0] > WORTH * (len(rows) - values[0])
    return (fresh, True) if anew else (warm, False)


def _anew(rows: Matrix, clusters: int, rng: np.random.Generator) -> Matrix:
    """The better of STARTS starts from rows far apart: about as good as BalancedKMeans here, and cheaper."""
    starts = (_improved(rows, seed_centroids(rows, clusters, rng)) for _ in range(STARTS))
    return max(starts, key=lambda one: float(_balanced(rows, one).sum()))


def _improved(rows: Matrix, start: Matrix) -> Matrix:
    """Balanced K-means (eldr.profile.kmeans) from centroids that are there."""
    centroids, prices, best = start, None, -np.inf
    for _ in range(STEPS):
        similarity = rows @ centroids.T
        labels, prices = assign_balanced(similarity, prices, exact=False)
        value = float(similarity[np.arange(len(rows)), labels].sum())
        if value <= best:
            break
        best, centroids = value, mean_directions(rows, labels, centroids)
    return centroids


def _matched(signatures: Matrix, old: Matrix, new: Matrix) -> Matrix:
    """The new centroids in the order of the old ones that keeps the most requests where they are."""
    overlap = np.zeros((len(old), len(new)))
    np.add.at(overlap, (_nearest(signatures, old), _nearest(signatures, new)), 1)
    _, order = linear_sum_assignment(overlap + old @ new.T, maximize=True)  # cosines decide between equals
    return np.asarray(new[order])


def _held_out_gain(
    signatures: Matrix, centroids: Matrix, anew: bool, rng: np.random.Generator
) -> tuple[float, float]:
    """Mean cosine added on the half not fitted to, and its standard error, over both halves. anew: fit from
    nothing, as the whole was."""
    gains = []
    for fitted, judged in ((signatures[::2], signatures[1::2]), (signatures[1::2], signatures[::2])):
        new = _anew(fitted, len(centroids), rng) if anew else _improved(fitted, centroids)
        gains.append(_balanced(judged, new) - _balanced(judged, centroids))
    gain = np.concatenate(gains)
    return float(gain.mean()), float(gain.std(ddof=1) / np.sqrt(len(gain)))


def _balanced(rows: Matrix, centroids: Matrix) -> npt.NDArray[np.float64]:
    """Cosine of each row to its centroid where all workers get as many rows."""
    similarity = rows @ centroids.T
    labels, _ = assign_balanced(similarity, exact=False)
    return np.asarray(similarity[np.arange(len(rows)), labels], np.float64)


def _nearest(rows: Matrix, centroids: Matrix) -> Labels:
    return np.asarray((rows @ centroids.T).argmax(axis=1), np.int64)
