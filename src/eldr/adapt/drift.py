"""Has what is asked changed? Signatures of now against those of before, with a stated false-alarm rate."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2_contingency, ks_2samp

from eldr.types import Matrix

FALSE_ALARMS = 1e-4
"""Share of checks that raise an alarm though nothing changed, at most."""

LEAST_ROWS = 100
"""Signatures of each time, at least. Fewer are not tested."""

LEAST_EXPECTED = 5.0
"""Requests of a cluster to be expected in both times (Cochran's rule); rarer clusters count as one."""


@dataclass(frozen=True, slots=True)
class Drift:
    """Chances that two times differ so much though nothing changed: in the shares of the clusters (mix), in
    how near requests are to their nearest centroid (fit), and of either; all 1 where there is too little.
    """

    mix: float
    fit: float

    @property
    def p_value(self) -> float:
        """Of both tests together (Bonferroni)."""
        return min(1.0, 2 * min(self.mix, self.fit))

    @property
    def alarm(self) -> bool:
        return self.p_value < FALSE_ALARMS

    def __str__(self) -> str:
        what = "shares of clusters" if self.mix <= self.fit else "distances to centroids"
        return f"{what} differ (p = {self.p_value:.2g}, alarm below {FALSE_ALARMS:g})"


def drift(before: Matrix, now: Matrix, centroids: Matrix) -> Drift:
    """Test signatures [N, D] of an earlier time against those of now [M, D], seen from centroids [K, D].

    A mix that jumps changes the shares of the clusters (chi-square test), a kind of request that the clusters
    do not know the distances to the nearest centroid (Kolmogorov-Smirnov test). Each has half of the rate.
    The rate holds for requests that do not depend on each other.
    """
    if min(len(before), len(now)) < LEAST_ROWS:
        return Drift(1.0, 1.0)
    cosines = before @ centroids.T, now @ centroids.T
    labels = [one.argmax(axis=1) for one in cosines]
    table = np.array([np.bincount(one, minlength=len(centroids)) for one in labels])
    return Drift(_mix(table), float(ks_2samp(*(one.max(axis=1) for one in cosines)).pvalue))


def _mix(table: npt.NDArray[np.int64]) -> float:
    """p-value for requests [2 times, K clusters], rare clusters taken together."""
    shares = table.sum(axis=1, keepdims=True) / table.sum()
    rare = (shares * table.sum(axis=0)).min(axis=0) < LEAST_EXPECTED
    merged = np.column_stack([table[:, ~rare], table[:, rare].sum(axis=1)])
    merged = merged[:, merged.any(axis=0)]
    return float(chi2_contingency(merged, correction=False).pvalue) if merged.shape[1] > 1 else 1.0
