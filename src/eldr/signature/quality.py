"""How well signatures foretell decode: rho, the paper's quality of a transformation."""

import numpy as np
import numpy.typing as npt

from eldr.signature.transform import CountArray
from eldr.types import Matrix

MAX_REQUESTS = 400
"""More requests than these are sampled: 400 make 79,800 pairs."""


def decode_overlap(decode_counts: CountArray) -> Matrix:
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


def rho(signatures: Matrix, decode_counts: CountArray, *, seed: int = 0) -> float | None:
    """Return Spearman's correlation over request pairs of signature cosine [N, D] and decode overlap.

    Requests without a signature or without decode counts are left out; of more than MAX_REQUESTS a sample
    drawn by `seed` is taken. None when fewer than three are left, or one side is constant.
    """
    usable = np.flatnonzero(signatures.any(axis=1) & decode_counts.any(axis=(1, 2)))
    if len(usable) > MAX_REQUESTS:
        usable = np.sort(np.random.default_rng(seed).choice(usable, MAX_REQUESTS, replace=False))
    if len(usable) < 3:
        return None
    pairs = np.triu_indices(len(usable), 1)
    chosen = signatures[usable]
    return spearman((chosen @ chosen.T)[pairs], decode_overlap(decode_counts[usable])[pairs])


def spearman(x: npt.NDArray[np.floating], y: npt.NDArray[np.floating]) -> float | None:
    """Return the rank correlation of two vectors, ties at their mean rank; None when one is constant."""
    ranks = [_ranks(values) for values in (x, y)]
    deviation = [rank - rank.mean() for rank in ranks]
    scale = np.sqrt((deviation[0] ** 2).sum() * (deviation[1] ** 2).sum())
    return float((deviation[0] * deviation[1]).sum() / scale) if scale > 0 else None


def _ranks(values: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    _, inverse, count = np.unique(values, return_inverse=True, return_counts=True)
    last = count.cumsum()
    mean_rank: npt.NDArray[np.float64] = last - (count - 1) / 2
    return mean_rank[inverse]
