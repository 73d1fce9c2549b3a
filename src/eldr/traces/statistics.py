"""What is compared between a synthetic MoE, recorded models and the paper: statistics of `ExpertTraces`."""

from typing import Any

import numpy as np
import numpy.typing as npt

from eldr.profile.active import expected_active
from eldr.profile.kmeans import BalancedKMeans
from eldr.signature import SignatureTransform
from eldr.traces.base import ExpertTraces

Floats = npt.NDArray[np.floating[Any]]
Rows = npt.NDArray[np.intp]


def shares(counts: Floats | npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.float64]:
    """Counts or rates [..., E] as shares that sum to 1; zero where there is nothing."""
    wide = counts.astype(np.float64)
    total = wide.sum(axis=-1, keepdims=True)
    found: npt.NDArray[np.float64] = np.divide(wide, total, out=np.zeros_like(wide), where=total > 0)
    return found


def layer_cosines(domains: Floats) -> npt.NDArray[np.float64]:
    """[D, D]: the cosine of two domains' activations [D, L, E] in a layer, mean over layers."""
    unit = domains / np.linalg.norm(domains, axis=2, keepdims=True)
    cosines: npt.NDArray[np.float64] = np.einsum("ale,ble->ab", unit, unit) / domains.shape[1]
    return cosines


def by_label(values: Floats, label: npt.NDArray[np.str_]) -> npt.NDArray[np.float64]:
    """Mean [D, L, E] of the requests of each label, labels in order."""
    return np.stack([values[label == name].mean(axis=0, dtype=np.float64) for name in np.unique(label)])


def independent_active(rates: Floats, batch: int) -> float:
    """Distinct experts a layer if `batch` tokens choose independently by the same rates [L, E]."""
    return float((1 - (1 - rates.astype(np.float64)) ** batch).sum(axis=1).mean())


def grouping_change(
    rates: Floats, group: npt.NDArray[Any], batch: int, *, draws: int = 60, seed: int = 0
) -> tuple[float, float, float]:
    """Active experts of batches from all groups and of batches from one: (mixed, same, same / mixed - 1).

    rates: [N, L, E]; group: [N]. Groups are equally likely, as in the paper's Fig. 4; a mixed batch has as
    many requests of each. Only groups of at least `batch` requests take part.
    """
    names, sizes = np.unique(group, return_counts=True)
    members = [np.flatnonzero(group == name) for name in names[sizes >= batch]]
    rng = np.random.default_rng(seed)
    same = [expected_active(rates[_draw(members[d % len(members)], batch, rng)]) for d in range(draws)]
    mixed = [expected_active(rates[_from_each(members, batch, rng)]) for _ in range(draws)]
    return float(np.mean(mixed)), float(np.mean(same)), float(np.mean(same) / np.mean(mixed) - 1)


def domain_correlation(traces: ExpertTraces) -> float:
    """Pearson's correlation of prefill and decode activation over domains, layers and experts (Fig. 3).

    Activation of a domain: its share of an expert against the mean over domains.
    """
    parts = (by_label(shares(part), traces.label) for part in (traces.prefill, traces.decode_rates()))
    before, after = (_against_mean(part) for part in parts)
    return float(np.corrcoef(before.ravel(), after.ravel())[0, 1])


def request_correlation(traces: ExpertTraces) -> float:
    """The median request's correlation of its own prefill and decode shares, each less the mean of all."""
    before, after = _deviations(traces)
    return float(np.median([np.corrcoef(x, y)[0, 1] for x, y in zip(before, after, strict=True)]))


def domain_share(traces: ExpertTraces) -> float:
    """How much of what prefill and decode of a request have in common its whole domain has in common.

    The covariance of the prefill of one request with the decode of another one of its domain, over that with
    its own: 1 where requests of a domain are alike, near 0 where the domain says nothing. Noise of single
    requests cancels in both.
    """
    before, after = _deviations(traces)
    covariance = before @ after.T
    same = traces.label[:, None] == traces.label
    np.fill_diagonal(same, False)
    return float(covariance[same].mean() / np.diag(covariance).mean())


def cluster_change(traces: ExpertTraces, workers: int, batch: int, *, seed: int = 0) -> float:
    """same / mixed - 1 where groups are balanced clusters of signatures, one a decode worker.

    Clusters are fitted to one half of the requests; batches are of the other half, each request at the most
    similar centroid.
    """
    half = len(traces) // 2
    transform = SignatureTransform("idf").fit(traces.prefill[:half])
    fitted = BalancedKMeans(workers, seed=seed, starts=1).fit(transform.transform_many(traces.prefill[:half]))
    nearest = (transform.transform_many(traces.prefill[half:]) @ fitted.centroids_.T).argmax(axis=1)
    return grouping_change(traces.decode_rates(slice(half, None)), nearest, batch, seed=seed)[2]


def _deviations(traces: ExpertTraces) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Shares [N, L x E] in prefill and in decode, less the mean over domains."""
    parts = [shares(part) for part in (traces.prefill, traces.decode_rates())]
    before, after = (part - by_label(part, traces.label).mean(axis=0) for part in parts)
    return before.reshape(len(traces), -1), after.reshape(len(traces), -1)


def _against_mean(domains: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Shares [D, L, E] over their mean; experts that nobody uses are 1, as all others on average."""
    mean = domains.mean(axis=0)
    relative: npt.NDArray[np.float64] = np.divide(domains, mean, out=np.ones_like(domains), where=mean > 0)
    return relative


def _draw(members: Rows, count: int, rng: np.random.Generator) -> Rows:
    return rng.choice(members, count, replace=False)


def _from_each(members: list[Rows], batch: int, rng: np.random.Generator) -> Rows:
    counts = np.bincount(rng.permutation(np.arange(batch) % len(members)), minlength=len(members))
    return np.concatenate([_draw(m, count, rng) for m, count in zip(members, counts, strict=True)])
