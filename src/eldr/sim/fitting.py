"""Fits costs to measured latencies: least squares with no negative part, and an error on unseen points."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from eldr.errors import ConfigError

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class LinearFit:
    """y = x @ coefficients, all at least 0.

    r2: explained share of the variance of y. cv_error: mean |predicted / y - 1| of points that were left out
    of the fit, a group at a time.
    """

    coefficients: Floats
    r2: float
    cv_error: float
    points: int


def fit_linear(x: Floats, y: Floats, groups: npt.NDArray[Any]) -> LinearFit:
    """Fit x [n, d] to y [n], both at least 0. groups [n]: points that are left out together.

    Raises ConfigError for fewer points than coefficients, or for one group only.
    """
    if len(y) <= x.shape[1] or len(np.unique(groups)) < 2:
        raise ConfigError(f"{len(y)} measurements are too few for {x.shape[1]} coefficients; measure more")
    coefficients = solve(x, y)
    residual = y - x @ coefficients
    unseen = np.empty_like(y)
    for group in np.unique(groups):
        out = groups == group
        unseen[out] = x[out] @ solve(x[~out], y[~out])
    return LinearFit(
        coefficients,
        r2=float(1 - (residual**2).sum() / ((y - y.mean()) ** 2).sum()),
        cv_error=float(np.abs(unseen / y - 1).mean()),
        points=len(y),
    )


def fit_moe(active: Floats, tokens: Floats, latency_us: Floats) -> LinearFit:
    """Fit latency = a0 + a1 x active + b x tokens; a number of tokens is left out at a time."""
    return fit_linear(np.stack([np.ones_like(active), active, tokens], axis=1), latency_us, tokens)


def solve(x: Floats, y: Floats) -> Floats:
    """The coefficients [d] alone."""
    scale = np.maximum(np.abs(x).max(axis=0), 1e-300)  # columns of very different size
    coefficients: Floats = nnls(x / scale, y)[0] / scale
    return coefficients
