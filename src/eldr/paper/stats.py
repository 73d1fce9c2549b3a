"""Means and their intervals."""

from collections.abc import Sequence

import numpy as np
from scipy import stats


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and the ends of its 95 % interval (Student's t); of one value, the value itself three times."""
    sample = np.asarray(values, np.float64)
    mean = float(sample.mean())
    if len(sample) < 2:
        return mean, mean, mean
    half = float(stats.t.ppf(0.975, len(sample) - 1) * sample.std(ddof=1) / np.sqrt(len(sample)))
    return mean, mean - half, mean + half
