"""Policies compared on the same requests, with their noise: paired, over blocks of time.

Requests that decode together share their luck, so a request is no independent sample; a block of time that
lasts as long as a batch nearly is.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

Floats = npt.NDArray[np.float64]

DRAWS = 300
"""Of blocks, with replacement, for the noise of a percentile."""


@dataclass(frozen=True, slots=True)
class Change:
    """By what share something is above something else, and the interval of it."""

    ratio: float
    low: float
    high: float

    @property
    def below(self) -> bool:
        """Below for certain, as the level says."""
        return self.high < 0

    @property
    def above(self) -> bool:
        """Above for certain, as the level says."""
        return self.low > 0

    def __str__(self) -> str:
        return f"{100 * self.ratio:+.1f} % ({100 * self.low:+.1f} to {100 * self.high:+.1f})"


def mean_change(new: Floats, old: Floats, block: npt.NDArray[np.int64], level: float) -> Change:
    """By what share the mean of `new` [M] is above that of `old` [M]. block: [M], at least two of them.

    A ratio of sums over blocks, with its linearised variance and Student's t.
    """
    news, olds = (np.bincount(block, values) for values in (new, old))
    filled = np.bincount(block) > 0
    news, olds = news[filled], olds[filled]
    ratio, count = float(news.sum() / olds.sum()), int(filled.sum())
    off = news - ratio * olds
    error = float(np.sqrt(count / (count - 1) * (off**2).sum()) / olds.sum())
    half = float(stats.t.ppf(0.5 + level / 2, count - 1)) * error
    return Change(ratio - 1, ratio - 1 - half, ratio - 1 + half)


def tail_change(
    new: Floats, old: Floats, block: npt.NDArray[np.int64], level: float, rng: np.random.Generator
) -> Change:
    """The same of the 99th percentile, by drawing blocks."""
    rows = [np.flatnonzero(block == b) for b in np.unique(block)]
    ratios = np.empty(DRAWS)
    for draw in range(DRAWS):
        drawn = np.concatenate([rows[b] for b in rng.integers(0, len(rows), len(rows))])
        ratios[draw] = _p99(new[drawn]) / _p99(old[drawn])
    low, high = np.quantile(ratios, [0.5 - level / 2, 0.5 + level / 2]) - 1
    return Change(float(_p99(new) / _p99(old)) - 1, float(low), float(high))


def _p99(values: Floats) -> float:
    """As numpy's default, of which it is the fast part."""
    place = 0.99 * (len(values) - 1)
    low = int(place)
    ends = np.partition(values, [low, min(low + 1, len(values) - 1)])[low : low + 2]
    return float(ends[0] + (place - low) * (ends[-1] - ends[0]))
