"""How local the experts of a set of requests are: the figures of the model's card, as pure functions.

Arrays: `prefill`, `decode` are counts [requests, layers, experts]; `active` is bool [requests, steps, layers,
experts], the experts that a request uses at each decode step; `labels` is the domain of each request.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eldr.profile.kmeans import BalancedKMeans
from eldr.signature import TRANSFORMATIONS, SignatureTransform
from eldr.signature.quality import rho

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
    labels: NDArray[np.generic], size: int, number: int, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Batches drawn from all requests."""
    return [rng.choice(len(labels), size, replace=False) for _ in range(number)]


def grouped_batches(
    labels: NDArray[np.generic], size: int, number: int, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Batches of one label each, labels drawn by how many requests have them (at least `size`)."""
    groups = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    large = [group for group in groups if len(group) >= size]
    share = np.array([len(group) for group in large]) / sum(map(len, large))
    drawn = rng.choice(len(large), number, p=share)
    return [rng.choice(large[index], size, replace=False) for index in drawn]


def cluster_labels(prefill: Counts, known: NDArray[np.bool_], clusters: int) -> NDArray[np.int64]:
    """Clusters fitted to the signatures of the `known` requests; every request gets its most similar one."""
    signatures = SignatureTransform("counts").fit(prefill[known]).transform_many(prefill)
    fitted = BalancedKMeans(clusters).fit(signatures[known])
    labels: NDArray[np.int64] = (signatures @ fitted.centroids_.T).argmax(1)
    return labels


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


def signature_quality(prefill: Counts, decode: Counts) -> dict[str, float | None]:
    """The paper's rho for each transformation of the counts that ELDR has."""
    return {
        name: rho(SignatureTransform(name).fit(prefill).transform_many(prefill), decode)
        for name in TRANSFORMATIONS.names()
    }


def _frequencies(counts: Counts) -> Counts:
    """Each layer's counts as shares that sum to 1."""
    shares: Counts = counts / counts.sum(-1, keepdims=True)
    return shares


def _centred(rows: Counts) -> Counts:
    relative: Counts = rows - rows.mean(0)
    return relative


def _pearson(x: Counts, y: Counts) -> float:
    return float(np.corrcoef(x.ravel(), y.ravel())[0, 1])
