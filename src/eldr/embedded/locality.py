"""How local the experts of a set of requests are: the figures of the model's card, as pure functions.

Arrays: `prefill`, `decode` are counts [requests, layers, experts]; `active` is bool [requests, steps, layers,
experts], the experts that a request uses at each decode step; `labels` is the domain of each request.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

Counts = NDArray[np.float64]
Labels = NDArray[np.str_]


def counts_of(choices: NDArray[np.uint8], num_experts: int) -> Counts:
    """Choices [requests, tokens, layers, top_k] -> counts [requests, layers, experts]."""
    counts: Counts = one_hot(choices, num_experts).sum(1).astype(np.float64)
    return counts


def one_hot(choices: NDArray[np.uint8], num_experts: int) -> NDArray[np.bool_]:
    """Choices [..., top_k] -> which experts are used, bool [..., experts]."""
    used = np.zeros((*choices.shape[:-1], num_experts), dtype=np.bool_)
    np.put_along_axis(used, choices.astype(np.int64), True, -1)
    return used


def active_experts(active: NDArray[np.bool_], batches: Sequence[NDArray[np.int64]]) -> float:
    """Distinct experts a layer and decode step, mean over batches (the requests that decode together)."""
    return float(np.mean([active[batch].any(0).sum(-1).mean() for batch in batches]))


def mixed_batches(
    labels: Labels, size: int, number: int, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Batches drawn from all requests."""
    return [rng.choice(len(labels), size, replace=False) for _ in range(number)]


def domain_batches(
    labels: Labels, size: int, number: int, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Batches of one domain each, the domains in turn."""
    members = [np.flatnonzero(labels == domain) for domain in np.unique(labels)]
    return [rng.choice(members[i % len(members)], size, replace=False) for i in range(number)]


def prefill_decode_correlation(prefill: Counts, decode: Counts, labels: Labels) -> dict[str, object]:
    """Pearson correlation of prefill and decode activation, each relative to the mean over domains.

    Pooled over all (domain, layer, expert), per domain, and the mean over single requests.
    """
    before, after = _frequencies(prefill), _frequencies(decode)
    domains = [str(domain) for domain in np.unique(labels)]
    before_domain = _centred(np.stack([before[labels == domain].mean(0) for domain in domains]))
    after_domain = _centred(np.stack([after[labels == domain].mean(0) for domain in domains]))
    by_domain = {d: _pearson(x, y) for d, x, y in zip(domains, before_domain, after_domain, strict=True)}
    by_request = [_pearson(x, y) for x, y in zip(_centred(before), _centred(after), strict=True)]
    return {
        "pooled": _pearson(before_domain, after_domain),
        "by_domain": by_domain,
        "by_request": float(np.mean(by_request)),
    }


def signature_quality(prefill: Counts, decode: Counts) -> dict[str, float]:
    """rho of the paper's section on quality, by transformation of the counts: raw, 1 + log, log-IDF.

    Spearman rank correlation over all pairs of requests between the cosine of their prefill signatures and
    the overlap of their decode activation (shared share of the assignments, mean over layers).
    """
    pairs = np.triu_indices(len(prefill), 1)
    overlap = decode_overlap(decode)[pairs]
    return {
        name: float(spearmanr(_cosine(signatures)[pairs], overlap).statistic)
        for name, signatures in transformed(prefill).items()
    }


def transformed(counts: Counts) -> dict[str, Counts]:
    """The counts under each transformation, same shape."""
    used_by = (counts > 0).sum(0)
    idf = np.log((len(counts) + 1) / (used_by + 1))
    return {"counts": counts, "log": np.log1p(counts), "idf": counts * idf}


def decode_overlap(decode: Counts) -> Counts:
    """[requests, requests]: the smaller frequency of the two, summed over experts, mean over layers."""
    frequencies = _frequencies(decode)
    rows = [np.minimum(row, frequencies).sum(-1).mean(-1) for row in frequencies]
    return np.stack(rows)


def _frequencies(counts: Counts) -> Counts:
    """Each layer's counts as shares that sum to 1."""
    shares: Counts = counts / counts.sum(-1, keepdims=True)
    return shares


def _centred(rows: Counts) -> Counts:
    relative: Counts = rows - rows.mean(0)
    return relative


def _pearson(x: Counts, y: Counts) -> float:
    return float(np.corrcoef(x.ravel(), y.ravel())[0, 1])


def _cosine(signatures: Counts) -> Counts:
    flat = signatures.reshape(len(signatures), -1)
    unit = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    cosine: Counts = unit @ unit.T
    return cosine
