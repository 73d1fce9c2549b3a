"""Policies compared on the same requests, with their noise: paired, over blocks of time.

Requests that decode together share their luck, so a request is no independent sample; a block of time that
lasts as long as a batch nearly is.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

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


def mean_change(
    new: Floats, old: Floats, block: npt.NDArray[np.int64], level: float, alike: float = 1.0
) -> Change:
    """By what share the mean of `new` [M] is above that of `old` [M]. block: [M], at least two of them.

    A ratio of sums over blocks, with its linearised variance and Student's t. alike: how many blocks count as
    one.
    """
    news, olds = (np.bincount(block, values) for values in (new, old))
    filled = np.bincount(block) > 0
    news, olds = news[filled], olds[filled]
    ratio, count = float(news.sum() / olds.sum()), int(filled.sum())
    off = news - ratio * olds
    error = float(np.sqrt(alike * count / (count - 1) * (off**2).sum()) / olds.sum())
    half = float(stdtrit(count - 1, 0.5 + level / 2)) * error
    return Change(ratio - 1, ratio - 1 - half, ratio - 1 + half)


def tail_change(new: Floats, old: Floats, block: npt.NDArray[np.int64], level: float, seed: int) -> Change:
    """The same of the 99th percentile, by drawing blocks; the same draws for the same seed."""
    number = np.unique(block, return_inverse=True)[1]
    count = int(number.max()) + 1
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), DRAWS)
    ratios = _p99s(new, number, drawn) / _p99s(old, number, drawn)
    low, high = np.quantile(ratios, [0.5 - level / 2, 0.5 + level / 2]) - 1
    once = np.ones((1, count), np.int64)
    ratio = float((_p99s(new, number, once) / _p99s(old, number, once))[0])
    return Change(ratio - 1, float(low), float(high))


def _p99s(values: Floats, block: npt.NDArray[np.intp], times: npt.NDArray[np.int64]) -> Floats:
    """99th percentiles [n], where block b counts times[n, b] times."""
    order = np.argsort(values)
    below = times[:, block[order]].cumsum(axis=1)
    found: Floats = values[order][(below >= 0.99 * below[:, -1:]).argmax(axis=1)]
    return found
