"""Figures 1 and 4: how alike requests of one domain are, and what a batch of one domain saves.

Rates: [.., L, E], the probability that one token activates an expert.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from eldr.paper.measure.sources import traces_of
from eldr.paper.stats import interval
from eldr.profile.active import expected_active
from eldr.signature.quality import decode_overlap
from eldr.traces.recorded import qwen3_30b

SAMPLE = 400
"""More requests than these are sampled for pairs."""

Rates = npt.NDArray[np.floating[Any]]


def domains(source: str, seed: int = 0) -> dict[str, Any]:
    """Fig. 1: what each domain activates more or less than the others, and how alike its requests are.

    within, between: mean overlap of a request with others of its domain, and of other domains: mean over
    layers of the cosine of the two requests' rates. gap: within - between, with its 95 % interval over
    requests.
    """
    traces = traces_of(source)
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.permutation(len(traces))[:SAMPLE])
    rates, label = traces.decode_rates(chosen), traces.label[chosen]
    own, other = _overlaps(decode_overlap(rates), label)
    return {
        **_facts(traces),
        **_deviation(
            np.unique(label).tolist(), np.stack([rates[label == d].mean(axis=0) for d in np.unique(label)])
        ),
        "requests": len(chosen),
        "within": float(own.mean()),
        "between": float(other.mean()),
        "gap": interval((own - other).tolist()),
    }


def language_domains() -> dict[str, Any]:
    """Fig. 1 for Qwen3-30B-A3B: its languages as wholes, since no single requests were recorded."""
    languages = qwen3_30b().languages
    rates = np.stack(list(languages.values()))
    return {"model": "Qwen3-30B-A3B", "evidence": "trace", **_deviation(list(languages), rates)}


def _deviation(names: list[str], rates: Rates) -> dict[str, Any]:
    """Domain rates [D, L, E] against their mean, in the layer where domains differ as much as in the median
    one."""
    mean = rates.mean(axis=0)
    deviation = rates / np.maximum(mean, 1e-9) - 1
    spread = np.abs(rates - mean).sum(axis=(0, 2))
    layer = int(np.argsort(spread)[len(spread) // 2])
    unit = rates / np.linalg.norm(rates, axis=2, keepdims=True)
    cosine = np.einsum("ale,ble->ab", unit, unit) / rates.shape[1]
    return {
        "domains": names,
        "layer": layer,
        "deviation": np.round(deviation[:, layer], 3).tolist(),
        "cosine": np.round(cosine, 4).tolist(),
    }


def _overlaps(
    overlap: npt.NDArray[np.floating[Any]], label: npt.NDArray[np.str_]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """For each request with another one of its domain: mean overlap with its domain, and with the others."""
    same = label[:, None] == label
    others = ~same
    np.fill_diagonal(same, False)
    usable = same.any(axis=1) & others.any(axis=1)
    wide = overlap.astype(np.float64)
    own = (wide * same).sum(axis=1)[usable] / same.sum(axis=1)[usable]
    other = (wide * others).sum(axis=1)[usable] / others.sum(axis=1)[usable]
    return own, other


def batches(source: str, sizes: Sequence[int], draws: int, seed: int = 0) -> dict[str, Any]:
    """Fig. 4: expected active experts a step and layer of batches from one domain, and from all of them.

    For a size those domains take part that have as many requests, so that no request is in a batch twice;
    with fewer than two of them the size is left out. Each domain is as likely, as in the paper's figure.
    change: the mean of 1 - same / mixed as a percentage, with its 95 % interval over draws.
    """
    traces = traces_of(source)
    rates = traces.decode_rates()
    rng = np.random.default_rng(seed)
    by_size = {}
    for size in sizes:
        groups = [np.flatnonzero(traces.label == name) for name in np.unique(traces.label)]
        groups = [group for group in groups if len(group) >= size]
        if len(groups) > 1:
            by_size[str(size)] = _compare(rates, groups, size, draws, rng)
    return {**_facts(traces), "sizes": by_size}


def _compare(
    rates: Rates, groups: list[npt.NDArray[np.intp]], size: int, draws: int, rng: np.random.Generator
) -> dict[str, Any]:
    same, mixed = [], []
    for draw in range(draws):
        same.append(_active(rates, rng.choice(groups[draw % len(groups)], size, replace=False)))
        of_each = rng.permutation(np.arange(size) % len(groups))
        mixed.append(_active(rates, _from_each(groups, of_each, rng)))
    changes = [100 * (a / float(np.mean(mixed)) - 1) for a in same]
    return {
        "domains": len(groups),
        "same": float(np.mean(same)),
        "mixed": float(np.mean(mixed)),
        "change": interval(changes),
    }


def _from_each(
    groups: list[npt.NDArray[np.intp]], of_each: npt.NDArray[np.int64], rng: np.random.Generator
) -> npt.NDArray[np.intp]:
    """As many requests of each group as `of_each` names it."""
    counts = np.bincount(of_each, minlength=len(groups))
    parts = [rng.choice(group, count, replace=False) for group, count in zip(groups, counts, strict=True)]
    return np.concatenate(parts)


def _active(rates: Rates, rows: npt.NDArray[np.intp]) -> float:
    return expected_active(rates[rows].astype(np.float32, copy=False))


def language_batches(sizes: Sequence[int]) -> dict[str, Any]:
    """Fig. 4 for Qwen3-30B-A3B's languages: tokens of one language against as many of each, independent
    draws."""
    languages = qwen3_30b().languages
    rates = np.stack(list(languages.values()))
    by_size = {}
    for size in sizes:
        same = [float((1 - (1 - own) ** size).sum(axis=1).mean()) for own in rates]
        idle = np.prod((1 - rates) ** (size / len(rates)), axis=0)
        mixed = float((1 - idle).sum(axis=1).mean())
        changes = [100 * (value / mixed - 1) for value in same]
        by_size[str(size)] = {
            "domains": len(languages),
            "same": float(np.mean(same)),
            "mixed": mixed,
            "change": (float(np.mean(changes)), min(changes), max(changes)),
        }
    return {"model": "Qwen3-30B-A3B", "evidence": "trace", "sizes": by_size}


def prediction(source: str) -> dict[str, Any]:
    """Fig. 3: what prefill tells of decode.

    A domain's normalised activation of an expert is its share of the domain's tokens against the mean of the
    domains, in prefill and in decode. pooled: Pearson's correlation over layers, experts and domains;
    by_domain: over layers and experts of one; by_request: the median, of requests' own shares against the
    mean. points: 600 of the pooled ones, for a plot.
    """
    traces = traces_of(source)
    prefill = _shares(traces.prefill.astype(np.float64))
    decode = _shares(traces.decode_rates().astype(np.float64))
    names = np.unique(traces.label).tolist()
    before = _against_mean(np.stack([prefill[traces.label == name].mean(axis=0) for name in names]))
    after = _against_mean(np.stack([decode[traces.label == name].mean(axis=0) for name in names]))
    x, y = before.ravel(), after.ravel()
    shown = np.random.default_rng(0).permutation(x.size)[:600]
    own = [
        _correlation(a - prefill.mean(axis=0), b - decode.mean(axis=0))
        for a, b in zip(prefill, decode, strict=True)
    ]
    return {
        **_facts(traces),
        "pooled": _correlation(x, y),
        "by_domain": {name: _correlation(a, b) for name, a, b in zip(names, before, after, strict=True)},
        "by_request": float(np.median(own)),
        "points": np.round(np.stack([x[shown], y[shown]], axis=1), 3).tolist(),
    }


def _shares(counts: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    total = counts.sum(axis=2, keepdims=True)
    shares: npt.NDArray[np.float64] = np.divide(counts, total, out=np.zeros_like(counts), where=total > 0)
    return shares


def _against_mean(shares: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Shares [D, L, E] over their mean of the domains; experts that none uses are 1, like all others."""
    mean = shares.mean(axis=0)
    relative: npt.NDArray[np.float64] = np.divide(shares, mean, out=np.ones_like(shares), where=mean > 0)
    return relative


def _correlation(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> float:
    """Pearson's; 0 where one side does not vary, since it then tells nothing."""
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    return float(np.corrcoef(x.ravel(), y.ravel())[0, 1])


def _facts(traces: Any) -> dict[str, Any]:
    return {"model": traces.model, "evidence": traces.evidence, "source": traces.source}
