"""How well signatures foretell decode: rho, the paper's quality of a transformation."""

import numpy as np
import numpy.typing as npt

from eldr.signature.transform import FeatureArray
from eldr.types import Matrix

Real = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]

MAX_REQUESTS = 1000
"""Of more requests a sample is taken: 1,000, as many as the paper calibrates on, make 499,500 pairs. Over
samples of so many requests of one traffic rho has a standard deviation of about 0.006 (ADR 11)."""


def decode_overlap(decode_counts: FeatureArray) -> Matrix:
    """Return the decode-time expert overlap [N, N] of requests with decode counts [N, L, E].

    It is the cosine of two requests' expert counts in a layer, averaged over the layers: 1 for the same
    experts in the same proportions, 0 for disjoint ones, whatever the lengths of the outputs.
    """
    rows = decode_counts.astype(np.float32)
    length = np.linalg.norm(rows, axis=2, keepdims=True)
    np.divide(rows, length, out=rows, where=length > 0)
    flat = rows.reshape(len(rows), -1)
    overlap: Matrix = flat @ flat.T / np.float32(decode_counts.shape[1])
    return overlap


def rho(signatures: Matrix, decode_counts: FeatureArray, *, seed: int = 0) -> float | None:
    """Return Spearman's correlation over request pairs of signature cosine [N, D] and decode overlap.

    rho = corr(rank(s_i . s_j), rank(overlap_ij)) over all i < j. Requests without a signature or without
    decode counts are left out; of more than MAX_REQUESTS a sample drawn by `seed` is taken. None when fewer
    than three are left, or one side is constant.
    """
    rows = usable_requests(signatures, decode_counts, seed)
    if len(rows) < 3:
        return None
    pairs = np.triu_indices(len(rows), 1)
    chosen = signatures[rows]
    return spearman((chosen @ chosen.T)[pairs], decode_overlap(decode_counts[rows])[pairs])


def usable_requests(signatures: FeatureArray, decode_counts: FeatureArray, seed: int) -> Rows:
    """Return the rows of both that have a signature and decode counts, in order, at most MAX_REQUESTS."""
    usable = np.flatnonzero(signatures.any(axis=1) & decode_counts.any(axis=(1, 2)))
    if len(usable) > MAX_REQUESTS:
        usable = np.sort(np.random.default_rng(seed).choice(usable, MAX_REQUESTS, replace=False))
    return usable


def spearman(x: npt.NDArray[np.floating], y: npt.NDArray[np.floating]) -> float | None:
    """Return the rank correlation of two vectors, ties at their mean rank; None when one is constant."""
    a, b = standard_ranks(x), standard_ranks(y)
    return None if a is None or b is None else float(a @ b)


def standard_ranks(values: npt.NDArray[np.floating]) -> Real | None:
    """Return ranks, ties at their mean, moved and scaled to mean 0 and length 1; None for constant values.

    The product of two such vectors is Spearman's correlation.
    """
    order = values.argsort()
    ordered = values[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    counts = np.diff(starts, append=len(values))
    deviation = starts + (counts - 1) / 2 - (len(values) - 1) / 2
    length = np.sqrt((deviation**2 * counts).sum())
    if length == 0:
        return None
    ranks = np.empty(len(values))
    ranks[order] = np.repeat(deviation / length, counts)
    return ranks
